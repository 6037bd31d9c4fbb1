/* Strings and paths. */

#include "tar.h"

WCHAR *concat(const WCHAR *one, const WCHAR *two, const WCHAR *three)
{
    SIZE_T units = (SIZE_T)lstrlenW(one) + (SIZE_T)lstrlenW(two) + (SIZE_T)lstrlenW(three);
    WCHAR *all = allocate((units + 1) * sizeof(WCHAR));
    lstrcatW(lstrcatW(lstrcpyW(all, one), two), three);
    return all;
}

BOOL is_slash(WCHAR letter)
{
    return letter == L'/' || letter == L'\\';
}

char *to_utf8(const WCHAR *text)
{
    int size = WideCharToMultiByte(CP_UTF8, 0, text, -1, NULL, 0, NULL, NULL);
    char *bytes = allocate((SIZE_T)size + 1);
    WideCharToMultiByte(CP_UTF8, 0, text, -1, bytes, size, NULL, NULL);
    return bytes;
}

/* Returns NULL if the bytes are not UTF-8. */
WCHAR *to_utf16(const char *text, SIZE_T size)
{
    WCHAR *units = allocate((size + 1) * sizeof(WCHAR));
    if (size && !MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, (int)size, units,
                                     (int)size)) {
        release(units);
        return NULL;
    }
    return units;
}

WCHAR *join_path(const WCHAR *directory, const WCHAR *name)
{
    int units = lstrlenW(directory);
    return concat(directory, units && is_slash(directory[units - 1]) ? L"" : L"\\", name);
}

WCHAR *full_path(const WCHAR *directory, const WCHAR *path)
{
    BOOL alone = is_slash(path[0]) || (path[0] && path[1] == L':');
    WCHAR *whole = alone ? concat(path, L"", L"") : join_path(directory, path);
    DWORD units = GetFullPathNameW(whole, 0, NULL, NULL);
    WCHAR *full = allocate(((SIZE_T)units + 1) * sizeof(WCHAR));
    if (!units || !GetFullPathNameW(whole, units, full, NULL))
        fail_with_error(path);
    release(whole);
    if (is_slash(full[0]) && is_slash(full[1]))
        return full;
    whole = concat(L"\\\\?\\", full, L"");
    release(full);
    return whole;
}
