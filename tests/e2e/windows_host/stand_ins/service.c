/* Stand-in for services that are not available here: kubelet, kube-proxy, dockerd.
 *
 * A real service of the service manager, named after its program. It logs each start, with its
 * command line, in `C:\windows\temp\stand-in-PROGRAM.log`, and runs until it is stopped.
 */

#include "stand_in.h"

static SERVICE_STATUS_HANDLE status;
static HANDLE stopped;

static void tell_manager(DWORD state)
{
    SERVICE_STATUS now = {
        .dwServiceType = SERVICE_WIN32_OWN_PROCESS,
        .dwCurrentState = state,
    };
    if (state == SERVICE_RUNNING)
        now.dwControlsAccepted = SERVICE_ACCEPT_STOP | SERVICE_ACCEPT_SHUTDOWN;
    SetServiceStatus(status, &now);
}

static DWORD WINAPI control(DWORD what, DWORD type, void *data, void *context)
{
    (void)type, (void)data, (void)context;
    if (what == SERVICE_CONTROL_STOP || what == SERVICE_CONTROL_SHUTDOWN) {
        tell_manager(SERVICE_STOP_PENDING);
        SetEvent(stopped);
    }
    return NO_ERROR;
}

static void note_start(void)
{
    wchar_t program[MAX_PATH], path[MAX_PATH];
    static char line[LONGEST];
    GetModuleFileNameW(NULL, program, MAX_PATH);
    wchar_t *name = wcsrchr(program, L'\\') + 1;
    *wcsrchr(name, L'.') = 0;
    swprintf(path, MAX_PATH, L"C:\\windows\\temp\\stand-in-%ls.log", name);
    HANDLE file = CreateFileW(path, FILE_APPEND_DATA, FILE_SHARE_READ, NULL, OPEN_ALWAYS, 0, NULL);
    DWORD size = (DWORD)WideCharToMultiByte(CP_UTF8, 0, GetCommandLineW(), -1, line, LONGEST - 1,
                                            NULL, NULL);
    line[size - 1] = '\n';
    WriteFile(file, line, size, &size, NULL);
    CloseHandle(file);
}

static void WINAPI serve(DWORD count, wchar_t **words)
{
    (void)count;
    status = RegisterServiceCtrlHandlerExW(words[0], control, NULL);
    note_start();
    tell_manager(SERVICE_RUNNING);
    WaitForSingleObject(stopped, INFINITE);
    tell_manager(SERVICE_STOPPED);
}

int wmain(void)
{
    wchar_t any[] = L"";
    SERVICE_TABLE_ENTRYW services[] = {{any, serve}, {NULL, NULL}};
    stopped = CreateEventW(NULL, TRUE, FALSE, NULL);
    return StartServiceCtrlDispatcherW(services) ? 0 : (int)GetLastError();
}
