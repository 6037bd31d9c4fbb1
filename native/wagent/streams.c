/* Input and output of programs and named pipes, with flow control. */

#include "wagent.h"

void read_more(struct stream *stream)
{
    struct session *session = stream->session;
    if (!stream->pipe || stream->reading || session->closed || session->finished)
        return;
    if (session->credit <= 0)
        return;
    stream->reserved = min((DWORD)session->credit, CHUNK);
    stream->io = (OVERLAPPED){0};
    if (ReadFile(stream->pipe, stream->frame + LINK_HEADER_SIZE, stream->reserved, NULL, &stream->io)
        || GetLastError() == ERROR_IO_PENDING) {
        stream->reading = TRUE;
        session->credit -= (LONG)stream->reserved;
        session->outstanding++;
        return;
    }
    close_handle(&stream->pipe);
    session->exited |= session->is_named_pipe;
}

void output_read(struct stream *stream, DWORD size, BOOL succeeded)
{
    struct session *session = stream->session;
    session->outstanding--;
    stream->reading = FALSE;
    session->credit += (LONG)stream->reserved;
    session->last_output = GetTickCount64();
    session->exited |= session->is_named_pipe && !succeeded;
    if (!succeeded || (session->is_named_pipe && session->exited))
        close_handle(&stream->pipe);
    else if (size && !session->closed && !session->finished)
        send_frame(session->id, stream->type, stream->frame, size);
    read_more(stream);
    finish_if_exited(session);
    free_if_closed(session);
}

/* Closes a named pipe. The program can still read what was written to it. */
static void end_pipe(struct session *session)
{
    session->exited = TRUE;
    if (session->output.reading)
        CancelIoEx(session->output.pipe, NULL);
    else
        close_handle(&session->output.pipe);
    finish_if_exited(session);
}

void write_more(struct input *input)
{
    struct session *session = input->session;
    if (input->writing || session->closed)
        return;
    if (!input->pipe) {
        if (input->filled)
            send_number(session->id, FRAME_STDIN_CREDIT, input->filled);
        input->filled = 0;
    } else if (input->filled) {
        input->writing = min(input->filled, STDIN_WINDOW - input->start);
        input->io = (OVERLAPPED){0};
        if (WriteFile(input->pipe, input->data + input->start, input->writing, NULL, &input->io)
            || GetLastError() == ERROR_IO_PENDING) {
            session->outstanding++;
            return;
        }
        input->writing = 0;
        close_handle(&input->pipe);
        write_more(input);
    } else if (input->ending && !session->console) {
        close_handle(&input->pipe);
        if (session->is_named_pipe)
            end_pipe(session);
    }
}

void input_written(struct input *input, BOOL succeeded)
{
    struct session *session = input->session;
    session->outstanding--;
    if (!session->closed)
        send_number(session->id, FRAME_STDIN_CREDIT, input->writing);
    input->start = (input->start + input->writing) % STDIN_WINDOW;
    input->filled -= input->writing;
    input->writing = 0;
    if (!succeeded)
        close_handle(&input->pipe);
    write_more(input);
    free_if_closed(session);
}

void queue_input(struct session *session, BYTE *data, DWORD size)
{
    struct input *input = &session->input;
    if (size > STDIN_WINDOW - input->filled) {
        send_failure(session->id, ERROR_INVALID_PARAMETER);
        return;
    }
    if (session->keys)
        size = without_ctrl_c(session, data, size);
    DWORD end = (input->start + input->filled) % STDIN_WINDOW;
    DWORD first = min(size, STDIN_WINDOW - end);
    CopyMemory(input->data + end, data, first);
    CopyMemory(input->data, data + first, size - first);
    input->filled += size;
    write_more(input);
}

static void append_number(WCHAR **at, DWORD number)
{
    WCHAR digits[10];
    int count = 0;
    do
        digits[count++] = (WCHAR)(L'0' + number % 10);
    while (number /= 10);
    while (count)
        *(*at)++ = digits[--count];
    *(*at) = 0;
}

/* Creates a pipe: one end for the program, one with completion events for wagent. */
BOOL make_pipe(HANDLE *ours, HANDLE *theirs, BOOL to_program, void *key)
{
    static DWORD made;
    WCHAR name[64] = L"\\\\.\\pipe\\winpod-", *end = name + lstrlenW(name);
    append_number(&end, GetCurrentProcessId());
    *end++ = L'-';
    append_number(&end, ++made);
    DWORD access = to_program ? PIPE_ACCESS_OUTBOUND : PIPE_ACCESS_INBOUND;
    HANDLE server = CreateNamedPipeW(
        name, access | FILE_FLAG_OVERLAPPED | FILE_FLAG_FIRST_PIPE_INSTANCE,
        PIPE_TYPE_BYTE | PIPE_REJECT_REMOTE_CLIENTS, 1, PIPE_SIZE, PIPE_SIZE, 0, NULL);
    if (server == INVALID_HANDLE_VALUE)
        return FALSE;
    *ours = server;
    SECURITY_ATTRIBUTES inherited = {sizeof inherited, NULL, TRUE};
    DWORD wanted = (to_program ? GENERIC_READ : GENERIC_WRITE) | FILE_READ_ATTRIBUTES
        | FILE_WRITE_ATTRIBUTES;
    HANDLE client = CreateFileW(name, wanted, 0, &inherited, OPEN_EXISTING, 0, NULL);
    if (client == INVALID_HANDLE_VALUE)
        return FALSE;
    *theirs = client;
    return CreateIoCompletionPort(server, port, (ULONG_PTR)key, 0) != NULL;
}
