/* Attacks on other containers and the host, selected by the first argument.
 *
 * `ticks CODE` is the harmless one: it writes a line every 20 ms until C:\data\go exists.
 */

#include <process.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

static void say(const char *text)
{
    puts(text);
    fflush(stdout);
}

static int ticks(const char *code)
{
    say("begun");
    for (int i = 1; GetFileAttributesA("C:\\data\\go") == INVALID_FILE_ATTRIBUTES; i++) {
        printf("tick %d\n", i);
        fflush(stdout);
        Sleep(20);
    }
    say("ended");
    ExitProcess(strtoul(code, NULL, 0));
}

static BOOL start(const char *self, const char *word, HANDLE *started)
{
    char line[MAX_PATH];
    STARTUPINFOA with = {.cb = sizeof with};
    PROCESS_INFORMATION made;
    snprintf(line, sizeof line, "%s %s", self, word);
    if (!CreateProcessA(NULL, line, NULL, NULL, TRUE, 0, NULL, NULL, &with, &made))
        return FALSE;
    CloseHandle(made.hThread);
    *started = made.hProcess;
    return TRUE;
}

/* Fork bomb: every child does the same, and retries when no process can be created. */
static int forks(const char *self)
{
    HANDLE child;
    for (;;) {
        if (start(self, "forks", &child))
            CloseHandle(child);
        else
            Sleep(50);
    }
}

/* Creates idle children until no more can be created. */
static int children(const char *self)
{
    int made = 0;
    HANDLE child;
    while (start(self, "stays", &child))
        made++;
    printf("%d children\n", made);
    say("no more");
    Sleep(INFINITE);
    return 0;
}

static unsigned __stdcall sleep_for_ever(void *unused)
{
    (void)unused;
    Sleep(INFINITE);
    return 0;
}

static int threads(void)
{
    int made = 0;
    while (_beginthreadex(NULL, 65536, sleep_for_ever, NULL, 0, NULL))
        made++;
    printf("%d threads\n", made);
    say("no more");
    Sleep(INFINITE);
    return 0;
}

static int handles(void)
{
    int made = 0;
    while (made < 2000000 && CreateEventA(NULL, FALSE, FALSE, NULL))
        made++;
    printf("%d handles\n", made);
    say("no more");
    return 0;
}

static int memory(void)
{
    const size_t block = 4 << 20;
    for (;;) {
        char *more = VirtualAlloc(NULL, block, MEM_COMMIT | MEM_RESERVE, PAGE_READWRITE);
        if (!more) {
            say("no more");
            return 3;
        }
        memset(more, 1, block);
    }
}

static int disk(void)
{
    static char block[1 << 20];
    memset(block, 'x', sizeof block);
    HANDLE file = CreateFileA("C:\\big", GENERIC_WRITE, 0, NULL, CREATE_ALWAYS, 0, NULL);
    DWORD written = 0;
    int megabytes = 0;
    while (WriteFile(file, block, sizeof block, &written, NULL) && written == sizeof block)
        megabytes++;
    printf("error %lu after %d MiB\n", GetLastError(), megabytes);
    fflush(stdout);
    return 0;
}

static int flood(void)
{
    static char block[65536];
    for (size_t i = 0; i < sizeof block; i++)
        block[i] = i % 100 == 99 ? '\n' : 'x';
    while (fwrite(block, 1, sizeof block, stdout) == sizeof block)
        ;
    return 1;
}

static BOOL WINAPI ignore(DWORD event)
{
    printf("event %lu\n", event);
    fflush(stdout);
    Sleep(INFINITE);
    return TRUE;
}

/* Exits at once, while a grandchild keeps its output open. */
static int leaves(const char *self, const char *word)
{
    HANDLE child;
    if (!strcmp(word, "leaves") && !start(self, "leaves-more", &child))
        return 1;
    if (!strcmp(word, "leaves-more") && !start(self, "stays", &child))
        return 1;
    if (!strcmp(word, "leaves"))
        WaitForSingleObject(child, INFINITE);
    say(word);
    return 0;
}

int main(int count, char **words)
{
    const char *word = count > 1 ? words[1] : "";
    if (!strcmp(word, "ticks"))
        return ticks(count > 2 ? words[2] : "0");
    if (!strcmp(word, "forks"))
        return forks(words[0]);
    if (!strcmp(word, "children"))
        return children(words[0]);
    if (!strcmp(word, "threads"))
        return threads();
    if (!strcmp(word, "handles"))
        return handles();
    if (!strcmp(word, "memory"))
        return memory();
    if (!strcmp(word, "disk"))
        return disk();
    if (!strcmp(word, "flood"))
        return flood();
    if (!strncmp(word, "leaves", 6))
        return leaves(words[0], word);
    if (!strcmp(word, "deaf"))
        SetConsoleCtrlHandler(ignore, TRUE);
    say(word);
    Sleep(INFINITE);
    return 0;
}
