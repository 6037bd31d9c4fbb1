/* Stub for Windows programs that the base does not have: prints a message and fails.
 *
 * The message is written into the compiled program, in place of the marker, when a base is built.
 * 9009 is cmd.exe's exit code for an unknown command. Without a C library the program needs only
 * kernel32.
 */

#include "win_runtime.h"

#define COMMAND_NOT_FOUND 9009

static const volatile char message[512] = "@winpod:sentence@";

void start(void)
{
    DWORD length = 0, written;
    while (length < sizeof message && message[length])
        length++;
    WriteFile(GetStdHandle(STD_ERROR_HANDLE), (const void *)message, length, &written, NULL);
    ExitProcess(COMMAND_NOT_FOUND);
}
