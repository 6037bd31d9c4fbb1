/* Stands where Windows has a program that the base has not: says so and fails.
 *
 * The sentence is written into the finished program, in place of the mark, when a base is built.
 * 9009 is the exit code that cmd.exe has for a command that it cannot find. No C library: the
 * program needs nothing but kernel32, and starts in any Windows.
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
