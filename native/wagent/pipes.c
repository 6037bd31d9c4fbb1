/* Named pipes that wproxy relays to Unix sockets of the host. */

#include "wagent.h"

#define MAX_PIPE 257

static void pipe_opened(struct session *session, BOOL well)
{
    BYTE frame[LINK_HEADER];
    session->waiting = FALSE;
    if (well && !session->closed) {
        send_frame(session->id, CONNECTED, frame, 0);
        read_more(&session->output);
    } else {
        drop(&session->output.pipe);
        session->exited = TRUE;
    }
    finish_if_over(session);
    free_if_over(session);
}

void pipe_moved(OVERLAPPED *io, DWORD size, BOOL well)
{
    struct session *session = ((struct stream *)io)->session; /* struct input has the same layout */
    if (io == &session->input.io) {
        input_went(&session->input, well);
    } else if (session->waiting) {
        session->outstanding--;
        pipe_opened(session, well);
    } else {
        output_came(&session->output, size, well);
    }
}

/* Creates the server end of a duplex pipe that a program may open. */
static DWORD make_named_pipe(struct session *session, const WCHAR *name)
{
    DWORD kind = PIPE_TYPE_BYTE | PIPE_REJECT_REMOTE_CLIENTS;
    HANDLE self = GetCurrentProcess();
    HANDLE pipe = CreateNamedPipeW(name, PIPE_ACCESS_DUPLEX | FILE_FLAG_OVERLAPPED, kind,
                                   PIPE_UNLIMITED_INSTANCES, PIPE_SIZE, PIPE_SIZE, 0, NULL);
    if (pipe == INVALID_HANDLE_VALUE)
        return GetLastError();
    session->output.pipe = pipe;
    if (!DuplicateHandle(self, pipe, self, &session->input.pipe, 0, FALSE, DUPLICATE_SAME_ACCESS)
        || !CreateIoCompletionPort(pipe, port, PIPE_MOVED, 0))
        return GetLastError();
    session->waiting = TRUE;
    session->outstanding++;
    if (ConnectNamedPipe(pipe, &session->output.io) || GetLastError() == ERROR_IO_PENDING)
        return 0;
    session->outstanding--;
    return GetLastError();
}

void open_pipe(DWORD id, const BYTE *payload, DWORD size)
{
    struct reader reader = {payload, payload + size, FALSE};
    WCHAR path[16 + MAX_PIPE] = L"\\\\.\\pipe\\", *name = text(&reader, MAX_PIPE);
    DWORD error = ERROR_INVALID_PARAMETER;
    if (!reader.bad && !find(id)) {
        struct session *session = open_session(id);
        session->piped = TRUE;
        error = make_named_pipe(session, lstrcatW(path, name));
        if (!error || error == ERROR_PIPE_CONNECTED)
            send_done(id);
        else
            close_session(session);
        if (error == ERROR_PIPE_CONNECTED)
            pipe_opened(session, TRUE);
    }
    release(name);
    if (error && error != ERROR_PIPE_CONNECTED)
        send_failure(id, error);
}
