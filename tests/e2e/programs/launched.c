/* Program of the launcher tests; the first argument selects its behaviour. */

#include <io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

static int flood(long megabytes)
{
    static char block[65536];
    memset(block, 'x', sizeof block);
    _setmode(1, 0x8000);
    for (long i = 0; i < megabytes * 16; i++)
        if (fwrite(block, 1, sizeof block, stdout) != sizeof block)
            return 1;
    fflush(stdout);
    fputs("flooded\n", stderr);
    return 0;
}

static int crash(void)
{
    *(volatile int *)1 = 0;
    return 0;
}

/* Starts a child and a grandchild; all run forever. */
static int family(const char *self, int generations)
{
    if (generations > 1) {
        char line[MAX_PATH];
        STARTUPINFOA with = {.cb = sizeof with};
        PROCESS_INFORMATION made;
        snprintf(line, sizeof line, "%s family %d", self, generations - 1);
        if (!CreateProcessA(NULL, line, NULL, NULL, TRUE, 0, NULL, NULL, &with, &made))
            return 1;
    }
    printf("generation %d\n", generations);
    fflush(stdout);
    Sleep(INFINITE);
    return 0;
}

/* Prints the size of its console until it is 132 columns wide. */
static int size(void)
{
    HANDLE screen = GetStdHandle(STD_OUTPUT_HANDLE), keys = GetStdHandle(STD_INPUT_HANDLE);
    DWORD mode;
    CONSOLE_SCREEN_BUFFER_INFO now;
    printf("console %d %d\n", GetConsoleMode(keys, &mode), GetConsoleMode(screen, &mode));
    for (int width = 0, height = 0; width != 132; Sleep(20)) {
        if (!GetConsoleScreenBufferInfo(screen, &now))
            return 1;
        int wide = now.srWindow.Right - now.srWindow.Left + 1;
        int high = now.srWindow.Bottom - now.srWindow.Top + 1;
        if (wide != width || high != height)
            printf("size %d %d\n", wide, high);
        fflush(stdout);
        width = wide;
        height = high;
    }
    return 42;
}

static BOOL WINAPI stubborn(DWORD event)
{
    printf("event %lu\n", event);
    fflush(stdout);
    return TRUE;
}

int main(int count, char **words)
{
    const char *word = count > 1 ? words[1] : "";
    if (!strcmp(word, "flood"))
        return flood(atol(words[2]));
    if (!strcmp(word, "crash"))
        return crash();
    if (!strcmp(word, "family"))
        return family(words[0], atoi(words[2]));
    if (!strcmp(word, "size"))
        return size();
    if (!strcmp(word, "line"))
        return puts(GetCommandLineA()) < 0;
    if (!strcmp(word, "stubborn")) {
        SetConsoleCtrlHandler(stubborn, TRUE);
        puts("waiting");
        fflush(stdout);
        Sleep(INFINITE);
    }
    if (!strcmp(word, "sleep")) {
        puts("waiting");
        fflush(stdout);
        Sleep(INFINITE);
    }
    return 1;
}
