/* Sleeps for the seconds it is told, without a number for ever. Stands for `pause` too. */

#include <stdlib.h>
#include <windows.h>

int main(int count, char **words)
{
    Sleep(count > 1 ? (DWORD)atoi(words[1]) * 1000 : INFINITE);
    return 0;
}
