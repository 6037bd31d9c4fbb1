/* Stand-in for dism: Windows features, which Wine does not have.
 *
 * /get-featureinfo and /enable-feature /all /norestart of /online, in English. A feature is enabled
 * by the next boot.
 */

#include "stand_in.h"

#define UNKNOWN_FEATURE ((int)0x800f080c)

static int fail(int code, const wchar_t *sentence)
{
    say(L"\r\nError: 0x%08x\r\n\r\n%ls\r\n\r\nThe DISM log file can be found at "
        L"C:\\windows\\Logs\\DISM\\dism.log\r\n", code, sentence);
    return code;
}

static int unknown(const wchar_t *feature)
{
    wchar_t sentence[512];
    swprintf(sentence, 512, L"Feature name %ls is unknown.\r\nA Windows feature name was not "
             L"recognized.", feature);
    return fail(UNKNOWN_FEATURE, sentence);
}

static int tell_of(const wchar_t *feature, const wchar_t *state)
{
    say(L"Feature Information:\r\n\r\nFeature Name : %ls\r\nDisplay Name : %ls\r\n"
        L"Description : A stand-in.\r\nRestart Required : Possible\r\nState : %ls\r\n\r\n"
        L"Custom Properties:\r\n\r\n(No custom properties found)\r\n\r\n"
        L"The operation completed successfully.\r\n", feature, feature, state);
    return 0;
}

static int enable(const wchar_t *feature, const wchar_t *state)
{
    HKEY key;
    say(L"Enabling feature(s)\r\n[==========================100.0%%==========================] \r\n"
        L"The operation completed successfully.\r\n");
    if (!wcscmp(state, L"Enabled"))
        return 0;
    set_text(FEATURES, feature, L"Enable Pending");
    RegCreateKeyW(HKEY_LOCAL_MACHINE, REBOOT_PENDING, &key);
    return ERROR_SUCCESS_REBOOT_REQUIRED;
}

int wmain(int count, wchar_t **words)
{
    const wchar_t *feature = L"";
    bool is_online = false, is_telling = false, is_enabling = false, is_quiet = false;
    wchar_t state[64], version[64] = L"";
    for (int i = 1; i < count; i++) {
        if (!_wcsicmp(words[i], L"/online"))
            is_online = true;
        else if (!_wcsicmp(words[i], L"/get-featureinfo"))
            is_telling = true;
        else if (!_wcsicmp(words[i], L"/enable-feature"))
            is_enabling = true;
        else if (!_wcsicmp(words[i], L"/norestart"))
            is_quiet = true;
        else if (!_wcsnicmp(words[i], L"/featurename:", 13))
            feature = words[i] + 13;
        else if (_wcsicmp(words[i], L"/english") && _wcsicmp(words[i], L"/all")
                 && _wcsicmp(words[i], L"/quiet"))
            return fail(87, L"The option is unknown.");
    }
    get_text(L"SOFTWARE\\Microsoft\\Windows NT\\CurrentVersion", L"CurrentBuild", version, 64);
    say(L"\r\nDeployment Image Servicing and Management tool\r\nVersion: 10.0.%ls.1\r\n\r\n"
        L"Image Version: 10.0.%ls.1\r\n\r\n", version, version);
    if (!is_online || is_telling == is_enabling || !*feature)
        return fail(87, L"The command line is missing a required servicing command.");
    if (!get_text(FEATURES, feature, state, 64))
        return unknown(feature);
    if (is_telling)
        return tell_of(feature, state);
    if (!is_quiet)
        return fail(ERROR_INVALID_PARAMETER, L"Nobody is there to ask for a restart.");
    return enable(feature, state);
}
