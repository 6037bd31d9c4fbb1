/* Declarations shared by the parts of wagent.exe. */

#ifndef WINPOD_WAGENT_H
#define WINPOD_WAGENT_H

#define PSAPI_VERSION 2
#include "win_runtime.h"
#include <psapi.h>

#include "agent_protocol.h"
#include "frame_io.h"

#define PIPE_SIZE (64u << 10)
#define MAX_STOP_PIDS 256
#define INTERRUPTED 0xC000013Au

/* Events of the completion port. */
enum event {
    EVENT_FRAME_RECEIVED,
    EVENT_OUTPUT_READ,
    EVENT_INPUT_WRITTEN,
    EVENT_PIPE_IO,
    EVENT_JOB,
    EVENT_HANDLER_RETURNED,
    EVENT_STOPPED,
    EVENT_QUIET,
};

struct session;

/* Reading from a program. Data is read into the frame that is sent. */
struct stream {
    OVERLAPPED io;
    struct session *session;
    HANDLE pipe;
    DWORD reserved;
    BOOL reading;
    BYTE type, frame[LINK_HEADER_SIZE + CHUNK];
};

/* Writing to a program. */
struct input {
    OVERLAPPED io;
    struct session *session;
    HANDLE pipe;
    DWORD start, filled, writing;
    BOOL ending;
    BYTE data[STDIN_WINDOW];
};

/* A client, and the program or the named pipe that it requested. */
struct session {
    struct session *next;
    DWORD id, pid, code, outstanding;
    LONG credit;
    BOOL kill_descendants, exited, finished, closed, quiet_posted;
    BOOL is_named_pipe, waiting; /* a named pipe; it was not opened yet */
    ULONGLONG last_output;
    HANDLE process, job, keys, screen;
    HPCON console;
    struct stream output, errors;
    struct input input;
    struct {
        DWORD pids[MAX_STOP_PIDS], count, event;
        HANDLE process, thread, wait;
    } stop;
};

struct frame {
    DWORD session, size;
    BYTE type, payload[];
};

extern HANDLE port, requests, answers, frame_handled;
extern struct session *sessions;

/* transport.c */
DWORD WINAPI receive(void *unused);
void send_frame(DWORD id, BYTE type, BYTE *frame, DWORD size);
void send_number(DWORD id, BYTE type, DWORD number);
void send_done(DWORD id);
void send_failure(DWORD id, DWORD code);

/* payload_reader.c */
typedef struct {
    USHORT Length, MaximumLength;
    WCHAR *Buffer;
} TEXT_VIEW;

struct reader {
    const BYTE *at, *end;
    BOOL bad;
};

const BYTE *bytes(struct reader *reader, DWORD size);
WCHAR *text(struct reader *reader, DWORD most);
TEXT_VIEW view(WCHAR *from, SIZE_T units);

/* sessions.c */
void close_handle(HANDLE *handle);
struct session *find(DWORD id);
void *key_of(struct session *session, enum event event);
struct session *open_session(DWORD id);
void close_session(struct session *session);
void free_if_closed(struct session *session);
void finish_if_exited(struct session *session);
void quiet_elapsed(struct session *session);

/* streams.c */
BOOL make_pipe(HANDLE *ours, HANDLE *theirs, BOOL to_program, void *key);
void read_more(struct stream *stream);
void output_read(struct stream *stream, DWORD size, BOOL succeeded);
void queue_input(struct session *session, BYTE *data, DWORD size);
void write_more(struct input *input);
void input_written(struct input *input, BOOL succeeded);

/* terminal.c */
BOOL open_screen(struct session *session, HANDLE theirs[3]);
void end_console(struct session *session);
void resize(struct session *session, DWORD columns, DWORD rows);
DWORD without_ctrl_c(struct session *session, BYTE *data, DWORD size);

/* process.c */
void start_program(DWORD id, const BYTE *payload, DWORD size);

/* named_pipes.c */
void open_pipe(DWORD id, const BYTE *payload, DWORD size);
void pipe_io_done(OVERLAPPED *io, DWORD size, BOOL succeeded);

/* console_events.c */
HANDLE raise_event(HANDLE process, DWORD event);

/* signals.c */
void send_signal(struct session *session, BYTE kind);
void end_stop(struct session *session);
void handler_returned(struct session *session);
void stopped(struct session *session, BOOL timed_out);
void job_event(struct session *session, DWORD message, DWORD pid);

/* registry.c */
void change_registry(DWORD id, const BYTE *payload, DWORD size);

/* process_list.c */
void list_processes(DWORD id);

#endif
