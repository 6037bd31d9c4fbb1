/* Declarations shared by the parts of wagent.exe. */

#ifndef WINPOD_WAGENT_H
#define WINPOD_WAGENT_H

#define WIN32_LEAN_AND_MEAN
#define NOUSER
#define NOGDI
#define PSAPI_VERSION 2
#define _WIN32_WINNT 0x0A00
#include <windows.h>
#include <psapi.h>

#include "../protocol.h"

#define PIPE_SIZE (64u << 10)
#define MAX_TEXT 32767
#define MAX_STOPPED 256
#define INTERRUPTED 0xC000013Au

/* Events of the completion port. */
enum event {
    FRAME_CAME,
    OUTPUT_CAME,
    INPUT_WENT,
    PIPE_MOVED,
    JOB_CHANGED,
    HANDLER_ENDED,
    STOPPED,
    QUIET_SEEN,
};

struct session;

/* Reading from a program. Data is read into the frame that is sent. */
struct stream {
    OVERLAPPED io;
    struct session *session;
    HANDLE pipe;
    DWORD reserved;
    BOOL reading;
    BYTE type, frame[LINK_HEADER + CHUNK];
};

/* Writing to a program. */
struct input {
    OVERLAPPED io;
    struct session *session;
    HANDLE pipe;
    DWORD start, filled, writing;
    BOOL ending;
    BYTE data[INPUT_WINDOW];
};

/* A client, and the program or the named pipe that it requested. */
struct session {
    struct session *next;
    DWORD id, pid, code, outstanding;
    LONG credit;
    BOOL whole, exited, finished, closed, looking;
    BOOL piped, waiting; /* a named pipe; it was not opened yet */
    ULONGLONG last_heard;
    HANDLE process, job, keys, screen;
    HPCON console;
    struct stream output, errors;
    struct input input;
    struct {
        DWORD pids[MAX_STOPPED], many, event;
        HANDLE process, thread, wait;
    } stop;
};

struct frame {
    DWORD session, size;
    BYTE type, payload[];
};

extern HANDLE port, requests, answers, frame_taken;
extern struct session *sessions;

/* memory.c */
void *allocate(SIZE_T size);
void release(void *memory);
void drop(HANDLE *handle);

/* link.c */
DWORD WINAPI receive(void *unused);
void send_frame(DWORD id, BYTE type, BYTE *frame, DWORD size);
void send_number(DWORD id, BYTE type, DWORD number);
void send_done(DWORD id);
void send_failure(DWORD id, DWORD code);

/* payload.c */
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
struct session *find(DWORD id);
void *key_of(struct session *session, enum event event);
struct session *open_session(DWORD id);
void close_session(struct session *session);
void free_if_over(struct session *session);
void finish_if_over(struct session *session);
void quiet_seen(struct session *session);

/* streams.c */
BOOL make_pipe(HANDLE *ours, HANDLE *theirs, BOOL to_program, void *key);
void read_more(struct stream *stream);
void output_came(struct stream *stream, DWORD size, BOOL well);
void take_input(struct session *session, BYTE *data, DWORD size);
void write_more(struct input *input);
void input_went(struct input *input, BOOL well);

/* terminal.c */
BOOL open_screen(struct session *session, HANDLE theirs[3]);
void end_console(struct session *session);
void resize(struct session *session, DWORD columns, DWORD rows);
DWORD without_ctrl_c(struct session *session, BYTE *data, DWORD size);

/* programs.c */
void start_program(DWORD id, const BYTE *payload, DWORD size);

/* pipes.c */
void open_pipe(DWORD id, const BYTE *payload, DWORD size);
void pipe_moved(OVERLAPPED *io, DWORD size, BOOL well);

/* events.c */
HANDLE raise_event(HANDLE process, DWORD event);

/* stopping.c */
void take_signal(struct session *session, BYTE kind);
void end_stop(struct session *session);
void handler_ended(struct session *session);
void stopped(struct session *session, BOOL timed_out);
void job_changed(struct session *session, DWORD message, DWORD pid);

/* requests.c */
void take_registry(DWORD id, const BYTE *payload, DWORD size);
void list_processes(DWORD id);

#endif
