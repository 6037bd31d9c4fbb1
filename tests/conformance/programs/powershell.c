/* Stand-in for PowerShell, with only the features that critest's specs use.
 *
 * `-c SCRIPT`, statements with `;` between them: while($true) { ... }, echo, sleep, ls, exit,
 * $env:NAME, get-process | findstr WORD, and programs by name. A separate process, sleep.exe,
 * sleeps, so that `get-process | findstr sleep` finds processes that an exec has left behind.
 */

#include <stdio.h>
#include <string.h>
#include <windows.h>
#include <tlhelp32.h>

#define ROOM 32768

static int last;

static void say(const char *text)
{
    char line[ROOM];
    DWORD length = (DWORD)snprintf(line, sizeof line, "%s\r\n", text), written;
    WriteFile(GetStdHandle(STD_OUTPUT_HANDLE), line, length, &written, NULL);
}

static void start(char *line)
{
    STARTUPINFOA with = {.cb = sizeof with};
    PROCESS_INFORMATION made;
    if (!CreateProcessA(NULL, line, NULL, NULL, TRUE, 0, NULL, NULL, &with, &made)) {
        fprintf(stderr, "powershell (stand-in): '%s' is neither known nor a program\n", line);
        last = 1;
        return;
    }
    DWORD code = 1;
    WaitForSingleObject(made.hProcess, INFINITE);
    GetExitCodeProcess(made.hProcess, &code);
    last = (int)code;
}

static void list_files(const char *directory)
{
    char pattern[ROOM];
    WIN32_FIND_DATAA found;
    snprintf(pattern, sizeof pattern, "%s\\*", directory);
    HANDLE search = FindFirstFileA(pattern, &found);
    if (search == INVALID_HANDLE_VALUE) {
        fprintf(stderr, "ls: cannot find '%s'\n", directory);
        last = 1;
        return;
    }
    do
        if (strcmp(found.cFileName, ".") && strcmp(found.cFileName, ".."))
            say(found.cFileName);
    while (FindNextFileA(search, &found));
}

static void list_processes(const char *word)
{
    PROCESSENTRY32 entry = {.dwSize = sizeof entry};
    HANDLE all = CreateToolhelp32Snapshot(TH32CS_SNAPPROCESS, 0);
    for (BOOL more = Process32First(all, &entry); more; more = Process32Next(all, &entry))
        if (strstr(entry.szExeFile, word))
            say(entry.szExeFile);
}

/* Returns the text after a word at the beginning of a statement, or NULL. */
static char *after(char *statement, const char *word)
{
    size_t length = strlen(word);
    return _strnicmp(statement, word, length) ? NULL : statement + length;
}

static char *trimmed(char *text)
{
    while (*text == ' ')
        text++;
    for (char *end = text + strlen(text); end > text && end[-1] == ' ';)
        *--end = 0;
    return text;
}

static char *unquoted(char *text)
{
    size_t length = strlen(text);
    if (length > 1 && *text == '\'' && text[length - 1] == '\'') {
        text[length - 1] = 0;
        return text + 1;
    }
    return text;
}

static void run(char *script);

static void run_statement(char *statement)
{
    char copy[ROOM], *rest;
    if (!*statement)
        return;
    if ((rest = after(statement, "while($true) {"))) {
        for (;;) {
            snprintf(copy, sizeof copy, "%.*s", (int)strlen(rest) - 1, rest);
            run(copy);
        }
    }
    if ((rest = after(statement, "echo "))) {
        say(unquoted(trimmed(rest)));
    } else if ((rest = after(statement, "start-sleep ")) || (rest = after(statement, "sleep "))) {
        snprintf(copy, sizeof copy, "C:\\sleep.exe %s", rest);
        start(copy);
    } else if ((rest = after(statement, "get-process | findstr "))) {
        list_processes(rest);
    } else if ((rest = after(statement, "exit "))) {
        ExitProcess((UINT)atoi(rest));
    } else if ((rest = after(statement, "ls "))) {
        list_files(trimmed(rest));
    } else if ((rest = after(statement, "$env:"))) {
        if (GetEnvironmentVariableA(rest, copy, sizeof copy))
            say(copy);
    } else {
        start(statement);
    }
}

/* Runs the statements; a block in braces is part of one statement. */
static void run(char *script)
{
    int depth = 0;
    char *begin = script;
    for (char *at = script;; at++) {
        depth += (*at == '{') - (*at == '}');
        if (*at && (*at != ';' || depth))
            continue;
        BOOL ends = !*at;
        *at = 0;
        run_statement(trimmed(begin));
        if (ends)
            return;
        begin = at + 1;
    }
}

int main(int count, char **words)
{
    char script[ROOM] = "";
    if (count < 3 || (_stricmp(words[1], "-c") && _stricmp(words[1], "/c"))) {
        fprintf(stderr, "powershell (stand-in): only -c SCRIPT is known\n");
        return 1;
    }
    for (int i = 2; i < count; i++)
        snprintf(script + strlen(script), sizeof script - strlen(script), "%s%s",
                 i > 2 ? " " : "", words[i]);
    run(script);
    return last;
}
