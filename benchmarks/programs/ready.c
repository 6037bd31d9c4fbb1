/* Minimal Windows program of a pod: prints a line, and runs until it is stopped. */
#include <windows.h>

int main(void)
{
    DWORD written;
    WriteFile(GetStdHandle(STD_OUTPUT_HANDLE), "ready\r\n", 7, &written, NULL);
    Sleep(INFINITE);
    return 0;
}
