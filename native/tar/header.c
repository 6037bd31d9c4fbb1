/* Writes the POSIX ustar header of a member, preceded by a pax header for values that do not fit. */

#include "tar.h"

#define MOST_IN_OCTAL 077777777777u
#define MAX_RECORD_EXTRA 32 /* a pax record's length, key and separators */

SIZE_T length(const char *text, SIZE_T most)
{
    SIZE_T size = 0;
    while (size < most && text[size])
        size++;
    return size;
}

BOOL is_empty(const struct header *header)
{
    for (const char *at = (const char *)header; at < (const char *)(header + 1); at++)
        if (*at)
            return FALSE;
    return TRUE;
}

static LONG checksum(const struct header *header)
{
    LONG sum = 0;
    const BYTE *bytes = (const BYTE *)header;
    for (SIZE_T i = 0; i < BLOCK; i++)
        sum += bytes + i >= (const BYTE *)header->sum && bytes + i < (const BYTE *)&header->type
            ? ' ' : bytes[i];
    return sum;
}

BOOL is_header(const struct header *header)
{
    return get_number(header->sum, sizeof header->sum) == checksum(header);
}

/* Octal digits or, with the highest bit set, a big-endian number. */
LONGLONG get_number(const char *field, SIZE_T size)
{
    ULONGLONG number = 0;
    if (*field & 0x80) {
        number = *field & 0x40 ? ~0ull : 0;
        for (SIZE_T i = 0; i < size; i++)
            number = number << 8 | (BYTE)(i ? field[i] : (*field & 0x40 ? *field : *field & 0x3F));
        return (LONGLONG)number;
    }
    while (size && *field == ' ')
        field++, size--;
    for (; size && *field >= '0' && *field <= '7'; field++, size--)
        number = number << 3 | (ULONGLONG)(*field - '0');
    return (LONGLONG)number;
}

static void put_octal(char *field, SIZE_T size, ULONGLONG number)
{
    for (field[--size] = 0; size--; number >>= 3)
        field[size] = (char)('0' + (number & 7));
}

static void put_block(const char *name, char type, ULONGLONG size, LONGLONG time)
{
    struct header header = {.magic = "ustar\0" "0", .type = type};
    header.magic[7] = '0';
    memcpy(header.name, name, length(name, sizeof header.name));
    put_octal(header.mode, sizeof header.mode, type == '5' ? 0755 : 0644);
    put_octal(header.user, sizeof header.user, 0);
    put_octal(header.group, sizeof header.group, 0);
    put_octal(header.size, sizeof header.size, size > MOST_IN_OCTAL ? 0 : size);
    put_octal(header.time, sizeof header.time,
              time < 0 || (ULONGLONG)time > MOST_IN_OCTAL ? 0 : (ULONGLONG)time);
    put_octal(header.sum, sizeof header.sum - 1, (ULONGLONG)checksum(&header));
    header.sum[sizeof header.sum - 1] = ' ';
    write_bytes(&header, sizeof header);
}

static SIZE_T decimal(char *to, ULONGLONG number)
{
    char digits[20];
    SIZE_T count = 0;
    do
        digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    for (SIZE_T i = 0; i < count; i++)
        to[i] = digits[count - 1 - i];
    to[count] = 0;
    return count;
}

/* Formats a pax record "LENGTH key=value\n", where the length includes its own digits. */
static SIZE_T add_record(char *to, const char *key, const char *value)
{
    SIZE_T rest = (SIZE_T)lstrlenA(key) + (SIZE_T)lstrlenA(value) + 3, digits = 1;
    char *at = to;
    while (decimal(to, rest + digits) > digits)
        digits++;
    at += digits;
    *at++ = ' ';
    lstrcpyA(at, key);
    lstrcatA(at, "=");
    lstrcatA(at, value);
    lstrcatA(at, "\n");
    return rest + digits;
}

static BOOL is_plain(const char *name)
{
    SIZE_T size = 0;
    while (name[size] > 0)
        size++;
    return !name[size] && size <= sizeof((struct header *)0)->name;
}

void put_header(const char *name, char type, ULONGLONG size, LONGLONG time)
{
    static const BYTE nothing[BLOCK];
    char number[21];
    char *records = allocate((SIZE_T)lstrlenA(name) + 2 * MAX_RECORD_EXTRA);
    SIZE_T used = is_plain(name) ? 0 : add_record(records, "path", name);
    if (size > MOST_IN_OCTAL) {
        decimal(number, size);
        used += add_record(records + used, "size", number);
    }
    if (used) {
        put_block("PaxHeader", 'x', used, time);
        write_bytes(records, (DWORD)used);
        write_bytes(nothing, (DWORD)padding(used));
    }
    release(records);
    put_block(name, type, size, time);
}
