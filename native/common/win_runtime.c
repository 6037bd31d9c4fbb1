/* See win_runtime.h. */

#include "win_runtime.h"

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
        out_of_memory();
    return memory;
}

void release(void *memory)
{
    HeapFree(GetProcessHeap(), 0, memory);
}
