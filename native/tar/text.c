/* Memory, strings and paths without a C library. */

#include "tar.h"

/* The compiler generates calls of these. */
void *memcpy(void *to, const void *from, size_t size)
{
    BYTE *at = to;
    __asm__ volatile("rep movsb" : "+D"(at), "+S"(from), "+c"(size) : : "memory");
    return to;
}

void *memset(void *to, int value, size_t size)
{
    BYTE *at = to;
    __asm__ volatile("rep stosb" : "+D"(at), "+c"(size) : "a"(value) : "memory");
    return to;
}

void *allocate(SIZE_T size)
{
    void *memory = HeapAlloc(GetProcessHeap(), HEAP_ZERO_MEMORY, size);
    if (!memory)
        give_up(L"memory", L"there is not enough of it");
    return memory;
}

void release(void *memory)
{
    if (memory)
        HeapFree(GetProcessHeap(), 0, memory);
}

WCHAR *joined(const WCHAR *one, const WCHAR *two, const WCHAR *three)
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

WCHAR *below(const WCHAR *directory, const WCHAR *name)
{
    int units = lstrlenW(directory);
    return joined(directory, units && is_slash(directory[units - 1]) ? L"" : L"\\", name);
}

WCHAR *full_path(const WCHAR *directory, const WCHAR *path)
{
    BOOL alone = is_slash(path[0]) || (path[0] && path[1] == L':');
    WCHAR *whole = alone ? joined(path, L"", L"") : below(directory, path);
    DWORD units = GetFullPathNameW(whole, 0, NULL, NULL);
    WCHAR *full = allocate(((SIZE_T)units + 1) * sizeof(WCHAR));
    if (!units || !GetFullPathNameW(whole, units, full, NULL))
        give_up_with_error(path);
    release(whole);
    if (is_slash(full[0]) && is_slash(full[1]))
        return full;
    whole = joined(L"\\\\?\\", full, L"");
    release(full);
    return whole;
}
