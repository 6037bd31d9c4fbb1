/* The Windows side of a silo: starts programs and relays their streams, in one event loop.
 *
 * Requests arrive on standard input and answers go to standard output, as in agent_protocol.h. Programs
 * get native Windows pipes (many refuse others), the raw command line, and a job object that
 * contains their descendants. There is no C library.
 */

#include "wagent.h"

HANDLE port;

void out_of_memory(void)
{
    ExitProcess(ERROR_NOT_ENOUGH_MEMORY);
}

static void handle_frame(struct frame *frame)
{
    struct session *session = find(frame->session);
    BYTE *payload = frame->payload;
    DWORD size = frame->size;
    switch (frame->type) {
    case FRAME_START:
        start_program(frame->session, payload, size);
        return;
    case FRAME_LIST_PROCESSES:
        list_processes(frame->session);
        return;
    case FRAME_REGISTRY:
        change_registry(frame->session, payload, size);
        return;
    case FRAME_PING:
        send_done(frame->session);
        return;
    case FRAME_PIPE_LISTEN:
        open_pipe(frame->session, payload, size);
        return;
    }
    if (!session)
        return;
    BYTE credit = session->is_named_pipe ? FRAME_PIPE_CREDIT : FRAME_OUTPUT_CREDIT;
    if (frame->type == FRAME_STDIN) {
        queue_input(session, payload, size);
    } else if (frame->type == FRAME_STDIN_CLOSE) {
        session->input.ending = TRUE;
        write_more(&session->input);
    } else if (frame->type == FRAME_SIGNAL && size == 1 && session->process) {
        send_signal(session, *payload);
    } else if (frame->type == FRAME_RESIZE && size == TERMINAL_EXTENT_SIZE) {
        resize(session, get16(payload), get16(payload + 2));
    } else if (frame->type == credit && size == 4) {
        session->credit += (LONG)min(get32(payload), OUTPUT_WINDOW);
        read_more(&session->output);
        read_more(&session->errors);
        finish_if_exited(session);
    } else if (frame->type == FRAME_CLIENT_GONE) {
        close_session(session);
    }
}

static void handle_event(DWORD size, ULONG_PTR key, OVERLAPPED *io, BOOL succeeded)
{
    struct session *session = find((DWORD)(key >> 8));
    switch ((enum event)(key & 255)) {
    case EVENT_FRAME_RECEIVED:
        handle_frame((struct frame *)io);
        release(io);
        SetEvent(frame_handled);
        return;
    case EVENT_OUTPUT_READ:
        output_read((struct stream *)io, size, succeeded);
        return;
    case EVENT_INPUT_WRITTEN:
        input_written((struct input *)io, succeeded);
        return;
    case EVENT_PIPE_IO:
        pipe_io_done(io, size, succeeded);
        return;
    case EVENT_JOB:
        if (session)
            job_event(session, size, (DWORD)(ULONG_PTR)io);
        return;
    case EVENT_HANDLER_RETURNED:
        if (session)
            handler_returned(session);
        return;
    case EVENT_STOPPED:
        if (session)
            stopped(session, (BOOL)size);
        return;
    case EVENT_QUIET:
        if (session)
            quiet_elapsed(session);
    }
}

static BOOL any_ending(void)
{
    BOOL any = FALSE;
    for (struct session *session = sessions, *next; session; session = next) {
        next = session->next;
        finish_if_exited(session);
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
    frame_handled = CreateEventW(NULL, FALSE, FALSE, NULL);
    HANDLE receiver = CreateThread(NULL, 0, receive, NULL, 0, NULL);
    if (!port || !frame_handled || !receiver)
        ExitProcess(1);
    for (;;) {
        DWORD size = 0;
        ULONG_PTR key = 0;
        OVERLAPPED *io = NULL;
        DWORD timeout = any_ending() ? 50 : INFINITE;
        BOOL succeeded = GetQueuedCompletionStatus(port, &size, &key, &io, timeout);
        if (succeeded || io)
            handle_event(size, key, io, succeeded);
    }
}
