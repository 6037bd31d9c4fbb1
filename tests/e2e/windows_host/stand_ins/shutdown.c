/* Stand-in for shutdown: /r or /s, with /f and /t SECONDS. It returns at once; process 1 of the
 * machine reads the request `reboot SECONDS`.
 */

#include "stand_in.h"

int wmain(int count, wchar_t **words)
{
    const wchar_t *wish = NULL, *seconds = L"30";
    wchar_t line[64];
    for (int i = 1; i < count; i++) {
        if (!_wcsicmp(words[i], L"/r"))
            wish = L"reboot";
        else if (!_wcsicmp(words[i], L"/s"))
            wish = L"off";
        else if (!_wcsicmp(words[i], L"/t") && i + 1 < count)
            seconds = words[++i];
        else if (_wcsicmp(words[i], L"/f") && _wcsnicmp(words[i], L"/d", 2))
            return ERROR_INVALID_PARAMETER;
    }
    swprintf(line, 64, L"%ls %lu\n", wish ? wish : L"", wcstoul(seconds, NULL, 10));
    return wish && write_file(L"\\\\?\\unix\\root\\power", line) ? 0 : ERROR_INVALID_PARAMETER;
}
