/* The smallest of Windows programs that a pod might run: says a line, and stays until it is stopped. */
#include <windows.h>

int main(void)
{
    DWORD written;
    WriteFile(GetStdHandle(STD_OUTPUT_HANDLE), "ready\r\n", 7, &written, NULL);
    Sleep(INFINITE);
    return 0;
}
