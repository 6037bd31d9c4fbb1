/* Extracts or lists an archive.
 *
 * Nothing is written outside of the directory: absolute names and names with ".." or a drive are
 * rejected, and no symbolic links are created that later members could be written through.
 */

#include "tar.h"

/* Times of directories are set last, because writing into a directory changes its time. */
struct dated_directory {
    struct dated_directory *next;
    WCHAR *path;
    LONGLONG time;
};

static struct dated_directory *dated;

static void set_time(HANDLE file, LONGLONG time)
{
    LONGLONG since = min(max(time, -TO_1970), MAXLONGLONG / PER_SECOND - TO_1970) + TO_1970;
    ULARGE_INTEGER stamp = {.QuadPart = (ULONGLONG)(since * PER_SECOND)};
    FILETIME written = {stamp.LowPart, stamp.HighPart};
    SetFileTime(file, NULL, NULL, &written);
}

static void set_directory_times(void)
{
    for (struct dated_directory *one = dated; one; one = one->next) {
        HANDLE directory = CreateFileW(one->path, FILE_WRITE_ATTRIBUTES,
                                       FILE_SHARE_READ | FILE_SHARE_WRITE, NULL, OPEN_EXISTING,
                                       FILE_FLAG_BACKUP_SEMANTICS, NULL);
        if (directory == INVALID_HANDLE_VALUE)
            continue;
        set_time(directory, one->time);
        CloseHandle(directory);
    }
}

/* Returns why a member is not extracted, or NULL. */
static const WCHAR *rejection(const WCHAR *name)
{
    if (!name)
        return L"the name is not UTF-8; not extracted";
    if (is_slash(name[0]) || (name[0] && name[1] == L':'))
        return L"the name is absolute; not extracted";
    for (const WCHAR *at = name; *at; at++) {
        if ((at == name || is_slash(at[-1])) && at[0] == L'.' && at[1] == L'.'
            && (!at[2] || is_slash(at[2])))
            return L"the path leads out of the directory; not extracted";
        if (*at < L' ' || *at == L':' || *at == L'*' || *at == L'?' || *at == L'"' || *at == L'<'
            || *at == L'>' || *at == L'|')
            return L"the name is not valid on Windows; not extracted";
    }
    return NULL;
}

/* Returns the path of a member and creates its parent directories. */
static WCHAR *prepare_path(const WCHAR *directory, const WCHAR *name)
{
    WCHAR *path = join_path(directory, name);
    WCHAR *first = path + lstrlenW(path) - lstrlenW(name), *to = first;
    for (const WCHAR *from = name; *from;) {
        SIZE_T size = 0;
        while (from[size] && !is_slash(from[size]))
            size++;
        if (size && !(size == 1 && *from == L'.')) {
            if (to > first) {
                *to = 0;
                CreateDirectoryW(path, NULL);
                *to++ = L'\\';
            }
            memcpy(to, from, size * sizeof(WCHAR));
            to += size;
        }
        from += size + !!from[size];
    }
    *to = 0;
    return path;
}

static BOOL is_directory(const WCHAR *path)
{
    DWORD attributes = GetFileAttributesW(path);
    return attributes != INVALID_FILE_ATTRIBUTES && attributes & FILE_ATTRIBUTE_DIRECTORY;
}

/* Removes an existing file first, so that nothing is written through a link. */
static void remove_existing(const WCHAR *path)
{
    SetFileAttributesW(path, FILE_ATTRIBUTE_NORMAL);
    DeleteFileW(path);
}

static void extract_file(const struct options *options, const struct member *member, WCHAR *path)
{
    const BYTE *data;
    DWORD some, written;
    ULONGLONG left = member->size;
    remove_existing(path);
    HANDLE file = CreateFileW(path, GENERIC_WRITE, 0, NULL, CREATE_NEW, 0, NULL);
    BOOL succeeded = file != INVALID_HANDLE_VALUE;
    for (; succeeded && left && (some = read_some(left, &data)); left -= some)
        succeeded = WriteFile(file, data, some, &written, NULL) && written == some;
    if (!succeeded)
        warn_last_error(member->name);
    if (file == INVALID_HANDLE_VALUE) {
        skip(left);
        return;
    }
    if (!options->now)
        set_time(file, member->time);
    CloseHandle(file);
    if (left || !succeeded)
        DeleteFileW(path);
    if (left && succeeded)
        fail(member->name, L"unexpected end of archive");
    skip(left);
}

static void extract_directory(const struct options *options, const struct member *member, WCHAR *path)
{
    if (!CreateDirectoryW(path, NULL) && !is_directory(path)) {
        warn_last_error(member->name);
    } else if (!options->now) {
        struct dated_directory *one = allocate(sizeof *one);
        *one = (struct dated_directory){dated, concat(path, L"", L""), member->time};
        dated = one;
    }
}

static void extract_hard_link(const struct options *options, const struct member *member, WCHAR *path)
{
    const WCHAR *rejected = rejection(member->target);
    if (rejected) {
        warn(member->name, rejected);
        return;
    }
    WCHAR *target = prepare_path(options->directory, member->target);
    remove_existing(path);
    if (!CreateHardLinkW(path, target, NULL))
        warn_last_error(member->name);
    release(target);
}

static void extract_member(const struct options *options, const struct member *member)
{
    ULONGLONG content = member->kind == A_FILE ? member->size : 0;
    const WCHAR *rejected = rejection(member->name);
    if (rejected) {
        warn(member->name ? member->name : L"a member", rejected);
        skip(member->size);
        skip(padding(member->size));
        return;
    }
    if (options->verbose)
        print(GetStdHandle(STD_ERROR_HANDLE), L"x ", member->name, END_OF_LINE);
    WCHAR *path = prepare_path(options->directory, member->name);
    if (member->kind == A_FILE)
        extract_file(options, member, path);
    else if (member->kind == A_DIRECTORY)
        extract_directory(options, member, path);
    else if (member->kind == A_HARD_LINK)
        extract_hard_link(options, member, path);
    else if (member->kind == A_SYMBOLIC_LINK)
        warn(member->name, L"symbolic links are not supported; skipped");
    else
        warn(member->name, L"unsupported type of member; skipped");
    release(path);
    skip(member->size - content);
    skip(padding(member->size));
}

/* Reports whether a member, or a directory that contains it, was requested. */
static BOOL is_selected(const struct options *options, const WCHAR *name)
{
    BOOL selected = !options->count;
    for (int i = 0; name && i < options->count; i++) {
        int size = lstrlenW(options->operands[i].path);
        while (size && is_slash(options->operands[i].path[size - 1]))
            size--;
        if (lstrlenW(name) >= size && (!name[size] || is_slash(name[size]))
            && CompareStringOrdinal(name, size, options->operands[i].path, size, FALSE)
                == CSTR_EQUAL)
            selected = options->operands[i].found = TRUE;
    }
    return selected;
}

void extract(const struct options *options)
{
    HANDLE output = GetStdHandle(STD_OUTPUT_HANDLE);
    for (struct member member; next_member(&member); release(member.name), release(member.target)) {
        BOOL selected = is_selected(options, member.name);
        if (selected && options->action == L'x') {
            extract_member(options, &member);
            continue;
        }
        if (selected)
            print(output, member.name ? member.name : L"(a name that is not UTF-8)", END_OF_LINE, L"");
        skip(member.size);
        skip(padding(member.size));
    }
    set_directory_times();
    for (int i = 0; i < options->count; i++)
        if (!options->operands[i].found)
            warn(options->operands[i].path, L"not found in archive");
}
