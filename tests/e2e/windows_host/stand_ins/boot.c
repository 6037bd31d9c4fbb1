/* Stand-in for the boot of Windows: enables pending features.
 *
 * FEATURES has the initial states at the first boot: `Name=State;Name=State`.
 */

#include "stand_in.h"

static void first_features(void)
{
    static wchar_t text[4096];
    wchar_t *rest = text;
    HKEY key;
    if (!RegOpenKeyW(HKEY_LOCAL_MACHINE, FEATURES, &key))
        return;
    if (!GetEnvironmentVariableW(L"FEATURES", text, 4096))
        return;
    for (wchar_t *one = wcstok(text, L";", &rest); one; one = wcstok(NULL, L";", &rest)) {
        wchar_t *state = wcschr(one, L'=');
        *state++ = 0;
        set_text(FEATURES, one, state);
    }
}

static void end_pending(void)
{
    HKEY key;
    wchar_t name[256], state[64];
    if (RegOpenKeyExW(HKEY_LOCAL_MACHINE, FEATURES, 0, KEY_READ, &key))
        return;
    for (DWORD i = 0, room = 256; !RegEnumValueW(key, i, name, &room, 0, 0, 0, 0); i++, room = 256)
        if (get_text(FEATURES, name, state, 64) && !wcscmp(state, L"Enable Pending"))
            set_text(FEATURES, name, L"Enabled");
    RegDeleteKeyW(HKEY_LOCAL_MACHINE, REBOOT_PENDING);
}

int wmain(void)
{
    FILETIME now;
    wchar_t text[32];
    GetSystemTimeAsFileTime(&now);
    swprintf(text, 32, L"%llu", ((unsigned long long)now.dwHighDateTime << 32) + now.dwLowDateTime);
    set_text(STORE, L"Booted", text);
    first_features();
    end_pending();
    return 0;
}
