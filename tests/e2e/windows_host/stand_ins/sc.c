/* Stand-in for sc, because Wine's has no qc, config, qfailure and error texts: calls the real
 * service manager like sc, and prints its results.
 *
 * It adds what Wine's service manager lacks: dependencies of a service are started before it, it
 * cannot be stopped while others depend on it, it is stopped once its process has exited, and its
 * failure actions are stored in the registry like on Windows, but not executed.
 */

#include "stand_in.h"

#define SERVICES L"SYSTEM\\CurrentControlSet\\Services"

static SC_HANDLE manager;

static int fail(const wchar_t *what, DWORD error)
{
    wchar_t sentence[512] = L"";
    FormatMessageW(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, NULL, error, 0x409,
                   sentence, 512, NULL);
    say(L"[SC] %ls FAILED %lu:\r\n\r\n%ls\r\n", what, error, sentence);
    return (int)error;
}

static int succeed(const wchar_t *what)
{
    say(L"[SC] %ls SUCCESS\r\n", what);
    return 0;
}

static void key_of(const wchar_t *name, wchar_t *key)
{
    swprintf(key, 512, SERVICES L"\\%ls", name);
}

/* Reads the dependencies: zero-terminated names with another zero at the end. */
static bool dependencies(const wchar_t *name, wchar_t *names, DWORD room)
{
    wchar_t key[512];
    DWORD size = room * sizeof *names;
    key_of(name, key);
    *names = 0;
    return !RegGetValueW(HKEY_LOCAL_MACHINE, key, L"DependOnService", RRF_RT_REG_MULTI_SZ, NULL,
                         names, &size);
}

/* A service whose process has exited is stopped, whether it reported that or not. */
static bool status_of(SC_HANDLE service, SERVICE_STATUS_PROCESS *status)
{
    DWORD needed, code = 0;
    if (!QueryServiceStatusEx(service, SC_STATUS_PROCESS_INFO, (BYTE *)status, sizeof *status,
                              &needed))
        return false;
    HANDLE process = OpenProcess(PROCESS_QUERY_INFORMATION, FALSE, status->dwProcessId);
    bool runs = process && GetExitCodeProcess(process, &code) && code == STILL_ACTIVE;
    CloseHandle(process);
    if (!runs && status->dwCurrentState != SERVICE_START_PENDING)
        *status = (SERVICE_STATUS_PROCESS){.dwCurrentState = SERVICE_STOPPED};
    return true;
}

static DWORD state_of(const wchar_t *name)
{
    SERVICE_STATUS_PROCESS status = {.dwCurrentState = SERVICE_STOPPED};
    SC_HANDLE service = OpenServiceW(manager, name, SERVICE_QUERY_STATUS);
    if (service)
        status_of(service, &status);
    CloseServiceHandle(service);
    return status.dwCurrentState;
}

static bool is_needed(const wchar_t *name)
{
    HKEY key;
    wchar_t other[256], names[2048];
    if (RegOpenKeyExW(HKEY_LOCAL_MACHINE, SERVICES, 0, KEY_READ, &key))
        return false;
    for (DWORD i = 0; !RegEnumKeyW(key, i, other, 256); i++)
        if (dependencies(other, names, 2048))
            for (wchar_t *one = names; *one; one += wcslen(one) + 1)
                if (!_wcsicmp(one, name) && state_of(other) != SERVICE_STOPPED)
                    return true;
    return false;
}

static void print_status(const wchar_t *name, const SERVICE_STATUS_PROCESS *status, bool is_extended)
{
    static const wchar_t *states[] = {L"", L"STOPPED", L"START_PENDING", L"STOP_PENDING", L"RUNNING",
        L"CONTINUE_PENDING", L"PAUSE_PENDING", L"PAUSED"};
    bool stops = status->dwControlsAccepted & SERVICE_ACCEPT_STOP;
    bool hears = status->dwControlsAccepted & SERVICE_ACCEPT_SHUTDOWN;
    say(L"\r\nSERVICE_NAME: %ls \r\n        TYPE               : 10  WIN32_OWN_PROCESS  \r\n"
        L"        STATE              : %lu  %ls \r\n"
        L"                                (%ls, NOT_PAUSABLE, %ls)\r\n"
        L"        WIN32_EXIT_CODE    : %lu  (0x%lx)\r\n        SERVICE_EXIT_CODE  : %lu  (0x%lx)\r\n"
        L"        CHECKPOINT         : 0x%lx\r\n        WAIT_HINT          : 0x%lx\r\n",
        name, status->dwCurrentState, states[status->dwCurrentState & 7],
        stops ? L"STOPPABLE" : L"NOT_STOPPABLE",
        hears ? L"ACCEPTS_SHUTDOWN" : L"IGNORES_SHUTDOWN", status->dwWin32ExitCode,
        status->dwWin32ExitCode, status->dwServiceSpecificExitCode,
        status->dwServiceSpecificExitCode, status->dwCheckPoint, status->dwWaitHint);
    if (is_extended)
        say(L"        PID                : %lu\r\n        FLAGS              : \r\n",
            status->dwProcessId);
}

