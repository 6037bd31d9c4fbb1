/* Messages in tar's format, and the exit code: 1 if anything failed. */

#include "tar.h"

static UINT exit_code;

void print(HANDLE to, const WCHAR *one, const WCHAR *two, const WCHAR *three)
{
    WCHAR *line = concat(one, two, three);
    char *text = to_utf8(line);
    DWORD written;
    WriteFile(to, text, (DWORD)lstrlenA(text), &written, NULL);
    release(text);
    release(line);
}

void inform(const WCHAR *subject, const WCHAR *what)
{
    WCHAR *line = concat(L"tar: ", subject, L": ");
    print(GetStdHandle(STD_ERROR_HANDLE), line, what, END_OF_LINE);
    release(line);
}

void warn(const WCHAR *subject, const WCHAR *what)
{
    inform(subject, what);
    exit_code = 1;
}

/* Prints Windows' message for the last error. */
void warn_last_error(const WCHAR *subject)
{
    WCHAR text[512];
    DWORD size = FormatMessageW(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, NULL,
                                GetLastError(), 0, text, ARRAYSIZE(text), NULL);
    while (size && text[size - 1] <= L' ')
        size--;
    text[size] = 0;
    warn(subject, size ? text : L"unknown error");
}

BOOL any_failed(void)
{
    return exit_code != 0;
}

void fail(const WCHAR *subject, const WCHAR *what)
{
    warn(subject, what);
    finish();
}

void fail_with_error(const WCHAR *subject)
{
    warn_last_error(subject);
    finish();
}

void out_of_memory(void)
{
    static const char message[] = "tar: not enough memory\r\n";
    DWORD written;
    WriteFile(GetStdHandle(STD_ERROR_HANDLE), message, sizeof message - 1, &written, NULL);
    ExitProcess(1);
}

void finish(void)
{
    ExitProcess(exit_code);
}
