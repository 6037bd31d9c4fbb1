/* Stand-in for PowerShell: only the exact statements that winpod runs on instances.
 *
 *     powershell ... -Command STATEMENT; STATEMENT
 *
 * Like the original, it prints a single network as an object and several as a list; the network
 * commands do not exist before the Containers feature is enabled.
 */

#include "stand_in.h"

static int unknown(const wchar_t *statement)
{
    wchar_t name[128] = L"";
    wcsncpy(name, statement, wcscspn(statement, L" ") < 127 ? wcscspn(statement, L" ") : 127);
    complain(L"%ls : The term '%ls' is not recognized as the name of a cmdlet, function, script "
             L"file, or operable program.\r\n    + FullyQualifiedErrorId : "
             L"CommandNotFoundException\r\n", name, name);
    return 1;
}

static bool has_containers(void)
{
    wchar_t state[64];
    return get_text(FEATURES, L"Containers", state, 64) && !wcscmp(state, L"Enabled");
}

static void list_networks(void)
{
    static wchar_t all[LONGEST];
    wchar_t id[64], path[256], name[256], type[64];
    int many = 0;
    HKEY key;
    if (RegOpenKeyExW(HKEY_LOCAL_MACHINE, NETWORKS, 0, KEY_READ, &key))
        return;
    for (DWORD room = 64; !RegEnumKeyW(key, (DWORD)many, id, room); many++) {
        swprintf(path, 256, NETWORKS L"\\%ls", id);
        get_text(path, L"Name", name, 256);
        get_text(path, L"Type", type, 64);
        swprintf(all + wcslen(all), 1024, L"%ls{\"ID\":\"%ls\",\"Name\":\"%ls\",\"Type\":\"%ls\"}",
                 many ? L"," : L"", id, name, type);
    }
    if (many)
        say(many == 1 ? L"%ls\r\n" : L"[%ls]\r\n", all);
}

static int remove_network(const wchar_t *statement)
{
    wchar_t path[256], id[64] = L"";
    if (swscanf(statement, L"Get-HnsNetwork | Where-Object { $_.Id -eq '%63[0-9A-Fa-f-]' } | "
                L"Remove-HnsNetwork", id) != 1)
        return unknown(statement);
    swprintf(path, 256, NETWORKS L"\\%ls", id);
    RegDeleteKeyW(HKEY_LOCAL_MACHINE, path);
    return 0;
}

static int run(const wchar_t *statement)
{
    wchar_t booted[64] = L"";
    ULARGE_INTEGER free;
    if (!wcscmp(statement, L"(Get-CimInstance -ClassName Win32_OperatingSystem)"
                           L".LastBootUpTime.ToFileTimeUtc()")) {
        get_text(STORE, L"Booted", booted, 64);
        say(L"%ls\r\n", booted);
    } else if (!wcscmp(statement, L"(Get-PSDrive -Name C).Free")) {
        GetDiskFreeSpaceExW(L"C:\\", &free, NULL, NULL);
        say(L"%llu\r\n", free.QuadPart);
    } else if (wcsncmp(statement, L"Get-HnsNetwork ", 15) || !has_containers()) {
        return unknown(statement);
    } else if (wcsstr(statement, L"| Remove-HnsNetwork")) {
        return remove_network(statement);
    } else if (!wcscmp(statement, L"Get-HnsNetwork | Select-Object -Property Id, Name, Type | "
                                  L"ConvertTo-Json -Compress")) {
        list_networks();
    } else {
        return unknown(statement);
    }
    return 0;
}

int wmain(int count, wchar_t **words)
{
    static wchar_t text[LONGEST];
    int code = 0;
    for (int i = 1; i < count; i++)
        if (!_wcsicmp(words[i], L"-Command"))
            for (i++; i < count; i++)
                swprintf(text + wcslen(text), LONGEST - wcslen(text), L"%ls%ls", *text ? L" " : L"",
                         words[i]);
    for (wchar_t *one = text, *next; one; one = next) {
        next = wcsstr(one, L"; ");
        if (next) {
            *next = 0;
            next += 2;
        }
        code = run(one);
    }
    return code;
}
