/* The Windows side of a silo: starts programs and relays their streams, in one event loop.
 *
 * Requests arrive on standard input and answers go to standard output, as in protocol.h. Programs
 * get native Windows pipes (many refuse others), the raw command line, and a job object that
 * contains their descendants. There is no C library.
 */

#include "wagent.h"

HANDLE port;

static void take_frame(struct frame *frame)
{
    struct session *session = find(frame->session);
    BYTE *payload = frame->payload;
    DWORD size = frame->size;
    switch (frame->type) {
    case START:
        start_program(frame->session, payload, size);
        return;
    case PROCESSES:
        list_processes(frame->session);
        return;
    case REGISTRY:
        take_registry(frame->session, payload, size);
        return;
    case PING:
        send_done(frame->session);
        return;
    case PIPE:
        open_pipe(frame->session, payload, size);
        return;
    }
    if (!session)
        return;
    if (frame->type == INPUT) {
        take_input(session, payload, size);
    } else if (frame->type == INPUT_END) {
        session->input.ending = TRUE;
        write_more(&session->input);
    } else if (frame->type == SIGNAL && size == 1 && session->process) {
        take_signal(session, *payload);
    } else if (frame->type == RESIZE && size == 4) {
        resize(session, get16(payload), get16(payload + 2));
    } else if (frame->type == (session->piped ? TAKEN : CREDIT) && size == 4) {
        session->credit += (LONG)min(get32(payload), OUTPUT_WINDOW);
        read_more(&session->output);
        read_more(&session->errors);
        finish_if_over(session);
    } else if (frame->type == CLOSE) {
        close_session(session);
    }
}

static void take_event(DWORD size, ULONG_PTR key, OVERLAPPED *io, BOOL well)
{
    struct session *session = find((DWORD)(key >> 8));
    switch ((enum event)(key & 255)) {
    case FRAME_CAME:
        take_frame((struct frame *)io);
        release(io);
        SetEvent(frame_taken);
        return;
    case OUTPUT_CAME:
        output_came((struct stream *)io, size, well);
        return;
    case INPUT_WENT:
        input_went((struct input *)io, well);
        return;
    case PIPE_MOVED:
        pipe_moved(io, size, well);
        return;
    case JOB_CHANGED:
        if (session)
            job_changed(session, size, (DWORD)(ULONG_PTR)io);
        return;
    case HANDLER_ENDED:
        if (session)
            handler_ended(session);
        return;
    case STOPPED:
        if (session)
            stopped(session, (BOOL)size);
        return;
    case QUIET_SEEN:
        if (session)
            quiet_seen(session);
    }
}

static BOOL any_ending(void)
{
    BOOL any = FALSE;
    for (struct session *session = sessions, *next; session; session = next) {
        next = session->next;
        finish_if_over(session);
        any |= session->exited && !session->finished && !session->closed;
    }
    return any;
}

void start(void)
{
    requests = GetStdHandle(STD_INPUT_HANDLE);
    answers = GetStdHandle(STD_OUTPUT_HANDLE);
    SetHandleInformation(requests, HANDLE_FLAG_INHERIT, 0);
    SetHandleInformation(answers, HANDLE_FLAG_INHERIT, 0);
    port = CreateIoCompletionPort(INVALID_HANDLE_VALUE, NULL, 0, 1);
    frame_taken = CreateEventW(NULL, FALSE, FALSE, NULL);
    HANDLE receiver = CreateThread(NULL, 0, receive, NULL, 0, NULL);
    if (!port || !frame_taken || !receiver)
        ExitProcess(1);
    for (;;) {
        DWORD size = 0;
        ULONG_PTR key = 0;
        OVERLAPPED *io = NULL;
        BOOL well = GetQueuedCompletionStatus(port, &size, &key, &io, any_ending() ? 50 : INFINITE);
        if (well || io)
            take_event(size, key, io, well);
    }
}
