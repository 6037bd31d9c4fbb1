/* Stand-in for icacls, which Wine cannot support: prints success, and does nothing. */

#include "stand_in.h"

int wmain(int count, wchar_t **words)
{
    bool is_there = count > 1 && GetFileAttributesW(words[1]) != INVALID_FILE_ATTRIBUTES;
    if (is_there)
        say(L"processed file: %ls\r\n", words[1]);
    else if (count > 1)
        say(L"%ls: The system cannot find the file specified.\r\n", words[1]);
    say(L"Successfully processed %d files; Failed processing %d files\r\n", is_there, !is_there);
    return is_there ? 0 : ERROR_FILE_NOT_FOUND;
}
