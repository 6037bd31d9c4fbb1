/* Stand-in for cmd.exe with a feature that Wine's lacks: a prompt while stdin is not a console
 * (`cmd /Q`). It is printed after each command only, because a client that attaches does not see
 * the first prompt. It is in C:\, which is searched before System32, and otherwise runs Wine's cmd.
 */

#include <stdio.h>
#include <string.h>
#include <windows.h>

#define ROOM 32768
#define REAL "C:\\Windows\\System32\\cmd.exe"

static int start(char *line)
{
    STARTUPINFOA with = {.cb = sizeof with};
    PROCESS_INFORMATION made;
    if (!CreateProcessA(REAL, line, NULL, NULL, TRUE, 0, NULL, NULL, &with, &made))
        return (int)GetLastError();
    DWORD code = 1;
    WaitForSingleObject(made.hProcess, INFINITE);
    GetExitCodeProcess(made.hProcess, &code);
    return (int)code;
}

static void prompt(void)
{
    char directory[MAX_PATH];
    GetCurrentDirectoryA(sizeof directory, directory);
    printf("\n%s>", directory);
    fflush(stdout);
}

static int interact(void)
{
    char line[ROOM], command[ROOM + 8];
    int code = 0;
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        snprintf(command, sizeof command, "cmd /c %s", line);
        if (*line)
            code = start(command);
        prompt();
    }
    return code;
}

int main(int count, char **words)
{
    DWORD mode;
    if (count == 2 && !_stricmp(words[1], "/Q")
        && !GetConsoleMode(GetStdHandle(STD_INPUT_HANDLE), &mode))
        return interact();
    return start(GetCommandLineA());
}
