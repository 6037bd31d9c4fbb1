/* Sleeps for the given seconds, or forever. Also a stand-in for `pause`. */

#include <stdlib.h>
#include <windows.h>

int main(int count, char **words)
{
    Sleep(count > 1 ? (DWORD)atoi(words[1]) * 1000 : INFINITE);
    return 0;
}
