/* Makes one system call under the seccomp filter of a silo in a microVM, and exits with its errno, or 0.
 *
 *     filtered BITS ABI NUMBER ARGUMENT      (ABI: 64, or 32 for the calls of 32-bit programs)
 */

#define _GNU_SOURCE
#include "wguest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static long call_as_32bit(long number, long argument)
{
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(argument), "c"(0), "d"(0) : "memory");
    return result;
}

static long call_as_64bit(long number, long argument)
{
    long result = syscall(number, argument, 0, 0, 0, 0);
    return result < 0 ? -errno : result;
}

int main(int count, char **words)
{
    if (count != 5 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || install_seccomp_filter(!strcmp(words[1], "32")))
        return 99;
    long number = strtol(words[3], NULL, 0), argument = strtol(words[4], NULL, 0);
    long result = (strcmp(words[2], "32") ? call_as_64bit : call_as_32bit)(number, argument);
    _exit(result < 0 ? (int)-result : 0);
}
