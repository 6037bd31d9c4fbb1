/* The archive as a stream of bytes, from or to a file or a pipe. */

#include "tar.h"

#define RECORD (20 * BLOCK) /* archives are padded to a multiple of it */

static HANDLE archive;
static const WCHAR *archive_name;
static BYTE buffer[CHUNK];
static DWORD start, filled;
static ULONGLONG total;
static BY_HANDLE_FILE_INFORMATION identity;
static BOOL is_file;

void open_archive(const WCHAR *path, BOOL writing)
{
    archive_name = path;
    if (path[0] == L'-' && !path[1]) {
        archive = GetStdHandle(writing ? STD_OUTPUT_HANDLE : STD_INPUT_HANDLE);
    } else {
        archive = CreateFileW(full_path(L".", path), writing ? GENERIC_WRITE : GENERIC_READ,
                              FILE_SHARE_READ, NULL, writing ? CREATE_ALWAYS : OPEN_EXISTING, 0,
                              NULL);
        if (archive == INVALID_HANDLE_VALUE)
            fail_with_error(path);
    }
    is_file = GetFileType(archive) == FILE_TYPE_DISK
        && GetFileInformationByHandle(archive, &identity);
}

BOOL is_archive(const BY_HANDLE_FILE_INFORMATION *file)
{
    return is_file && file->dwVolumeSerialNumber == identity.dwVolumeSerialNumber
        && file->nFileIndexLow == identity.nFileIndexLow
        && file->nFileIndexHigh == identity.nFileIndexHigh;
}

static void fill(void)
{
    start = filled = 0;
    if (!ReadFile(archive, buffer, sizeof buffer, &filled, NULL)
        && GetLastError() != ERROR_BROKEN_PIPE && GetLastError() != ERROR_HANDLE_EOF)
        fail_with_error(archive_name);
}

/* Reads up to `most` available bytes, valid until the next call. Returns 0 at the end. */
DWORD read_some(ULONGLONG most, const BYTE **data)
{
    if (start == filled)
        fill();
    DWORD size = (DWORD)min(most, filled - start);
    *data = buffer + start;
    start += size;
    return size;
}

/* Reads the given number of bytes, or less at the end. */
DWORD read_bytes(void *to, DWORD size)
{
    const BYTE *data;
    DWORD taken = 0;
    for (DWORD some; taken < size && (some = read_some(size - taken, &data)); taken += some)
        memcpy((BYTE *)to + taken, data, some);
    return taken;
}

void skip(ULONGLONG size)
{
    const BYTE *data;
    ULONGLONG there = min(size, filled - start);
    start += (DWORD)there;
    size -= there;
    LARGE_INTEGER onward = {.QuadPart = (LONGLONG)size}, at = {0}, end;
    if (size && is_file && GetFileSizeEx(archive, &end)
        && SetFilePointerEx(archive, at, &at, FILE_CURRENT)
        && size <= (ULONGLONG)(end.QuadPart - at.QuadPart)
        && SetFilePointerEx(archive, onward, NULL, FILE_CURRENT))
        return;
    for (DWORD some; size; size -= some) {
        some = read_some(size, &data);
        if (!some)
            fail(archive_name, L"unexpected end of archive");
    }
}

static void flush(void)
{
    for (DWORD written; start < filled; start += written) {
        if (!WriteFile(archive, buffer + start, filled - start, &written, NULL))
            fail_with_error(archive_name);
    }
    start = filled = 0;
}

void write_bytes(const void *data, DWORD size)
{
    for (DWORD some; size; size -= some, total += some, data = (const BYTE *)data + some) {
        some = min(size, (DWORD)sizeof buffer - filled);
        memcpy(buffer + filled, data, some);
        filled += some;
        if (filled == sizeof buffer)
            flush();
    }
}

ULONGLONG padding(ULONGLONG size)
{
    return (BLOCK - size % BLOCK) % BLOCK;
}

/* Two zero blocks mark the end, and more pad the record. If nothing could be archived, no archive is
 * written: kubectl cp would treat an empty one as success. */
void close_archive(void)
{
    static const BYTE nothing[BLOCK];
    if (!total && any_failed())
        return;
    write_bytes(nothing, BLOCK);
    do
        write_bytes(nothing, BLOCK);
    while (total % RECORD);
    flush();
}
