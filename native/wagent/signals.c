/* Stop events for programs, and their exit. */

#include "wagent.h"

#define AFTER_HANDLER 2000 /* ms until a program is terminated after its handler returned */

void end_stop(struct session *session)
{
    if (session->stop.wait)
        UnregisterWaitEx(session->stop.wait, INVALID_HANDLE_VALUE);
    session->stop.wait = NULL;
    close_handle(&session->stop.thread);
    close_handle(&session->stop.process);
}

static DWORD job_pids(struct session *session, DWORD *pids)
{
    struct {
        JOBOBJECT_BASIC_PROCESS_ID_LIST list;
        ULONG_PTR more[MAX_STOP_PIDS];
    } found = {0};
    QueryInformationJobObject(session->job, JobObjectBasicProcessIdList, &found, sizeof found, NULL);
    DWORD count = min(found.list.NumberOfProcessIdsInList, MAX_STOP_PIDS);
    for (DWORD i = 0; i < count; i++)
        pids[i] = (DWORD)found.list.ProcessIdList[i];
    return count;
}

static HANDLE open_program(DWORD pid)
{
    DWORD rights = PROCESS_CREATE_THREAD | PROCESS_VM_OPERATION | PROCESS_VM_READ
        | PROCESS_VM_WRITE | PROCESS_QUERY_INFORMATION | PROCESS_TERMINATE | SYNCHRONIZE;
    HANDLE process = OpenProcess(rights, FALSE, pid);
    WCHAR name[MAX_PATH], *base = name;
    DWORD size = MAX_PATH;
    if (process && QueryFullProcessImageNameW(process, 0, name, &size))
        for (WCHAR *at = name; *at; at++)
            if (*at == L'\\')
                base = at + 1;
    if (process && base != name && !lstrcmpiW(base, L"conhost.exe"))
        close_handle(&process); /* it displays the others' output until they end */
    return process;
}

static void CALLBACK post_handler_returned(void *key, BOOLEAN unused)
{
    (void)unused;
    PostQueuedCompletionStatus(port, 0, (ULONG_PTR)key, NULL);
}

static void CALLBACK post_stopped(void *key, BOOLEAN timed_out)
{
    PostQueuedCompletionStatus(port, timed_out, (ULONG_PTR)key, NULL);
}

/* Stops one program after the other, the newest first, as Windows' console does. */
static void stop_next(struct session *session)
{
    end_stop(session);
    while (session->stop.count) {
        session->stop.process = open_program(session->stop.pids[--session->stop.count]);
        if (!session->stop.process)
            continue;
        session->stop.thread = raise_event(session->stop.process, session->stop.event);
        if (session->stop.thread
            && RegisterWaitForSingleObject(&session->stop.wait, session->stop.thread,
                                           post_handler_returned,
                                           key_of(session, EVENT_HANDLER_RETURNED), INFINITE,
                                           WT_EXECUTEONLYONCE))
            return;
        TerminateProcess(session->stop.process, INTERRUPTED);
        end_stop(session);
    }
}

void handler_returned(struct session *session)
{
    if (!session->stop.process)
        return;
    UnregisterWaitEx(session->stop.wait, INVALID_HANDLE_VALUE);
    session->stop.wait = NULL;
    if (!RegisterWaitForSingleObject(&session->stop.wait, session->stop.process, post_stopped,
                                     key_of(session, EVENT_STOPPED), AFTER_HANDLER, WT_EXECUTEONLYONCE))
        stop_next(session);
}

void stopped(struct session *session, BOOL timed_out)
{
    if (timed_out && session->stop.process)
        TerminateProcess(session->stop.process, INTERRUPTED);
    stop_next(session);
}

static void interrupt(struct session *session, DWORD event)
{
    DWORD pids[MAX_STOP_PIDS];
    for (DWORD count = job_pids(session, pids); count;) {
        HANDLE process = open_program(pids[--count]);
        HANDLE thread = process ? raise_event(process, event) : NULL;
        close_handle(&thread);
        close_handle(&process);
    }
}

void send_signal(struct session *session, BYTE kind)
{
    switch (kind) {
    case SIGNAL_SHUTDOWN:
    case SIGNAL_CLOSE:
        if (session->stop.process)
            return; /* in progress */
        session->stop.event = kind == SIGNAL_CLOSE ? CTRL_CLOSE_EVENT : CTRL_SHUTDOWN_EVENT;
        session->stop.count = job_pids(session, session->stop.pids);
        stop_next(session);
        return;
    case SIGNAL_INTERRUPT:
        interrupt(session, CTRL_C_EVENT);
        return;
    case SIGNAL_BREAK:
        interrupt(session, CTRL_BREAK_EVENT);
        return;
    case SIGNAL_KILL:
        TerminateJobObject(session->job, INTERRUPTED);
    }
}

void job_event(struct session *session, DWORD message, DWORD pid)
{
    BOOL ended = message == JOB_OBJECT_MSG_ACTIVE_PROCESS_ZERO
        || ((message == JOB_OBJECT_MSG_EXIT_PROCESS
             || message == JOB_OBJECT_MSG_ABNORMAL_EXIT_PROCESS) && pid == session->pid);
    if (!ended || session->exited)
        return;
    WaitForSingleObject(session->process, INFINITE);
    GetExitCodeProcess(session->process, &session->code);
    session->exited = TRUE;
    session->last_output = GetTickCount64();
    if (session->kill_descendants)
        TerminateJobObject(session->job, INTERRUPTED);
    end_console(session);
    finish_if_exited(session);
}
