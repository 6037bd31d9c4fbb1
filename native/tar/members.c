/* Reads members of an archive: ustar, with the pax and GNU extension headers for names, targets,
 * sizes and times that do not fit. */

#include "tar.h"

#define UNKNOWN_TIME MINLONGLONG

/* Magic numbers of gzip, bzip2, xz and zstd. */
static const char *const compressed[] = {"\x1f\x8b", "BZh", "\3757zXZ", "\x28\xb5\x2f\xfd"};

/* Values from the extension headers of a member. */
struct extension {
    char *name, *target;
    SIZE_T name_size, target_size;
    ULONGLONG size;
    LONGLONG time;
    BOOL has_size, sparse;
};

static char *read_extension(ULONGLONG size)
{
    if (size > MAX_EXTENSION)
        fail(L"the archive", L"an extension header is too large");
    char *text = allocate((SIZE_T)size + 1);
    if (read_bytes(text, (DWORD)size) != size)
        fail(L"the archive", L"unexpected end of archive");
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

static void replace_text(char **place, SIZE_T *place_size, const char *text, SIZE_T size)
{
    release(*place);
    *place = allocate(size + 1);
    memcpy(*place, text, *place_size = size);
}

static void parse_record(struct extension *extension, const char *text, SIZE_T size)
{
    if (begins(text, size, "path="))
        replace_text(&extension->name, &extension->name_size, text + 5, size - 5);
    else if (begins(text, size, "linkpath="))
        replace_text(&extension->target, &extension->target_size, text + 9, size - 9);
    else if (begins(text, size, "mtime="))
        extension->time = read_decimal(text + 6, size - 6);
    else if (begins(text, size, "GNU.sparse."))
        extension->sparse = TRUE;
    else if (begins(text, size, "size=")) {
        extension->size = (ULONGLONG)read_decimal(text + 5, size - 5);
        extension->has_size = TRUE;
    }
}

/* Parses a sequence of pax records "LENGTH key=value\n". */
static void parse_records(struct extension *extension, const char *text, SIZE_T size)
{
    while (size) {
        SIZE_T whole = (SIZE_T)read_decimal(text, size), digits = 0;
        while (digits < size && text[digits] != ' ')
            digits++;
        if (whole > size || whole < digits + 2 || text[whole - 1] != '\n')
            fail(L"the archive", L"an extension header is invalid");
        parse_record(extension, text + digits + 1, whole - digits - 2);
        text += whole;
        size -= whole;
    }
}

/* Handles an extension header. Returns FALSE if the header is a member. */
static BOOL handle_extension(struct extension *extension, const struct header *header, ULONGLONG size)
{
    char type = header->type, *text;
    if (type != 'x' && type != 'g' && type != 'L' && type != 'K')
        return FALSE;
    text = read_extension(size);
    if (type == 'x')
        parse_records(extension, text, (SIZE_T)size);
    else if (type == 'L')
        replace_text(&extension->name, &extension->name_size, text, length(text, (SIZE_T)size));
    else if (type == 'K')
        replace_text(&extension->target, &extension->target_size, text, length(text, (SIZE_T)size));
    release(text);
    return TRUE;
}

static enum kind kind_of(const struct header *header, const struct extension *extension)
{
    const WCHAR *kinds = L"\0" L"07" L"5" L"1" L"2";
    enum kind known[] = {A_FILE, A_FILE, A_FILE, A_DIRECTORY, A_HARD_LINK, A_SYMBOLIC_LINK};
    for (SIZE_T i = 0; i < ARRAYSIZE(known) && !extension->sparse; i++)
        if (kinds[i] == (WCHAR)header->type)
            return known[i];
    return ANOTHER;
}

static void decode_names(struct member *member, struct extension *extension,
                         const struct header *header)
{
    char name[sizeof header->prefix + 1 + sizeof header->name];
    SIZE_T size = 0;
    if (!extension->name) {
        if (length(header->magic, 6) == 5 && begins(header->magic, 5, "ustar")) {
            size = length(header->prefix, sizeof header->prefix);
            memcpy(name, header->prefix, size);
            if (size)
                name[size++] = '/';
        }
        SIZE_T more = length(header->name, sizeof header->name);
        memcpy(name + size, header->name, more);
        replace_text(&extension->name, &extension->name_size, name, size + more);
    }
    if (!extension->target)
        replace_text(&extension->target, &extension->target_size, header->target,
             length(header->target, sizeof header->target));
    if (member->kind == A_FILE && extension->name_size
        && extension->name[extension->name_size - 1] == '/')
        member->kind = A_DIRECTORY; /* as in V7 archives */
    member->name = to_utf16(extension->name, extension->name_size);
    member->target = to_utf16(extension->target, extension->target_size);
    release(extension->name);
    release(extension->target);
}

static BOOL next_header(struct header *header)
{
    static BOOL any;
    DWORD size = read_bytes(header, sizeof *header);
    if (!size && any)
        return FALSE; /* some archives have no end marker */
    if (!size)
        fail(L"the archive", L"it is empty");
    for (SIZE_T i = 0; i < ARRAYSIZE(compressed); i++)
        if (begins((char *)header, size, compressed[i]))
            fail(L"the archive", L"it is compressed, and winpod's tar does not decompress");
    if (size < sizeof *header && any)
        fail(L"the archive", L"unexpected end of archive");
    if (size < sizeof *header || (!is_empty(header) && !is_header(header)))
        fail(L"the archive", any ? L"it is damaged" : L"it is not a tar archive");
    any = TRUE;
    return !is_empty(header);
}

/* Reads the header of the next member; its content follows in the archive. FALSE after the last.
 * A name that is not UTF-8 becomes NULL. */
BOOL next_member(struct member *member)
{
    struct header header;
    struct extension extension = {.time = UNKNOWN_TIME};
    ULONGLONG size;
    do {
        if (!next_header(&header))
            return FALSE;
        size = (ULONGLONG)get_number(header.size, sizeof header.size);
    } while (handle_extension(&extension, &header, size));
    *member = (struct member){.kind = kind_of(&header, &extension)};
    member->size = extension.has_size ? extension.size : size;
    member->time = extension.time == UNKNOWN_TIME ? get_number(header.time, sizeof header.time)
                                                  : extension.time;
    if (member->size > MAXLONGLONG - BLOCK)
        fail(L"the archive", L"it is damaged");
    if (member->kind == A_HARD_LINK || member->kind == A_SYMBOLIC_LINK)
        member->size = 0;
    decode_names(member, &extension, &header);
    return TRUE;
}
