/* Stub for Windows programs that the base does not have: prints a message and fails.
 *
 * The message is written into the compiled program, in place of the marker, when a base is built.
 * 9009 is cmd.exe's exit code for an unknown command. Without a C library the program needs only
 * kernel32.
 */

typedef void *HANDLE;
typedef unsigned long DWORD;

__declspec(dllimport) HANDLE __stdcall GetStdHandle(DWORD which);
__declspec(dllimport) int __stdcall WriteFile(HANDLE, const void *, DWORD, DWORD *, void *);
__declspec(dllimport) _Noreturn void __stdcall ExitProcess(unsigned code);

#define STANDARD_ERROR ((DWORD)-12)
#define COMMAND_NOT_FOUND 9009

static const volatile char sentence[512] = "@winpod:sentence@";

void start(void)
{
    DWORD length = 0, written;
    while (length < sizeof sentence && sentence[length])
        length++;
    WriteFile(GetStdHandle(STANDARD_ERROR), (const void *)sentence, length, &written, 0);
    ExitProcess(COMMAND_NOT_FOUND);
}
