/* Stand-in for the part of OpenSSH for Windows that starts a user's shell, cmd.
 *
 * The command line is passed verbatim in a variable: an argument of a Unix program would lose its
 * quotes.
 */

#include "stand_in.h"

int wmain(void)
{
    static wchar_t command[LONGEST], line[LONGEST + 64];
    DWORD size = GetEnvironmentVariableW(L"SSH_COMMAND", command, LONGEST);
    SetEnvironmentVariableW(L"SSH_COMMAND", NULL);
    if (size)
        swprintf(line, LONGEST + 64, L"C:\\windows\\system32\\cmd.exe /c \"%ls\"", command);
    else
        wcscpy(line, L"C:\\windows\\system32\\cmd.exe");
    STARTUPINFOW start = {.cb = sizeof start};
    PROCESS_INFORMATION process;
    start.dwFlags = STARTF_USESTDHANDLES;
    start.hStdInput = GetStdHandle(STD_INPUT_HANDLE);
    start.hStdOutput = GetStdHandle(STD_OUTPUT_HANDLE);
    start.hStdError = GetStdHandle(STD_ERROR_HANDLE);
    if (!CreateProcessW(NULL, line, NULL, NULL, TRUE, 0, NULL, NULL, &start, &process))
        return 255;
    WaitForSingleObject(process.hProcess, INFINITE);
    DWORD code = 255;
    GetExitCodeProcess(process.hProcess, &code);
    return (int)code;
}