static int query(SC_HANDLE service, const wchar_t *name, bool is_extended)
{
    SERVICE_STATUS_PROCESS status;
    if (!status_of(service, &status))
        return fail(L"QueryServiceStatus", GetLastError());
    print_status(name, &status, is_extended);
    return 0;
}

static int query_config(SC_HANDLE service, const wchar_t *name)
{
    static BYTE room[16384];
    static const wchar_t *starts[] = {L"BOOT_START", L"SYSTEM_START", L"AUTO_START",
        L"DEMAND_START", L"DISABLED"};
    wchar_t names[2048];
    QUERY_SERVICE_CONFIGW *config = (void *)room;
    DWORD needed;
    if (!QueryServiceConfigW(service, config, sizeof room, &needed))
        return fail(L"QueryServiceConfig", GetLastError());
    succeed(L"QueryServiceConfig");
    say(L"\r\nSERVICE_NAME: %ls\r\n        TYPE               : 10  WIN32_OWN_PROCESS \r\n"
        L"        START_TYPE         : %lu   %ls\r\n        ERROR_CONTROL      : %lu   NORMAL\r\n"
        L"        BINARY_PATH_NAME   : %ls  \r\n        LOAD_ORDER_GROUP   :   \r\n"
        L"        TAG                : 0  \r\n        DISPLAY_NAME       : %ls  \r\n",
        name, config->dwStartType, starts[config->dwStartType % 5], config->dwErrorControl,
        config->lpBinaryPathName, config->lpDisplayName);
    dependencies(name, names, 2048);
    say(L"        DEPENDENCIES       : %ls  \r\n", names);
    for (wchar_t *one = names + wcslen(names) + (*names ? 1 : 0); *one; one += wcslen(one) + 1)
        say(L"                           : %ls  \r\n", one);
    say(L"        SERVICE_START_NAME : %ls  \r\n", config->lpServiceStartName);
    return 0;
}

static int start(const wchar_t *name, int depth)
{
    wchar_t names[2048];
    SC_HANDLE service = OpenServiceW(manager, name, SERVICE_ALL_ACCESS);
    if (!service)
        return fail(L"StartService: OpenService", GetLastError());
    dependencies(name, names, 2048);
    for (wchar_t *one = names; *one && depth < 8; one += wcslen(one) + 1) {
        if (state_of(one) == SERVICE_RUNNING)
            continue;
        int code = start(one, depth + 1);
        if (code)
            return fail(L"StartService", code == ERROR_SERVICE_DOES_NOT_EXIST
                        ? ERROR_SERVICE_DEPENDENCY_DELETED : ERROR_SERVICE_DEPENDENCY_FAIL);
    }
    if (!StartServiceW(service, 0, NULL))
        return fail(L"StartService", GetLastError());
    return depth ? 0 : query(service, name, true);
}

static int stop(SC_HANDLE service, const wchar_t *name)
{
    SERVICE_STATUS status;
    if (is_needed(name))
        return fail(L"ControlService", ERROR_DEPENDENT_SERVICES_RUNNING);
    if (!ControlService(service, SERVICE_CONTROL_STOP, &status))
        return fail(L"ControlService", GetLastError());
    return query(service, name, false);
}

/* `name= value` and `name=value`. */
static const wchar_t *option(int count, wchar_t **words, const wchar_t *name)
{
    size_t size = wcslen(name);
    for (int i = 0; i < count; i++) {
        if (_wcsnicmp(words[i], name, size) || words[i][size] != L'=')
            continue;
        if (words[i][size + 1])
            return words[i] + size + 1;
        return i + 1 < count ? words[i + 1] : NULL;
    }
    return NULL;
}

static DWORD start_type(const wchar_t *word, DWORD otherwise)
{
    if (!word)
        return otherwise;
    if (!_wcsicmp(word, L"auto"))
        return SERVICE_AUTO_START;
    return _wcsicmp(word, L"disabled") ? SERVICE_DEMAND_START : SERVICE_DISABLED;
}

/* Converts `a/b` to a list of zero-terminated names with another zero; `/` is empty. */
static const wchar_t *dependency_list(const wchar_t *list)
{
    static wchar_t names[2048];
    if (!list || wcslen(list) >= 2046)
        return NULL;
    wcscpy(names, list);
    for (wchar_t *one = names; *one; one++)
        if (*one == L'/')
            *one = 0;
    return names;
}

