/* The life of a session, from the first frame of a client to the last answer. */

#include "wagent.h"

#define QUIET 250 /* ms of silence after the exit, on a stream that descendants hold open */
#define CONSOLE_QUIET 10000 /* a console closes its stream itself, when it has shown everything */

struct session *sessions;

/* Closes a handle, if there is one. */
void close_handle(HANDLE *handle)
{
    if (*handle)
        CloseHandle(*handle);
    *handle = NULL;
}

struct session *find(DWORD id)
{
    for (struct session *session = sessions; session; session = session->next)
        if (session->id == id && !session->closed)
            return session;
    return NULL;
}

void *key_of(struct session *session, enum event event)
{
    return (void *)((ULONG_PTR)session->id << 8 | event);
}

struct session *open_session(DWORD id)
{
    struct session *session = allocate(sizeof *session);
    session->id = id;
    session->credit = OUTPUT_WINDOW;
    session->output.session = session->errors.session = session->input.session = session;
    session->output.type = FRAME_STDOUT;
    session->errors.type = FRAME_STDERR;
    session->next = sessions;
    sessions = session;
    return session;
}

/* The client disconnected, or the start failed: end everything of the session. */
void close_session(struct session *session)
{
    if (session->closed)
        return;
    session->closed = TRUE;
    if (session->job && !(session->exited && !session->kill_descendants))
        TerminateJobObject(session->job, INTERRUPTED);
    end_stop(session);
    end_console(session);
    HANDLE pipes[] = {session->output.pipe, session->errors.pipe, session->input.pipe};
    for (int i = 0; i < 3; i++)
        if (pipes[i])
            CancelIoEx(pipes[i], NULL);
    free_if_closed(session);
}

void free_if_closed(struct session *session)
{
    if (!session->closed || session->outstanding)
        return;
    for (struct session **at = &sessions; *at; at = &(*at)->next) {
        if (*at != session)
            continue;
        *at = session->next;
        close_handle(&session->output.pipe);
        close_handle(&session->errors.pipe);
        close_handle(&session->input.pipe);
        close_handle(&session->keys);
        close_handle(&session->screen);
        close_handle(&session->process);
        close_handle(&session->job);
        release(session);
        return;
    }
}

static void finish(struct session *session)
{
    session->finished = TRUE;
    send_number(session->id, FRAME_EXIT, session->code);
}

static BOOL is_quiet(struct session *session)
{
    BOOL listening = (!session->output.pipe || session->output.reading)
        && (!session->errors.pipe || session->errors.reading);
    ULONGLONG quiet = session->screen ? CONSOLE_QUIET : QUIET;
    return listening && GetTickCount64() - session->last_output > quiet;
}

/* A program has exited when it has ended and all of its output was sent. If descendants hold its
 * streams open, it must have been quiet after all pending events were handled, however late. */
void finish_if_exited(struct session *session)
{
    if (!session->exited || session->finished || session->closed)
        return;
    if (!session->output.pipe && !session->errors.pipe)
        finish(session);
    else if (is_quiet(session) && !session->quiet_posted)
        session->quiet_posted = PostQueuedCompletionStatus(
            port, 0, (ULONG_PTR)key_of(session, EVENT_QUIET), NULL);
}

void quiet_elapsed(struct session *session)
{
    session->quiet_posted = FALSE;
    if (!session->finished && is_quiet(session))
        finish(session);
}
