/* Starting programs. */

#include "wagent.h"

LONG NTAPI RtlSetEnvironmentVariable(WCHAR **environment, TEXT_VIEW *name, TEXT_VIEW *value);
LONG NTAPI RtlQueryEnvironmentVariable_U(WCHAR *environment, TEXT_VIEW *name, TEXT_VIEW *value);
BOOL WINAPI CreateEnvironmentBlock(void **environment, HANDLE token, BOOL inherit);
BOOL WINAPI DestroyEnvironmentBlock(void *environment);

/* Returns the environment of the machine and the user, overridden by the given sequence of
 * NAME=VALUE strings, which ends with an empty one. */
static WCHAR *make_environment(WCHAR *given)
{
    WCHAR *environment = NULL;
    HANDLE token = NULL;
    OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &token);
    BOOL made = CreateEnvironmentBlock((void **)&environment, token, FALSE);
    close_handle(&token);
    if (!made)
        return NULL;
    for (WCHAR *entry = given; *entry; entry += lstrlenW(entry) + 1) {
        WCHAR *equals = entry + 1;
        while (*equals && *equals != L'=')
            equals++;
        SIZE_T value = (SIZE_T)lstrlenW(equals), name = (SIZE_T)(equals - entry);
        if (!value || name + value > MAX_TEXT)
            continue;
        TEXT_VIEW key = view(entry, name), content = view(equals + 1, value - 1);
        RtlSetEnvironmentVariable(&environment, &key, &content);
    }
    return environment;
}

/* Makes CreateProcess search a program in its own PATH and directory, not in wagent's. */
static void set_search_path(WCHAR *environment, const WCHAR *directory)
{
    static WCHAR found[MAX_TEXT + 1];
    TEXT_VIEW path = view((WCHAR *)L"PATH", 4), value = {0, MAX_TEXT * sizeof(WCHAR), found};
    if (RtlQueryEnvironmentVariable_U(environment, &path, &value) >= 0) {
        found[value.Length / sizeof(WCHAR)] = 0;
        SetEnvironmentVariableW(L"PATH", found);
    }
    SetCurrentDirectoryW(directory);
}

static BOOL connect_streams(struct session *session, BYTE flags, COORD size, HANDLE theirs[3])
{
    if (flags & (START_FLAG_STDIN | START_FLAG_TERMINAL)) {
        if (!make_pipe(&session->input.pipe, &theirs[0], TRUE, (void *)EVENT_INPUT_WRITTEN))
            return FALSE;
    } else {
        SECURITY_ATTRIBUTES inherited = {sizeof inherited, NULL, TRUE};
        theirs[0] = CreateFileW(L"NUL", GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE,
                                &inherited, OPEN_EXISTING, 0, NULL);
        if (theirs[0] == INVALID_HANDLE_VALUE)
            theirs[0] = NULL;
    }
    if (!make_pipe(&session->output.pipe, &theirs[1], FALSE, (void *)EVENT_OUTPUT_READ))
        return FALSE;
    if (!(flags & START_FLAG_TERMINAL))
        return make_pipe(&session->errors.pipe, &theirs[2], FALSE, (void *)EVENT_OUTPUT_READ);
    HRESULT made = CreatePseudoConsole(size, theirs[0], theirs[1], 0, &session->console);
    SetLastError(HRESULT_CODE(made));
    return made == S_OK && open_screen(session, theirs);
}

static BOOL create(struct session *session, WCHAR *line, const WCHAR *directory,
                   WCHAR *environment, HANDLE theirs[3])
{
    union {
        BYTE room[256];
        void *aligned;
    } list;
    SIZE_T size = sizeof list;
    STARTUPINFOEXW with = {.StartupInfo.cb = sizeof with};
    with.lpAttributeList = (void *)&list;
    if (!InitializeProcThreadAttributeList(with.lpAttributeList, 2, 0, &size))
        return FALSE;
    with.StartupInfo.dwFlags = STARTF_USESTDHANDLES;
    with.StartupInfo.hStdInput = theirs[0];
    with.StartupInfo.hStdOutput = theirs[1];
    with.StartupInfo.hStdError = theirs[2];
    UpdateProcThreadAttribute(with.lpAttributeList, 0, PROC_THREAD_ATTRIBUTE_HANDLE_LIST, theirs,
                              3 * sizeof *theirs, NULL, NULL);
    if (session->console)
        UpdateProcThreadAttribute(with.lpAttributeList, 0, PROC_THREAD_ATTRIBUTE_PSEUDOCONSOLE,
                                  session->console, sizeof session->console, NULL, NULL);
    DWORD flags = CREATE_SUSPENDED | CREATE_UNICODE_ENVIRONMENT | EXTENDED_STARTUPINFO_PRESENT;
    PROCESS_INFORMATION made;
    BOOL succeeded = CreateProcessW(NULL, line, NULL, NULL, TRUE, flags, environment, directory,
                               &with.StartupInfo, &made);
    DWORD error = GetLastError();
    DeleteProcThreadAttributeList(with.lpAttributeList);
    if (!succeeded) {
        SetLastError(error);
        return FALSE;
    }
    session->process = made.hProcess;
    session->pid = made.dwProcessId;
    JOBOBJECT_ASSOCIATE_COMPLETION_PORT association = {
        (void *)((ULONG_PTR)session->id << 8 | EVENT_JOB), port};
    session->job = CreateJobObjectW(NULL, NULL);
    succeeded = SetInformationJobObject(session->job, JobObjectAssociateCompletionPortInformation,
                                   &association, sizeof association)
        && AssignProcessToJobObject(session->job, session->process);
    error = GetLastError();
    if (succeeded)
        ResumeThread(made.hThread);
    else
        TerminateProcess(session->process, error);
    CloseHandle(made.hThread);
    SetLastError(error);
    return succeeded;
}

void start_program(DWORD id, const BYTE *payload, DWORD size)
{
    struct reader reader = {payload, payload + size, FALSE};
    BYTE flags = *bytes(&reader, 1);
    COORD extent = {.X = (SHORT)get16(bytes(&reader, 2))};
    extent.Y = (SHORT)get16(bytes(&reader, 2));
    WCHAR *line = text(&reader, MAX_TEXT);
    WCHAR *directory = text(&reader, MAX_TEXT);
    WCHAR *given = text(&reader, MAX_FRAME / sizeof(WCHAR)), *environment = NULL;
    DWORD error = 0;
    if (find(id) || reader.bad) {
        error = ERROR_INVALID_PARAMETER;
    } else {
        struct session *session = open_session(id);
        HANDLE theirs[3] = {0};
        if (extent.X <= 0 || extent.Y <= 0)
            extent = (COORD){80, 25};
        environment = make_environment(given);
        if (environment)
            set_search_path(environment, directory);
        BOOL succeeded = environment && connect_streams(session, flags, extent, theirs)
            && create(session, line, directory, environment, theirs);
        error = succeeded ? 0 : GetLastError();
        SetCurrentDirectoryW(L"C:\\");
        for (int i = 0; i < 3; i++)
            close_handle(&theirs[i]);
        if (succeeded) {
            session->kill_descendants = flags & START_FLAG_KILL_DESCENDANTS;
            send_number(id, FRAME_STARTED, session->pid);
            read_more(&session->output);
            read_more(&session->errors);
        } else {
            close_session(session);
        }
    }
    if (environment)
        DestroyEnvironmentBlock(environment);
    release(line);
    release(directory);
    release(given);
    if (error)
        send_failure(id, error);
}