static int create(const wchar_t *name, int count, wchar_t **words)
{
    const wchar_t *path = option(count, words, L"binPath");
    const wchar_t *shown = option(count, words, L"DisplayName");
    if (!path)
        return ERROR_INVALID_COMMAND_LINE;
    SC_HANDLE service = CreateServiceW(
        manager, name, shown ? shown : name, SERVICE_ALL_ACCESS, SERVICE_WIN32_OWN_PROCESS,
        start_type(option(count, words, L"start"), SERVICE_DEMAND_START), SERVICE_ERROR_NORMAL, path,
        NULL, NULL, dependency_list(option(count, words, L"depend")), NULL, NULL);
    return service ? succeed(L"CreateService") : fail(L"CreateService", GetLastError());
}

static int configure(SC_HANDLE service, int count, wchar_t **words)
{
    if (!ChangeServiceConfigW(service, SERVICE_NO_CHANGE,
                              start_type(option(count, words, L"start"), SERVICE_NO_CHANGE),
                              SERVICE_NO_CHANGE, option(count, words, L"binPath"), NULL, NULL,
                              dependency_list(option(count, words, L"depend")), NULL, NULL,
                              option(count, words, L"DisplayName")))
        return fail(L"ChangeServiceConfig", GetLastError());
    return succeed(L"ChangeServiceConfig");
}

static int describe(SC_HANDLE service, int count, wchar_t **words)
{
    SERVICE_DESCRIPTIONW description = {.lpDescription = count ? words[0] : NULL};
    if (!ChangeServiceConfig2W(service, SERVICE_CONFIG_DESCRIPTION, &description))
        return fail(L"ChangeServiceConfig2", GetLastError());
    return succeed(L"ChangeServiceConfig2");
}

static int keep_failure_actions(const wchar_t *name, int count, wchar_t **words)
{
    const wchar_t *reset = option(count, words, L"reset");
    const wchar_t *actions = option(count, words, L"actions");
    DWORD kept[5 + 2 * 16] = {0, 0, 0, 0, 5 * sizeof *kept}, many = 0;
    wchar_t key[512], list[512], *rest;
    if (!reset || !actions || wcslen(actions) >= 512)
        return ERROR_INVALID_COMMAND_LINE;
    wcscpy(list, actions);
    for (wchar_t *one = wcstok(list, L"/", &rest); one && many < 16; one = wcstok(NULL, L"/", &rest)) {
        wchar_t *delay = wcstok(NULL, L"/", &rest);
        kept[5 + 2 * many] = !_wcsicmp(one, L"restart") ? 1 : !_wcsicmp(one, L"reboot") ? 2 : 0;
        kept[6 + 2 * many++] = delay ? wcstoul(delay, NULL, 10) : 0;
    }
    kept[0] = !_wcsicmp(reset, L"INFINITE") ? INFINITE : wcstoul(reset, NULL, 10);
    kept[3] = many;
    key_of(name, key);
    RegSetKeyValueW(HKEY_LOCAL_MACHINE, key, L"FailureActions", REG_BINARY, kept,
                    (5 + 2 * many) * sizeof *kept);
    return succeed(L"ChangeServiceConfig2");
}

int wmain(int count, wchar_t **words)
{
    if (count < 3)
        return ERROR_INVALID_COMMAND_LINE;
    const wchar_t *verb = words[1], *name = words[2];
    bool is_query = !_wcsnicmp(verb, L"query", 5);
    manager = OpenSCManagerW(NULL, NULL, SC_MANAGER_ALL_ACCESS);
    if (!_wcsicmp(verb, L"create"))
        return create(name, count - 3, words + 3);
    if (!_wcsicmp(verb, L"start"))
        return start(name, 0);
    SC_HANDLE service = OpenServiceW(manager, name, SERVICE_ALL_ACCESS);
    if (!service)
        return fail(is_query ? L"EnumQueryServicesStatus:OpenService" : L"OpenService",
                    GetLastError());
    if (is_query)
        return query(service, name, !_wcsicmp(verb, L"queryex"));
    if (!_wcsicmp(verb, L"qc"))
        return query_config(service, name);
    if (!_wcsicmp(verb, L"stop"))
        return stop(service, name);
    if (!_wcsicmp(verb, L"config"))
        return configure(service, count - 3, words + 3);
    if (!_wcsicmp(verb, L"description"))
        return describe(service, count - 3, words + 3);
    if (!_wcsicmp(verb, L"failure"))
        return keep_failure_actions(name, count - 3, words + 3);
    if (!_wcsicmp(verb, L"delete"))
        return DeleteService(service) ? succeed(L"DeleteService")
                                      : fail(L"DeleteService", GetLastError());
    return ERROR_INVALID_COMMAND_LINE;
}
