/* Windows' headers, and what programs without a C library need of one. */

#ifndef WINPOD_WIN_RUNTIME_H
#define WINPOD_WIN_RUNTIME_H

#define WIN32_LEAN_AND_MEAN
#define NOUSER
#define NOGDI
#define _WIN32_WINNT 0x0A00
#include <windows.h>

/* Returns zeroed memory. */
void *allocate(SIZE_T size);
void release(void *memory);

/* Defined by each program. */
_Noreturn void out_of_memory(void);

#endif
