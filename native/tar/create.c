/* Adds files and directories to an archive, under relative names without "..". */

#include "tar.h"

/* The chain of parent directories, to detect a directory that contains itself. */
struct above {
    const struct above *next;
    BY_HANDLE_FILE_INFORMATION identity;
};

static BOOL verbose;

static void put_one(const WCHAR *path, const WCHAR *name, const struct above *above);

static LONGLONG time_of(const BY_HANDLE_FILE_INFORMATION *file)
{
    ULARGE_INTEGER stamp = {.LowPart = file->ftLastWriteTime.dwLowDateTime,
                            .HighPart = file->ftLastWriteTime.dwHighDateTime};
    return (LONGLONG)(stamp.QuadPart / PER_SECOND) - TO_1970;
}

static void put_member(const WCHAR *name, char type, ULONGLONG size,
                       const BY_HANDLE_FILE_INFORMATION *file)
{
    WCHAR *shown = joined(name, type == '5' ? L"/" : L"", L"");
    char *text = to_utf8(shown);
    if (verbose)
        say(GetStdHandle(STD_ERROR_HANDLE), L"a ", shown, END_OF_LINE);
    put_header(text, type, size, time_of(file));
    release(text);
    release(shown);
}

/* Writes exactly as many bytes as the header says, even if the file changes meanwhile. */
static void put_file(HANDLE file, const WCHAR *name, const BY_HANDLE_FILE_INFORMATION *found)
{
    static BYTE data[CHUNK];
    ULONGLONG size = (ULONGLONG)found->nFileSizeHigh << 32 | found->nFileSizeLow, left = size;
    BOOL well = TRUE;
    put_member(name, '0', size, found);
    for (DWORD some; left; left -= some) {
        DWORD most = (DWORD)min(left, sizeof data);
        if (well && !ReadFile(file, data, most, &some, NULL)) {
            warn_of_error(name);
            well = FALSE;
        } else if (well && !some) {
            warn(name, L"it became shorter while it was read, and is filled up with zeros");
            well = FALSE;
        }
        if (!well)
            memset(data, 0, some = most);
        put(data, some);
    }
    memset(data, 0, BLOCK);
    put(data, (DWORD)padding(size));
}

static BOOL is_dots(const WCHAR *name)
{
    return name[0] == L'.' && (!name[1] || (name[1] == L'.' && !name[2]));
}

static void put_content(const WCHAR *path, const WCHAR *name, const struct above *above)
{
    WIN32_FIND_DATAW one;
    WCHAR *all = below(path, L"*");
    HANDLE found = FindFirstFileExW(all, FindExInfoBasic, &one, FindExSearchNameMatch, NULL, 0);
    release(all);
    if (found == INVALID_HANDLE_VALUE) {
        if (GetLastError() != ERROR_FILE_NOT_FOUND)
            warn_of_error(name);
        return;
    }
    do {
        if (is_dots(one.cFileName))
            continue;
        WCHAR *file = below(path, one.cFileName);
        WCHAR *member = joined(name, *name ? L"/" : L"", one.cFileName);
        if (one.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT)
            note(member, L"it is a link, and left out");
        else
            put_one(file, member, above);
        release(member);
        release(file);
    } while (FindNextFileW(found, &one));
    if (GetLastError() != ERROR_NO_MORE_FILES)
        warn_of_error(name);
    FindClose(found);
}

static BOOL is_circle(const BY_HANDLE_FILE_INFORMATION *directory, const struct above *above)
{
    for (; above; above = above->next)
        if (above->identity.dwVolumeSerialNumber == directory->dwVolumeSerialNumber
            && above->identity.nFileIndexLow == directory->nFileIndexLow
            && above->identity.nFileIndexHigh == directory->nFileIndexHigh)
            return TRUE;
    return FALSE;
}

/* An empty name is the base directory, which is not a member itself. */
static void put_one(const WCHAR *path, const WCHAR *name, const struct above *above)
{
    struct above here = {.next = above};
    DWORD shared = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    HANDLE file = CreateFileW(path, GENERIC_READ, shared, NULL, OPEN_EXISTING,
                              FILE_FLAG_BACKUP_SEMANTICS, NULL);
    if (file == INVALID_HANDLE_VALUE) {
        warn_of_error(name);
        return;
    }
    if (!GetFileInformationByHandle(file, &here.identity)) {
        warn_of_error(name);
    } else if (here.identity.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) {
        if (is_circle(&here.identity, above)) {
            note(name, L"it leads back to a directory that it is in, and is left out");
        } else {
            if (*name)
                put_member(name, '5', 0, &here.identity);
            put_content(path, name, &here);
        }
    } else if (is_archive(&here.identity)) {
        note(name, L"it is the archive itself, and left out");
    } else {
        put_file(file, name, &here.identity);
    }
    CloseHandle(file);
}

/* Returns the member name of a path: without drive, empty parts, and everything up to "..". */
static WCHAR *name_for(const WCHAR *path)
{
    static BOOL told;
    WCHAR *name = joined(path, L"", L""), *to = name;
    const WCHAR *from = path + (path[0] && path[1] == L':' ? 2 : 0);
    if (from > path && !told) {
        note(path, L"names have no drive; kubectl cp wants paths without one, such as /app");
        told = TRUE;
    }
    while (*from) {
        SIZE_T size = 0;
        while (from[size] && !is_slash(from[size]))
            size++;
        if (size == 2 && from[0] == L'.' && from[1] == L'.') {
            to = name;
        } else if (size && !(size == 1 && *from == L'.')) {
            if (to > name)
                *to++ = L'/';
            memcpy(to, from, size * sizeof(WCHAR));
            to += size;
        }
        from += size + !!from[size];
    }
    *to = 0;
    return name;
}

void create(const struct options *options)
{
    verbose = options->verbose;
    for (int i = 0; i < options->many; i++) {
        const struct operand *one = &options->operands[i];
        WCHAR *name = name_for(one->path), *path = full_path(one->directory, one->path);
        put_one(path, name, NULL);
        release(name);
        release(path);
    }
    close_archive();
}
