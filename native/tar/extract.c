/* Extracts or lists an archive.
 *
 * Nothing is written outside of the directory: absolute names and names with ".." or a drive are
 * refused, and no symbolic links are created that later members could be written through.
 */

#include "tar.h"

/* Times of directories are set last, because writing into a directory changes its time. */
struct dated {
    struct dated *next;
    WCHAR *path;
    LONGLONG time;
};

static struct dated *dated;

static void set_time(HANDLE file, LONGLONG time)
{
    LONGLONG since = min(max(time, -TO_1970), MAXLONGLONG / PER_SECOND - TO_1970) + TO_1970;
    ULARGE_INTEGER stamp = {.QuadPart = (ULONGLONG)(since * PER_SECOND)};
    FILETIME written = {stamp.LowPart, stamp.HighPart};
    SetFileTime(file, NULL, NULL, &written);
}

static void date_directories(void)
{
    for (struct dated *one = dated; one; one = one->next) {
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
static const WCHAR *refusal(const WCHAR *name)
{
    if (!name)
        return L"its name is not UTF-8, so it is not extracted";
    if (is_slash(name[0]) || (name[0] && name[1] == L':'))
        return L"it names a place outside the directory, so it is not extracted";
    for (const WCHAR *at = name; *at; at++) {
        if ((at == name || is_slash(at[-1])) && at[0] == L'.' && at[1] == L'.'
            && (!at[2] || is_slash(at[2])))
            return L"it leads out of the directory, so it is not extracted";
        if (*at < L' ' || *at == L':' || *at == L'*' || *at == L'?' || *at == L'"' || *at == L'<'
            || *at == L'>' || *at == L'|')
            return L"Windows has no such names, so it is not extracted";
    }
    return NULL;
}

/* Returns the path of a member and creates its parent directories. */
static WCHAR *place_of(const WCHAR *directory, const WCHAR *name)
{
    WCHAR *path = below(directory, name);
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
static void clear_place(const WCHAR *path)
{
    SetFileAttributesW(path, FILE_ATTRIBUTE_NORMAL);
    DeleteFileW(path);
}

static void extract_file(const struct options *options, const struct entry *entry, WCHAR *path)
{
    const BYTE *data;
    DWORD some, written;
    ULONGLONG left = entry->size;
    clear_place(path);
    HANDLE file = CreateFileW(path, GENERIC_WRITE, 0, NULL, CREATE_NEW, 0, NULL);
    BOOL well = file != INVALID_HANDLE_VALUE;
    for (; well && left && (some = take_some(left, &data)); left -= some)
        well = WriteFile(file, data, some, &written, NULL) && written == some;
    if (!well)
        warn_of_error(entry->name);
    if (file == INVALID_HANDLE_VALUE) {
        skip(left);
        return;
    }
    if (!options->now)
        set_time(file, entry->time);
    CloseHandle(file);
    if (left || !well)
        DeleteFileW(path);
    if (left && well)
        give_up(entry->name, L"the archive ends in the middle of it");
    skip(left);
}

static void extract_directory(const struct options *options, const struct entry *entry, WCHAR *path)
{
    if (!CreateDirectoryW(path, NULL) && !is_directory(path)) {
        warn_of_error(entry->name);
    } else if (!options->now) {
        struct dated *one = allocate(sizeof *one);
        *one = (struct dated){dated, joined(path, L"", L""), entry->time};
        dated = one;
    }
}

static void extract_hard_link(const struct options *options, const struct entry *entry, WCHAR *path)
{
    const WCHAR *refused = refusal(entry->target);
    if (refused) {
        warn(entry->name, refused);
        return;
    }
    WCHAR *target = place_of(options->directory, entry->target);
    clear_place(path);
    if (!CreateHardLinkW(path, target, NULL))
        warn_of_error(entry->name);
    release(target);
}

static void extract_entry(const struct options *options, const struct entry *entry)
{
    ULONGLONG content = entry->kind == A_FILE ? entry->size : 0;
    const WCHAR *refused = refusal(entry->name);
    if (refused) {
        warn(entry->name ? entry->name : L"a member", refused);
        skip(entry->size);
        skip(padding(entry->size));
        return;
    }
    if (options->verbose)
        say(GetStdHandle(STD_ERROR_HANDLE), L"x ", entry->name, END_OF_LINE);
    WCHAR *path = place_of(options->directory, entry->name);
    if (entry->kind == A_FILE)
        extract_file(options, entry, path);
    else if (entry->kind == A_DIRECTORY)
        extract_directory(options, entry, path);
    else if (entry->kind == A_HARD_LINK)
        extract_hard_link(options, entry, path);
    else if (entry->kind == A_SYMBOLIC_LINK)
        warn(entry->name, L"it is a symbolic link, which this Windows has not; it is left out");
    else
        warn(entry->name, L"it is no file and no directory, or a sparse one; it is left out");
    release(path);
    skip(entry->size - content);
    skip(padding(entry->size));
}

/* Reports whether a member, or a directory that contains it, was requested. */
static BOOL is_wanted(const struct options *options, const WCHAR *name)
{
    BOOL wanted = !options->many;
    for (int i = 0; name && i < options->many; i++) {
        int size = lstrlenW(options->operands[i].path);
        while (size && is_slash(options->operands[i].path[size - 1]))
            size--;
        if (lstrlenW(name) >= size && (!name[size] || is_slash(name[size]))
            && CompareStringOrdinal(name, size, options->operands[i].path, size, FALSE)
                == CSTR_EQUAL)
            wanted = options->operands[i].found = TRUE;
    }
    return wanted;
}

void extract(const struct options *options)
{
    HANDLE output = GetStdHandle(STD_OUTPUT_HANDLE);
    for (struct entry entry; next_entry(&entry); release(entry.name), release(entry.target)) {
        BOOL wanted = is_wanted(options, entry.name);
        if (wanted && options->action == L'x') {
            extract_entry(options, &entry);
            continue;
        }
        if (wanted)
            say(output, entry.name ? entry.name : L"(a name that is not UTF-8)", END_OF_LINE, L"");
        skip(entry.size);
        skip(padding(entry.size));
    }
    date_directories();
    for (int i = 0; i < options->many; i++)
        if (!options->operands[i].found)
            warn(options->operands[i].path, L"it is not in the archive");
}
