/* Bounds-checked reading of a frame's payload, which is not trusted. */

#include "wagent.h"

const BYTE *bytes(struct reader *reader, DWORD size)
{
    const BYTE *at = reader->at;
    if (reader->bad || size > (DWORD)(reader->end - at)) {
        reader->bad = TRUE;
        return (const BYTE *)"\0\0\0\0";
    }
    reader->at += size;
    return at;
}

/* Returns a copy of a text, always terminated; NULL if the payload is invalid. */
WCHAR *text(struct reader *reader, DWORD most)
{
    DWORD units = get32(bytes(reader, 4));
    if (reader->bad || !units || units > most) {
        reader->bad = TRUE;
        return NULL;
    }
    const BYTE *from = bytes(reader, units * sizeof(WCHAR));
    if (reader->bad)
        return NULL;
    WCHAR *copy = allocate((units + 1) * sizeof(WCHAR));
    CopyMemory(copy, from, units * sizeof(WCHAR));
    reader->bad = copy[units - 1] != 0;
    return copy;
}

TEXT_VIEW view(WCHAR *from, SIZE_T units)
{
    return (TEXT_VIEW){(USHORT)(units * sizeof(WCHAR)), (USHORT)(units * sizeof(WCHAR)), from};
}
