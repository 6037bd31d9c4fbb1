/* Shared code of the stand-ins: the registry key for state that Wine lacks, and their output. */

#pragma once

#include <windows.h>

#include <fcntl.h>
#include <io.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#define STORE L"SOFTWARE\\Stand-in"
#define FEATURES STORE L"\\Features"
#define NETWORKS STORE L"\\Networks"
#define REBOOT_PENDING \
    L"SOFTWARE\\Microsoft\\Windows\\CurrentVersion\\Component Based Servicing\\RebootPending"
#define LONGEST 32768

static void say_to(FILE *stream, const wchar_t *format, va_list arguments)
{
    static wchar_t wide[LONGEST];
    static char text[LONGEST * 3];
    int size = vswprintf(wide, LONGEST, format, arguments);
    if (size < 0)
        return;
    size = WideCharToMultiByte(CP_UTF8, 0, wide, size, text, sizeof text, NULL, NULL);
    _setmode(_fileno(stream), _O_BINARY);
    fwrite(text, 1, (size_t)size, stream);
    fflush(stream);
}

static inline void say(const wchar_t *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say_to(stdout, format, arguments);
    va_end(arguments);
}

static inline void complain(const wchar_t *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say_to(stderr, format, arguments);
    va_end(arguments);
}

static inline bool get_text(const wchar_t *key, const wchar_t *name, wchar_t *text, DWORD room)
{
    DWORD size = room * sizeof *text;
    return !RegGetValueW(HKEY_LOCAL_MACHINE, key, name, RRF_RT_REG_SZ | RRF_RT_REG_EXPAND_SZ
                         | RRF_NOEXPAND, NULL, text, &size);
}

static inline void set_text(const wchar_t *key, const wchar_t *name, const wchar_t *text)
{
    DWORD size = (DWORD)((wcslen(text) + 1) * sizeof *text);
    RegSetKeyValueW(HKEY_LOCAL_MACHINE, key, name, REG_SZ, text, size);
}

static inline bool write_file(const wchar_t *path, const wchar_t *text)
{
    char bytes[512];
    DWORD written = 0;
    int size = WideCharToMultiByte(CP_UTF8, 0, text, -1, bytes, sizeof bytes, NULL, NULL) - 1;
    HANDLE file = CreateFileW(path, GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_WRITE, NULL,
                              OPEN_ALWAYS, 0, NULL);
    bool is_done = file != INVALID_HANDLE_VALUE
        && WriteFile(file, bytes, (DWORD)size, &written, NULL) && written == (DWORD)size;
    CloseHandle(file);
    return is_done;
}
