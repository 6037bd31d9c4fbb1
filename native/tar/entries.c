/* Reads members of an archive: ustar, with the pax and GNU extension headers for names, targets,
 * sizes and times that do not fit. */

#include "tar.h"

#define UNKNOWN_TIME MINLONGLONG

/* Magic numbers of gzip, bzip2, xz and zstd. */
static const char *const compressed[] = {"\x1f\x8b", "BZh", "\3757zXZ", "\x28\xb5\x2f\xfd"};

/* Values from the extension headers of a member. */
struct before {
    char *name, *target;
    SIZE_T name_size, target_size;
    ULONGLONG size;
    LONGLONG time;
    BOOL has_size, sparse;
};

static char *take_note(ULONGLONG size)
{
    if (size > MAX_NOTE)
        give_up(L"the archive", L"what it says of a member is larger than it may be");
    char *text = allocate((SIZE_T)size + 1);
    if (take(text, (DWORD)size) != size)
        give_up(L"the archive", L"it ends too early");
    skip(padding(size));
    return text;
}

static BOOL begins(const char *text, SIZE_T size, const char *with)
{
    SIZE_T i = 0;
    while (with[i] && i < size && text[i] == with[i])
        i++;
    return !with[i];
}

static LONGLONG read_decimal(const char *text, SIZE_T size)
{
    BOOL negative = size && *text == '-';
    LONGLONG number = 0;
    for (SIZE_T i = negative; i < size && text[i] >= '0' && text[i] <= '9'; i++)
        number = number < MAXLONGLONG / 10 - 1 ? number * 10 + (text[i] - '0') : number;
    return negative ? -number : number;
}

static void keep(char **place, SIZE_T *place_size, const char *text, SIZE_T size)
{
    release(*place);
    *place = allocate(size + 1);
    memcpy(*place, text, *place_size = size);
}

static void take_record(struct before *before, const char *text, SIZE_T size)
{
    if (begins(text, size, "path="))
        keep(&before->name, &before->name_size, text + 5, size - 5);
    else if (begins(text, size, "linkpath="))
        keep(&before->target, &before->target_size, text + 9, size - 9);
    else if (begins(text, size, "mtime="))
        before->time = read_decimal(text + 6, size - 6);
    else if (begins(text, size, "GNU.sparse."))
        before->sparse = TRUE;
    else if (begins(text, size, "size=")) {
        before->size = (ULONGLONG)read_decimal(text + 5, size - 5);
        before->has_size = TRUE;
    }
}

/* Parses a sequence of pax records "LENGTH key=value\n". */
static void take_records(struct before *before, const char *text, SIZE_T size)
{
    while (size) {
        SIZE_T whole = (SIZE_T)read_decimal(text, size), digits = 0;
        while (digits < size && text[digits] != ' ')
            digits++;
        if (whole > size || whole < digits + 2 || text[whole - 1] != '\n')
            give_up(L"the archive", L"what it says of a member cannot be read");
        take_record(before, text + digits + 1, whole - digits - 2);
        text += whole;
        size -= whole;
    }
}

/* Handles an extension header. Returns FALSE if the header is a member. */
static BOOL took_note(struct before *before, const struct header *header, ULONGLONG size)
{
    char type = header->type, *text;
    if (type != 'x' && type != 'g' && type != 'L' && type != 'K')
        return FALSE;
    text = take_note(size);
    if (type == 'x')
        take_records(before, text, (SIZE_T)size);
    else if (type == 'L')
        keep(&before->name, &before->name_size, text, length(text, (SIZE_T)size));
    else if (type == 'K')
        keep(&before->target, &before->target_size, text, length(text, (SIZE_T)size));
    release(text);
    return TRUE;
}

static enum kind kind_of(const struct header *header, const struct before *before)
{
    const WCHAR *kinds = L"\0" L"07" L"5" L"1" L"2";
    enum kind known[] = {A_FILE, A_FILE, A_FILE, A_DIRECTORY, A_HARD_LINK, A_SYMBOLIC_LINK};
    for (SIZE_T i = 0; i < ARRAYSIZE(known) && !before->sparse; i++)
        if (kinds[i] == (WCHAR)header->type)
            return known[i];
    return ANOTHER;
}

static void take_names(struct entry *entry, struct before *before, const struct header *header)
{
    char name[sizeof header->prefix + 1 + sizeof header->name];
    SIZE_T size = 0;
    if (!before->name) {
        if (length(header->magic, 6) == 5 && begins(header->magic, 5, "ustar")) {
            size = length(header->prefix, sizeof header->prefix);
            memcpy(name, header->prefix, size);
            if (size)
                name[size++] = '/';
        }
        SIZE_T more = length(header->name, sizeof header->name);
        memcpy(name + size, header->name, more);
        keep(&before->name, &before->name_size, name, size + more);
    }
    if (!before->target)
        keep(&before->target, &before->target_size, header->target,
             length(header->target, sizeof header->target));
    if (entry->kind == A_FILE && before->name_size && before->name[before->name_size - 1] == '/')
        entry->kind = A_DIRECTORY; /* as in V7 archives */
    entry->name = to_utf16(before->name, before->name_size);
    entry->target = to_utf16(before->target, before->target_size);
    release(before->name);
    release(before->target);
}

static BOOL next_header(struct header *header)
{
    static BOOL any;
    DWORD size = take(header, sizeof *header);
    if (!size && any)
        return FALSE; /* some archives have no end marker */
    if (!size)
        give_up(L"the archive", L"it is empty");
    for (SIZE_T i = 0; i < ARRAYSIZE(compressed); i++)
        if (begins((char *)header, size, compressed[i]))
            give_up(L"the archive", L"it is compressed, and winpod's tar does not decompress");
    if (size < sizeof *header && any)
        give_up(L"the archive", L"it ends too early");
    if (size < sizeof *header || (!is_empty(header) && !is_header(header)))
        give_up(L"the archive", any ? L"it is damaged" : L"it is no tar archive");
    any = TRUE;
    return !is_empty(header);
}

/* Reads the header of the next member; its content follows in the archive. FALSE after the last.
 * A name that is not UTF-8 becomes NULL. */
BOOL next_entry(struct entry *entry)
{
    struct header header;
    struct before before = {.time = UNKNOWN_TIME};
    ULONGLONG size;
    do {
        if (!next_header(&header))
            return FALSE;
        size = (ULONGLONG)get_number(header.size, sizeof header.size);
    } while (took_note(&before, &header, size));
    *entry = (struct entry){.kind = kind_of(&header, &before)};
    entry->size = before.has_size ? before.size : size;
    entry->time = before.time == UNKNOWN_TIME ? get_number(header.time, sizeof header.time)
                                              : before.time;
    if (entry->size > MAXLONGLONG - BLOCK)
        give_up(L"the archive", L"it is damaged");
    if (entry->kind == A_HARD_LINK || entry->kind == A_SYMBOLIC_LINK)
        entry->size = 0;
    take_names(entry, &before, &header);
    return TRUE;
}
