/* Named pipes that wproxy relays to Unix sockets of the host. */

#include "wagent.h"

static void pipe_opened(struct session *session, BOOL succeeded)
{
    BYTE frame[LINK_HEADER_SIZE];
    session->waiting = FALSE;
    if (succeeded && !session->closed) {
        send_frame(session->id, FRAME_PIPE_CONNECTED, frame, 0);
        read_more(&session->output);
    } else {
        close_handle(&session->output.pipe);
        session->exited = TRUE;
    }
    finish_if_exited(session);
    free_if_closed(session);
}

void pipe_io_done(OVERLAPPED *io, DWORD size, BOOL succeeded)
{
    struct session *session = ((struct stream *)io)->session; /* struct input has the same layout */
    if (io == &session->input.io) {
        input_written(&session->input, succeeded);
    } else if (session->waiting) {
        session->outstanding--;
        pipe_opened(session, succeeded);
    } else {
        output_read(&session->output, size, succeeded);
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
        || !CreateIoCompletionPort(pipe, port, EVENT_PIPE_IO, 0))
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
    WCHAR path[16 + MAX_PIPE_NAME] = L"\\\\.\\pipe\\", *name = text(&reader, MAX_PIPE_NAME);
    DWORD error = ERROR_INVALID_PARAMETER;
    if (!reader.bad && !find(id)) {
        struct session *session = open_session(id);
        session->is_named_pipe = TRUE;
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
