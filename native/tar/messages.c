/* Messages in tar's format, and the exit code: 1 if anything failed. */

#include "tar.h"

static UINT exit_code;

void say(HANDLE to, const WCHAR *one, const WCHAR *two, const WCHAR *three)
{
    WCHAR *line = joined(one, two, three);
    char *text = to_utf8(line);
    DWORD written;
    WriteFile(to, text, (DWORD)lstrlenA(text), &written, NULL);
    release(text);
    release(line);
}

void note(const WCHAR *subject, const WCHAR *what)
{
    WCHAR *line = joined(L"tar: ", subject, L": ");
    say(GetStdHandle(STD_ERROR_HANDLE), line, what, END_OF_LINE);
    release(line);
}

void warn(const WCHAR *subject, const WCHAR *what)
{
    note(subject, what);
    exit_code = 1;
}

/* Prints Windows' message for the last error. */
void warn_of_error(const WCHAR *subject)
{
    WCHAR text[512];
    DWORD size = FormatMessageW(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, NULL,
                                GetLastError(), 0, text, ARRAYSIZE(text), NULL);
    while (size && text[size - 1] <= L' ')
        size--;
    text[size] = 0;
    warn(subject, size ? text : L"it failed, and Windows has no words for it");
}

BOOL any_failed(void)
{
    return exit_code != 0;
}

void give_up(const WCHAR *subject, const WCHAR *what)
{
    warn(subject, what);
    finish();
}

void give_up_with_error(const WCHAR *subject)
{
    warn_of_error(subject);
    finish();
}

void finish(void)
{
    ExitProcess(exit_code);
}
