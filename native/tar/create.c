/* Adds files and directories to an archive, under relative names without "..". */

#include "tar.h"

/* The chain of parent directories, to detect a directory that contains itself. */
struct ancestor {
    const struct ancestor *next;
    BY_HANDLE_FILE_INFORMATION identity;
};

static BOOL verbose;

static void add_path(const WCHAR *path, const WCHAR *name, const struct ancestor *ancestors);

static LONGLONG time_of(const BY_HANDLE_FILE_INFORMATION *file)
{
    ULARGE_INTEGER stamp = {.LowPart = file->ftLastWriteTime.dwLowDateTime,
                            .HighPart = file->ftLastWriteTime.dwHighDateTime};
    return (LONGLONG)(stamp.QuadPart / PER_SECOND) - TO_1970;
}

static void add_member(const WCHAR *name, char type, ULONGLONG size,
                       const BY_HANDLE_FILE_INFORMATION *file)
{
    WCHAR *shown = concat(name, type == '5' ? L"/" : L"", L"");
    char *text = to_utf8(shown);
    if (verbose)
        print(GetStdHandle(STD_ERROR_HANDLE), L"a ", shown, END_OF_LINE);
    put_header(text, type, size, time_of(file));
    release(text);
    release(shown);
}

/* Writes exactly as many bytes as the header says, even if the file changes meanwhile. */
static void add_file(HANDLE file, const WCHAR *name, const BY_HANDLE_FILE_INFORMATION *found)
{
    static BYTE data[CHUNK];
    ULONGLONG size = (ULONGLONG)found->nFileSizeHigh << 32 | found->nFileSizeLow, left = size;
    BOOL succeeded = TRUE;
    add_member(name, '0', size, found);
    for (DWORD some; left; left -= some) {
        DWORD most = (DWORD)min(left, sizeof data);
        if (succeeded && !ReadFile(file, data, most, &some, NULL)) {
            warn_last_error(name);
            succeeded = FALSE;
        } else if (succeeded && !some) {
            warn(name, L"the file became shorter while it was read; padded with zeros");
            succeeded = FALSE;
        }
        if (!succeeded)
            memset(data, 0, some = most);
        write_bytes(data, some);
    }
    memset(data, 0, BLOCK);
    write_bytes(data, (DWORD)padding(size));
}

static BOOL is_dots(const WCHAR *name)
{
    return name[0] == L'.' && (!name[1] || (name[1] == L'.' && !name[2]));
}

static void add_content(const WCHAR *path, const WCHAR *name, const struct ancestor *ancestors)
{
    WIN32_FIND_DATAW one;
    WCHAR *all = join_path(path, L"*");
    HANDLE found = FindFirstFileExW(all, FindExInfoBasic, &one, FindExSearchNameMatch, NULL, 0);
    release(all);
    if (found == INVALID_HANDLE_VALUE) {
        if (GetLastError() != ERROR_FILE_NOT_FOUND)
            warn_last_error(name);
        return;
    }
    do {
        if (is_dots(one.cFileName))
            continue;
        WCHAR *file = join_path(path, one.cFileName);
        WCHAR *member = concat(name, *name ? L"/" : L"", one.cFileName);
        if (one.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT)
            inform(member, L"links are not archived; skipped");
        else
            add_path(file, member, ancestors);
        release(member);
        release(file);
    } while (FindNextFileW(found, &one));
    if (GetLastError() != ERROR_NO_MORE_FILES)
        warn_last_error(name);
    FindClose(found);
}

static BOOL is_cycle(const BY_HANDLE_FILE_INFORMATION *directory, const struct ancestor *ancestors)
{
    for (; ancestors; ancestors = ancestors->next)
        if (ancestors->identity.dwVolumeSerialNumber == directory->dwVolumeSerialNumber
            && ancestors->identity.nFileIndexLow == directory->nFileIndexLow
            && ancestors->identity.nFileIndexHigh == directory->nFileIndexHigh)
            return TRUE;
    return FALSE;
}

/* An empty name is the base directory, which is not a member itself. */
static void add_path(const WCHAR *path, const WCHAR *name, const struct ancestor *ancestors)
{
    struct ancestor here = {.next = ancestors};
    DWORD shared = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    HANDLE file = CreateFileW(path, GENERIC_READ, shared, NULL, OPEN_EXISTING,
                              FILE_FLAG_BACKUP_SEMANTICS, NULL);
    if (file == INVALID_HANDLE_VALUE) {
        warn_last_error(name);
        return;
    }
    if (!GetFileInformationByHandle(file, &here.identity)) {
        warn_last_error(name);
    } else if (here.identity.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) {
        if (is_cycle(&here.identity, ancestors)) {
            inform(name, L"the directory contains itself; skipped");
        } else {
            if (*name)
                add_member(name, '5', 0, &here.identity);
            add_content(path, name, &here);
        }
    } else if (is_archive(&here.identity)) {
        inform(name, L"it is the archive itself; skipped");
    } else {
        add_file(file, name, &here.identity);
    }
    CloseHandle(file);
}

/* Returns the member name of a path: without drive, empty parts, and everything up to "..". */
static WCHAR *member_name(const WCHAR *path)
{
    static BOOL informed;
    WCHAR *name = concat(path, L"", L""), *to = name;
    const WCHAR *from = path + (path[0] && path[1] == L':' ? 2 : 0);
    if (from > path && !informed) {
        inform(path, L"member names have no drive; kubectl cp needs paths without one, such as /app");
        informed = TRUE;
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
    for (int i = 0; i < options->count; i++) {
        const struct operand *one = &options->operands[i];
        WCHAR *name = member_name(one->path), *path = full_path(one->directory, one->path);
        add_path(path, name, NULL);
        release(name);
        release(path);
    }
    close_archive();
}
