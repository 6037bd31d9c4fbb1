/* Holds a file open without sharing it, until it is killed. */

#include "stand_in.h"

int wmain(int count, wchar_t **words)
{
    HANDLE file = count != 2 ? INVALID_HANDLE_VALUE
        : CreateFileW(words[1], GENERIC_READ, 0, NULL, OPEN_EXISTING, 0, NULL);
    if (file == INVALID_HANDLE_VALUE)
        return (int)GetLastError();
    say(L"held\r\n");
    Sleep(INFINITE);
    return 0;
}
