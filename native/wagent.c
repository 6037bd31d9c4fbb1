/* The Windows side of a shell: starts programs and carries their streams, in one event loop.
 *
 * Requests come on standard input and answers go to standard output, as protocol.h says. Programs
 * get pipes of Windows' own making (many refuse others), the raw command line, and a job that holds
 * whatever they start. There is no C library.
 *
 * Events that a program can catch are delivered as Windows does it: by a thread in the program that
 * runs kernelbase's CtrlRoutine. Wine's own console knows Ctrl+C and Ctrl+Break only.
 */

#define WIN32_LEAN_AND_MEAN
#define NOUSER
#define NOGDI
#define PSAPI_VERSION 2
#define _WIN32_WINNT 0x0A00
#include <windows.h>
#include <psapi.h>

#include "protocol.h"

#define PIPE_SIZE (64u << 10)
#define MAX_TEXT 32767
#define MAX_PIPE 257
#define MAX_STOPPED 256
#define QUIET 250             /* ms that a stream others hold open stays silent before an exit counts */
#define AFTER_HANDLER 2000    /* ms that a program may go on after its handler returned */
#define INTERRUPTED 0xC000013Au
#define CTRL_C 3

typedef struct {
    USHORT Length, MaximumLength;
    WCHAR *Buffer;
} TEXT_VIEW;

LONG NTAPI RtlSetEnvironmentVariable(WCHAR **environment, TEXT_VIEW *name, TEXT_VIEW *value);
LONG NTAPI RtlQueryEnvironmentVariable_U(WCHAR *environment, TEXT_VIEW *name, TEXT_VIEW *value);
LONG NTAPI NtQuerySystemInformation(ULONG what, void *into, ULONG size, ULONG *needed);
LONG NTAPI NtCreateFile(HANDLE *file, ACCESS_MASK access, void *attributes, void *status,
                        void *size, ULONG kind, ULONG share, ULONG how, ULONG options, void *more,
                        ULONG more_size);
BOOL WINAPI CreateEnvironmentBlock(void **environment, HANDLE token, BOOL inherit);
BOOL WINAPI DestroyEnvironmentBlock(void *environment);

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

/* Reading from a program. The frame is built where the data is read to. */
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

struct session {
    struct session *next;
    DWORD id, pid, code, outstanding;
    LONG credit;
    BOOL whole, exited, finished, closed, looking;
    BOOL piped, waiting; /* it is a named pipe, which nobody has opened yet */
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

static HANDLE port, requests, answers, frame_taken;
static struct session *sessions;

/* The compiler calls these by itself. */
void *memcpy(void *to, const void *from, size_t size)
{
    BYTE *at = to;
    __asm__ volatile("rep movsb" : "+D"(at), "+S"(from), "+c"(size) : : "memory");
    return to;
}

void *memset(void *to, int value, size_t size)
{
    BYTE *at = to;
    __asm__ volatile("rep stosb" : "+D"(at), "+c"(size) : "a"(value) : "memory");
    return to;
}

static void *allocate(SIZE_T size)
{
    void *memory = HeapAlloc(GetProcessHeap(), HEAP_ZERO_MEMORY, size);
    if (!memory)
        ExitProcess(ERROR_NOT_ENOUGH_MEMORY);
    return memory;
}

static void release(void *memory)
{
    HeapFree(GetProcessHeap(), 0, memory);
}

static void drop(HANDLE *handle)
{
    if (*handle)
        CloseHandle(*handle);
    *handle = NULL;
}

/* ---- the link ---- */

static struct session *find(DWORD id)
{
    for (struct session *session = sessions; session; session = session->next)
        if (session->id == id && !session->closed)
            return session;
    return NULL;
}

static BOOL read_all(BYTE *into, DWORD size)
{
    for (DWORD now; size; into += now, size -= now)
        if (!ReadFile(requests, into, size, &now, NULL) || !now)
            return FALSE;
    return TRUE;
}

static DWORD WINAPI receive(void *unused)
{
    (void)unused;
    BYTE header[LINK_HEADER];
    while (read_all(header, sizeof header)) {
        DWORD size = get32(header);
        if (size > MAX_FRAME)
            break;
        struct frame *frame = allocate(sizeof *frame + size);
        frame->size = size;
        frame->type = header[4];
        frame->session = get32(header + 5);
        if (!read_all(frame->payload, size))
            break;
        PostQueuedCompletionStatus(port, 0, FRAME_CAME, (OVERLAPPED *)frame);
        WaitForSingleObject(frame_taken, INFINITE);
    }
    ExitProcess(0);
}

/* Sends a frame whose first LINK_HEADER bytes are free. */
static void send_frame(DWORD id, BYTE type, BYTE *frame, DWORD size)
{
    put32(frame, size);
    frame[4] = type;
    put32(frame + 5, id);
    struct session *session = find(id);
    if (session)
        session->credit -= (LONG)(FRAME_HEADER + size);
    for (DWORD left = LINK_HEADER + size, now; left; frame += now, left -= now)
        if (!WriteFile(answers, frame, left, &now, NULL))
            ExitProcess(1);
}

static void send_number(DWORD id, BYTE type, DWORD number)
{
    BYTE frame[LINK_HEADER + 4];
    put32(frame + LINK_HEADER, number);
    send_frame(id, type, frame, 4);
}

static void send_done(DWORD id)
{
    BYTE frame[LINK_HEADER];
    send_frame(id, DONE, frame, 0);
}

/* Windows' sentences where Wine's own are others. */
static const struct {
    DWORD code;
    const char *text;
} sentences[] = {
    {ERROR_FILE_NOT_FOUND, "The system cannot find the file specified."},
    {ERROR_PATH_NOT_FOUND, "The system cannot find the path specified."},
    {ERROR_ACCESS_DENIED, "Access is denied."},
    {ERROR_NOT_ENOUGH_MEMORY, "Not enough memory resources are available to process this command."},
    {ERROR_INVALID_PARAMETER, "The parameter is incorrect."},
    {ERROR_INVALID_NAME, "The filename, directory name, or volume label syntax is incorrect."},
    {ERROR_BAD_EXE_FORMAT, "%1 is not a valid Win32 application."},
    {ERROR_FILENAME_EXCED_RANGE, "The filename or extension is too long."},
    {ERROR_EXE_MACHINE_TYPE_MISMATCH,
     "This version of %1 is not compatible with the version of Windows you're running."},
    {ERROR_DIRECTORY, "The directory name is invalid."},
    {ERROR_ELEVATION_REQUIRED, "The requested operation requires elevation."},
    {ERROR_NO_SYSTEM_RESOURCES, "Insufficient system resources exist to complete the requested service."},
};

static void send_failure(DWORD id, DWORD code)
{
    BYTE frame[LINK_HEADER + 4 + 512];
    char *text = (char *)frame + LINK_HEADER + 4;
    int size = 0;
    for (unsigned i = 0; i < sizeof sentences / sizeof *sentences; i++)
        if (sentences[i].code == code)
            size = lstrlenA(lstrcpyA(text, sentences[i].text));
    if (!size) {
        WCHAR wide[160];
        DWORD flags = FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS;
        DWORD units = FormatMessageW(flags, NULL, code, 0, wide, 160, NULL);
        while (units && wide[units - 1] <= ' ')
            units--;
        size = WideCharToMultiByte(CP_UTF8, 0, wide, (int)units, text, 512, NULL, NULL);
    }
    put32(frame + LINK_HEADER, code);
    send_frame(id, FAILED, frame, 4 + (DWORD)size);
}

/* ---- streams ---- */

static void read_more(struct stream *stream)
{
    struct session *session = stream->session;
    if (!stream->pipe || stream->reading || session->closed || session->finished)
        return;
    if (session->credit <= 0)
        return;
    stream->reserved = min((DWORD)session->credit, CHUNK);
    stream->io = (OVERLAPPED){0};
    if (ReadFile(stream->pipe, stream->frame + LINK_HEADER, stream->reserved, NULL, &stream->io)
        || GetLastError() == ERROR_IO_PENDING) {
        stream->reading = TRUE;
        session->credit -= (LONG)stream->reserved;
        session->outstanding++;
        return;
    }
    drop(&stream->pipe);
    session->exited |= session->piped;
}

static void free_if_over(struct session *session);

static void finish(struct session *session)
{
    session->finished = TRUE;
    send_number(session->id, EXIT, session->code);
}

static void *key_of(struct session *session, enum event event)
{
    return (void *)((ULONG_PTR)session->id << 8 | event);
}

static BOOL is_quiet(struct session *session)
{
    BOOL listening = (!session->output.pipe || session->output.reading)
        && (!session->errors.pipe || session->errors.reading);
    return listening && GetTickCount64() - session->last_heard > QUIET;
}

/* A program has exited when it has ended and all that it wrote is on its way. Where others hold its
 * streams open, it is quiet only if all that had come by then was looked at, however late we are. */
static void finish_if_over(struct session *session)
{
    if (!session->exited || session->finished || session->closed)
        return;
    if (!session->output.pipe && !session->errors.pipe)
        finish(session);
    else if (is_quiet(session) && !session->looking)
        session->looking = PostQueuedCompletionStatus(port, 0, (ULONG_PTR)key_of(session, QUIET_SEEN),
                                                      NULL);
}

static void quiet_seen(struct session *session)
{
    session->looking = FALSE;
    if (!session->finished && is_quiet(session))
        finish(session);
}

static void output_came(struct stream *stream, DWORD size, BOOL well)
{
    struct session *session = stream->session;
    session->outstanding--;
    stream->reading = FALSE;
    session->credit += (LONG)stream->reserved;
    session->last_heard = GetTickCount64();
    session->exited |= session->piped && !well;
    if (!well || (session->piped && session->exited))
        drop(&stream->pipe);
    else if (size && !session->closed && !session->finished)
        send_frame(session->id, stream->type, stream->frame, size);
    read_more(stream);
    finish_if_over(session);
    free_if_over(session);
}

/* What a program has not yet read of a named pipe, it still can. */
static void end_pipe(struct session *session)
{
    session->exited = TRUE;
    if (session->output.reading)
        CancelIoEx(session->output.pipe, NULL);
    else
        drop(&session->output.pipe);
    finish_if_over(session);
}

static void write_more(struct input *input)
{
    struct session *session = input->session;
    if (input->writing || session->closed)
        return;
    if (!input->pipe) {
        if (input->filled)
            send_number(session->id, WINDOW, input->filled);
        input->filled = 0;
    } else if (input->filled) {
        input->writing = min(input->filled, INPUT_WINDOW - input->start);
        input->io = (OVERLAPPED){0};
        if (WriteFile(input->pipe, input->data + input->start, input->writing, NULL, &input->io)
            || GetLastError() == ERROR_IO_PENDING) {
            session->outstanding++;
            return;
        }
        input->writing = 0;
        drop(&input->pipe);
        write_more(input);
    } else if (input->ending && !session->console) {
        drop(&input->pipe);
        if (session->piped)
            end_pipe(session);
    }
}

static void input_went(struct input *input, BOOL well)
{
    struct session *session = input->session;
    session->outstanding--;
    if (!session->closed)
        send_number(session->id, WINDOW, input->writing);
    input->start = (input->start + input->writing) % INPUT_WINDOW;
    input->filled -= input->writing;
    input->writing = 0;
    if (!well)
        drop(&input->pipe);
    write_more(input);
    free_if_over(session);
}

/* ---- terminals ---- */

/* What is asked of a console is done by a thread of its own: the console answers when what is on
 * the screen has been read. */
struct console_work {
    HANDLE part;
    COORD size;
};

static void ask_console(HANDLE part, LPTHREAD_START_ROUTINE what, COORD size)
{
    HANDLE self = GetCurrentProcess(), thread = NULL;
    struct console_work *work = allocate(sizeof *work);
    work->size = size;
    if (DuplicateHandle(self, part, self, &work->part, 0, FALSE, DUPLICATE_SAME_ACCESS)) {
        thread = CreateThread(NULL, 0, what, work, 0, NULL);
        if (!thread)
            CloseHandle(work->part);
    }
    if (thread)
        CloseHandle(thread);
    else
        release(work);
}

static DWORD WINAPI set_size(void *context)
{
    struct console_work *work = context;
    SHORT columns = work->size.X, rows = work->size.Y;
    CONSOLE_SCREEN_BUFFER_INFO now;
    if (GetConsoleScreenBufferInfo(work->part, &now)) {
        SHORT width = min(columns, now.dwSize.X), height = min(rows, now.dwSize.Y);
        SMALL_RECT smaller = {0, 0, (SHORT)(width - 1), (SHORT)(height - 1)};
        SMALL_RECT window = {0, 0, (SHORT)(columns - 1), (SHORT)(rows - 1)};
        SetConsoleWindowInfo(work->part, TRUE, &smaller);
        SetConsoleScreenBufferSize(work->part, work->size);
        SetConsoleWindowInfo(work->part, TRUE, &window);
    }
    CloseHandle(work->part);
    release(work);
    return 0;
}

static DWORD WINAPI press_ctrl_c(void *context)
{
    struct console_work *work = context;
    INPUT_RECORD key = {.EventType = KEY_EVENT};
    key.Event.KeyEvent.bKeyDown = TRUE;
    key.Event.KeyEvent.wRepeatCount = 1;
    key.Event.KeyEvent.wVirtualKeyCode = 'C';
    key.Event.KeyEvent.uChar.UnicodeChar = CTRL_C;
    key.Event.KeyEvent.dwControlKeyState = LEFT_CTRL_PRESSED;
    DWORD written;
    WriteConsoleInputW(work->part, &key, 1, &written);
    key.Event.KeyEvent.bKeyDown = FALSE;
    WriteConsoleInputW(work->part, &key, 1, &written);
    CloseHandle(work->part);
    release(work);
    return 0;
}

/* Wine cannot resize a pseudo console, but anyone can who has its screen. */
static void resize(struct session *session, DWORD columns, DWORD rows)
{
    if (session->screen && columns && rows && columns <= 1000 && rows <= 1000)
        ask_console(session->screen, set_size, (COORD){(SHORT)columns, (SHORT)rows});
}

/* Wine's console ends when Ctrl+C comes as a character, so it comes as a key. */
static DWORD without_ctrl_c(struct session *session, BYTE *data, DWORD size)
{
    DWORD left = 0;
    for (DWORD i = 0; i < size; i++)
        if (data[i] != CTRL_C)
            data[left++] = data[i];
    if (left < size) {
        ask_console(session->keys, press_ctrl_c, (COORD){0, 0});
        send_number(session->id, WINDOW, size - left);
    }
    return left;
}

static void take_input(struct session *session, BYTE *data, DWORD size)
{
    struct input *input = &session->input;
    if (size > INPUT_WINDOW - input->filled) {
        send_failure(session->id, ERROR_INVALID_PARAMETER);
        return;
    }
    if (session->keys)
        size = without_ctrl_c(session, data, size);
    DWORD end = (input->start + input->filled) % INPUT_WINDOW;
    DWORD first = min(size, INPUT_WINDOW - end);
    CopyMemory(input->data + end, data, first);
    CopyMemory(input->data, data + first, size - first);
    input->filled += size;
    write_more(input);
}

static void append_number(WCHAR **at, DWORD number)
{
    WCHAR digits[10];
    int many = 0;
    do
        digits[many++] = (WCHAR)(L'0' + number % 10);
    while (number /= 10);
    while (many)
        *(*at)++ = digits[--many];
    *(*at) = 0;
}

/* One end for the program, and one, with events, for us. */
static BOOL make_pipe(HANDLE *ours, HANDLE *theirs, BOOL to_program, void *key)
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

/* ---- sessions ---- */

static DWORD WINAPI close_console(void *console)
{
    ClosePseudoConsole(console); /* waits until what the program wrote is read */
    return 0;
}

static void end_console(struct session *session)
{
    HPCON console = session->console;
    session->console = NULL;
    HANDLE thread = console ? CreateThread(NULL, 0, close_console, console, 0, NULL) : NULL;
    if (thread)
        CloseHandle(thread);
}

static void end_stop(struct session *session)
{
    if (session->stop.wait)
        UnregisterWaitEx(session->stop.wait, INVALID_HANDLE_VALUE);
    session->stop.wait = NULL;
    drop(&session->stop.thread);
    drop(&session->stop.process);
}

/* The client has gone, or never was: nothing of the session may go on. */
static void close_session(struct session *session)
{
    if (session->closed)
        return;
    session->closed = TRUE;
    if (session->job && !(session->exited && !session->whole))
        TerminateJobObject(session->job, INTERRUPTED);
    end_stop(session);
    end_console(session);
    HANDLE pipes[] = {session->output.pipe, session->errors.pipe, session->input.pipe};
    for (int i = 0; i < 3; i++)
        if (pipes[i])
            CancelIoEx(pipes[i], NULL);
    free_if_over(session);
}

static void free_if_over(struct session *session)
{
    if (!session->closed || session->outstanding)
        return;
    for (struct session **at = &sessions; *at; at = &(*at)->next) {
        if (*at != session)
            continue;
        *at = session->next;
        drop(&session->output.pipe);
        drop(&session->errors.pipe);
        drop(&session->input.pipe);
        drop(&session->keys);
        drop(&session->screen);
        drop(&session->process);
        drop(&session->job);
        release(session);
        return;
    }
}

static struct session *open_session(DWORD id)
{
    struct session *session = allocate(sizeof *session);
    session->id = id;
    session->credit = OUTPUT_WINDOW;
    session->output.session = session->errors.session = session->input.session = session;
    session->output.type = OUTPUT;
    session->errors.type = ERRORS;
    session->next = sessions;
    sessions = session;
    return session;
}

/* ---- starting ---- */

struct reader {
    const BYTE *at, *end;
    BOOL bad;
};

static const BYTE *bytes(struct reader *reader, DWORD size)
{
    const BYTE *at = reader->at;
    if (reader->bad || size > (DWORD)(reader->end - at)) {
        reader->bad = TRUE;
        return (const BYTE *)"\0\0\0\0";
    }
    reader->at += size;
    return at;
}

/* A text of its own, always with an end; NULL when there is none. */
static WCHAR *text(struct reader *reader, DWORD most)
{
    DWORD units = get32(bytes(reader, 4));
    if (reader->bad || !units || units > most) {
        reader->bad = TRUE;
        return NULL;
    }
    const BYTE *from = bytes(reader, units * sizeof(WCHAR));
    if (reader->bad)
        return NULL;
    WCHAR *copy = allocate((units + 1) * sizeof(WCHAR));
    CopyMemory(copy, from, units * sizeof(WCHAR));
    reader->bad = copy[units - 1] != 0;
    return copy;
}

static TEXT_VIEW view(WCHAR *from, SIZE_T units)
{
    return (TEXT_VIEW){(USHORT)(units * sizeof(WCHAR)), (USHORT)(units * sizeof(WCHAR)), from};
}

/* The environment of the machine and the user, and over it the given NAME=VALUE, each with its
 * end, and an empty one last. */
static WCHAR *make_environment(WCHAR *given)
{
    WCHAR *environment = NULL;
    HANDLE token = NULL;
    OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &token);
    BOOL made = CreateEnvironmentBlock((void **)&environment, token, FALSE);
    drop(&token);
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

/* A program is looked for as its own environment and directory say, not ours. */
static void search_like(WCHAR *environment, const WCHAR *directory)
{
    static WCHAR found[MAX_TEXT + 1];
    TEXT_VIEW path = view((WCHAR *)L"PATH", 4), value = {0, MAX_TEXT * sizeof(WCHAR), found};
    if (RtlQueryEnvironmentVariable_U(environment, &path, &value) >= 0) {
        found[value.Length / sizeof(WCHAR)] = 0;
        SetEnvironmentVariableW(L"PATH", found);
    }
    SetCurrentDirectoryW(directory);
}

/* A part of the console device: of the whole, or of what a handle stands for. */
static HANDLE open_console(HANDLE root, WCHAR *name, BOOL inherited)
{
    TEXT_VIEW path = view(name, (SIZE_T)lstrlenW(name));
    struct {
        ULONG size;
        HANDLE root;
        TEXT_VIEW *name;
        ULONG flags;
        void *unused[2];
    } attributes = {sizeof attributes, root, &path, inherited ? 2 : 0, {NULL, NULL}};
    void *status[2];
    HANDLE opened = NULL;
    NtCreateFile(&opened, GENERIC_READ | GENERIC_WRITE | SYNCHRONIZE, &attributes, status, NULL, 0,
                 FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, 1 /* open */,
                 0x60 /* a file, synchronous */, NULL, 0);
    return opened;
}

/* Windows gives a program its pseudo console's streams, Wine does not: they are opened here, by
 * being connected to the console for as long as that takes. */
static BOOL open_screen(struct session *session, HANDLE theirs[3])
{
    const struct {
        HANDLE signal, reference, process;
    } *wine = session->console;
    HANDLE connection = open_console(wine->reference, (WCHAR *)L"Connection", FALSE);
    drop(&theirs[0]);
    drop(&theirs[1]);
    theirs[0] = open_console(NULL, (WCHAR *)L"\\Device\\ConDrv\\CurrentIn", TRUE);
    theirs[1] = open_console(NULL, (WCHAR *)L"\\Device\\ConDrv\\CurrentOut", TRUE);
    theirs[2] = open_console(NULL, (WCHAR *)L"\\Device\\ConDrv\\CurrentOut", TRUE);
    session->keys = open_console(NULL, (WCHAR *)L"\\Device\\ConDrv\\CurrentIn", FALSE);
    session->screen = open_console(NULL, (WCHAR *)L"\\Device\\ConDrv\\CurrentOut", FALSE);
    drop(&connection);
    SetLastError(ERROR_INVALID_HANDLE);
    return theirs[0] && theirs[1] && theirs[2] && session->keys && session->screen;
}

static BOOL connect_streams(struct session *session, BYTE flags, COORD size, HANDLE theirs[3])
{
    if (flags & (START_INPUT | START_TERMINAL)) {
        if (!make_pipe(&session->input.pipe, &theirs[0], TRUE, (void *)INPUT_WENT))
            return FALSE;
    } else {
        SECURITY_ATTRIBUTES inherited = {sizeof inherited, NULL, TRUE};
        theirs[0] = CreateFileW(L"NUL", GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE,
                                &inherited, OPEN_EXISTING, 0, NULL);
        if (theirs[0] == INVALID_HANDLE_VALUE)
            theirs[0] = NULL;
    }
    if (!make_pipe(&session->output.pipe, &theirs[1], FALSE, (void *)OUTPUT_CAME))
        return FALSE;
    if (!(flags & START_TERMINAL))
        return make_pipe(&session->errors.pipe, &theirs[2], FALSE, (void *)OUTPUT_CAME);
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
    BOOL well = CreateProcessW(NULL, line, NULL, NULL, TRUE, flags, environment, directory,
                               &with.StartupInfo, &made);
    DWORD error = GetLastError();
    DeleteProcThreadAttributeList(with.lpAttributeList);
    if (!well) {
        SetLastError(error);
        return FALSE;
    }
    session->process = made.hProcess;
    session->pid = made.dwProcessId;
    JOBOBJECT_ASSOCIATE_COMPLETION_PORT told = {
        (void *)((ULONG_PTR)session->id << 8 | JOB_CHANGED), port};
    session->job = CreateJobObjectW(NULL, NULL);
    well = SetInformationJobObject(session->job, JobObjectAssociateCompletionPortInformation,
                                   &told, sizeof told)
        && AssignProcessToJobObject(session->job, session->process);
    error = GetLastError();
    if (well)
        ResumeThread(made.hThread);
    else
        TerminateProcess(session->process, error);
    CloseHandle(made.hThread);
    SetLastError(error);
    return well;
}

static void start_program(DWORD id, const BYTE *payload, DWORD size)
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
            search_like(environment, directory);
        BOOL well = environment && connect_streams(session, flags, extent, theirs)
            && create(session, line, directory, environment, theirs);
        error = well ? 0 : GetLastError();
        SetCurrentDirectoryW(L"C:\\");
        for (int i = 0; i < 3; i++)
            drop(&theirs[i]);
        if (well) {
            session->whole = flags & START_WHOLE;
            send_number(id, STARTED, session->pid);
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

/* ---- named pipes of the host ---- */

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

static void pipe_moved(OVERLAPPED *io, DWORD size, BOOL well)
{
    struct session *session = ((struct stream *)io)->session; /* an input's is at the same place */
    if (io == &session->input.io) {
        input_went(&session->input, well);
    } else if (session->waiting) {
        session->outstanding--;
        pipe_opened(session, well);
    } else {
        output_came(&session->output, size, well);
    }
}

/* One end, for reading and for writing, of a pipe that a program may open. */
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

static void open_pipe(DWORD id, const BYTE *payload, DWORD size)
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

/* ---- ending ---- */

static BOOL peek(HANDLE process, const BYTE *from, void *into, SIZE_T size)
{
    SIZE_T got;
    return ReadProcessMemory(process, from, into, size, &got) && got == size;
}

/* Where a module of another process has one of its tables, whatever its bitness. */
static BYTE *table_of(HANDLE process, BYTE *module, int which)
{
    IMAGE_DOS_HEADER dos;
    IMAGE_NT_HEADERS64 head;
    if (!peek(process, module, &dos, sizeof dos)
        || !peek(process, module + dos.e_lfanew, &head, sizeof head))
        return NULL;
    IMAGE_DATA_DIRECTORY *directory = head.OptionalHeader.DataDirectory;
    if (head.OptionalHeader.Magic == IMAGE_NT_OPTIONAL_HDR32_MAGIC)
        directory = ((IMAGE_NT_HEADERS32 *)&head)->OptionalHeader.DataDirectory;
    return directory[which].VirtualAddress ? module + directory[which].VirtualAddress : NULL;
}

static int compare(const char *one, const char *other)
{
    while (*one && *one == *other)
        one++, other++;
    return (BYTE)*one - (BYTE)*other;
}

static BYTE *exported(HANDLE process, BYTE *module, const char *wanted)
{
    BYTE *at = table_of(process, module, IMAGE_DIRECTORY_ENTRY_EXPORT);
    IMAGE_EXPORT_DIRECTORY table;
    if (!at || !peek(process, at, &table, sizeof table))
        return NULL;
    DWORD low = 0, high = table.NumberOfNames;
    while (low < high) {
        DWORD middle = low + (high - low) / 2, name, function;
        WORD ordinal;
        char found[32] = {0};
        if (!peek(process, module + table.AddressOfNames + 4ull * middle, &name, sizeof name)
            || !peek(process, module + name, found, sizeof found - 1))
            return NULL;
        int order = compare(wanted, found);
        if (order < 0)
            high = middle;
        else if (order > 0)
            low = middle + 1;
        else if (peek(process, module + table.AddressOfNameOrdinals + 2ull * middle, &ordinal, 2)
                 && peek(process, module + table.AddressOfFunctions + 4ull * ordinal, &function, 4))
            return module + function;
        else
            return NULL;
    }
    return NULL;
}

/* Where a module keeps the address of a function that it imports from another by name. */
static BYTE *imported(HANDLE process, BYTE *module, const char *wanted, SIZE_T width)
{
    BYTE *at = table_of(process, module, IMAGE_DIRECTORY_ENTRY_IMPORT);
    IMAGE_IMPORT_DESCRIPTOR from;
    for (; at && peek(process, at, &from, sizeof from) && from.Name; at += sizeof from) {
        ULONGLONG name = 0;
        for (SIZE_T i = 0; peek(process, module + from.OriginalFirstThunk + i, &name, width) && name;
             i += width) {
            char found[32] = {0};
            if (!(name >> (8 * width - 1)) && peek(process, module + name + 2, found, sizeof found - 1)
                && !compare(wanted, found))
                return module + from.FirstThunk + i;
        }
    }
    return NULL;
}

/* A program without a handler for an event exits with INTERRUPTED, but Wine's default handler exits
 * with 0. It alone calls ntdll's exit by what kernelbase imports, so there the code is put right. */
static void exit_interrupted(HANDLE process, BYTE *kernelbase, BOOL narrow)
{
    BYTE wide_code[] = {0xB9, 0x3A, 0x01, 0x00, 0xC0, 0x48, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xE0};
    BYTE narrow_code[] = {0xC7, 0x44, 0x24, 0x04, 0x3A, 0x01, 0x00, 0xC0, 0xB8, 0, 0, 0, 0, 0xFF, 0xE0};
    BYTE *code = narrow ? narrow_code : wide_code, there[5];
    SIZE_T size = narrow ? sizeof narrow_code : sizeof wide_code, width = narrow ? 4 : 8, done;
    BYTE *slot = imported(process, kernelbase, "RtlExitUserProcess", width), *exit = NULL;
    if (!slot || !peek(process, slot, &exit, width) || !peek(process, exit, there, sizeof there))
        return;
    if (RtlCompareMemory(there, code, sizeof there) == sizeof there)
        return; /* done for an event before */
    CopyMemory(code + size - 2 - width, &exit, width);
    BYTE *placed = VirtualAllocEx(process, NULL, size, MEM_COMMIT | MEM_RESERVE,
                                  PAGE_EXECUTE_READWRITE);
    DWORD before;
    if (!placed || (narrow && (ULONG_PTR)placed >> 32)
        || !WriteProcessMemory(process, placed, code, size, &done)
        || !VirtualProtectEx(process, slot, width, PAGE_READWRITE, &before))
        return;
    WriteProcessMemory(process, slot, &placed, width, &done);
    VirtualProtectEx(process, slot, width, before, &before);
}

/* A thread in a program that runs its handlers for an event. libuv, and so Node.js, hears nothing
 * of a shutdown: for its programs the console closes instead. */
static HANDLE raise_event(HANDLE process, DWORD event)
{
    HMODULE modules[16];
    DWORD size, many;
    BOOL narrow = FALSE;
    IsWow64Process(process, &narrow);
    if (!K32EnumProcessModulesEx(process, modules, sizeof modules, &size,
                                 narrow ? LIST_MODULES_32BIT : LIST_MODULES_64BIT))
        return NULL;
    many = min(size, sizeof modules) / sizeof *modules;
    if (many && event == CTRL_SHUTDOWN_EVENT
        && exported(process, (BYTE *)modules[0], "uv_signal_start"))
        event = CTRL_CLOSE_EVENT;
    for (DWORD i = 1; i < many; i++) {
        WCHAR name[32];
        if (!K32GetModuleBaseNameW(process, modules[i], name, 32)
            || lstrcmpiW(name, L"kernelbase.dll"))
            continue;
        BYTE *routine = exported(process, (BYTE *)modules[i], "CtrlRoutine");
        exit_interrupted(process, (BYTE *)modules[i], narrow);
        return routine ? CreateRemoteThread(process, NULL, 0, (LPTHREAD_START_ROUTINE)(void *)routine,
                                            (void *)(ULONG_PTR)event, 0, NULL)
                       : NULL;
    }
    return NULL;
}

static DWORD job_pids(struct session *session, DWORD *pids)
{
    struct {
        JOBOBJECT_BASIC_PROCESS_ID_LIST list;
        ULONG_PTR more[MAX_STOPPED];
    } found = {0};
    QueryInformationJobObject(session->job, JobObjectBasicProcessIdList, &found, sizeof found, NULL);
    DWORD many = min(found.list.NumberOfProcessIdsInList, MAX_STOPPED);
    for (DWORD i = 0; i < many; i++)
        pids[i] = (DWORD)found.list.ProcessIdList[i];
    return many;
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
        drop(&process); /* it shows what the others say until their end */
    return process;
}

static void CALLBACK post_handler_ended(void *key, BOOLEAN unused)
{
    (void)unused;
    PostQueuedCompletionStatus(port, 0, (ULONG_PTR)key, NULL);
}

static void CALLBACK post_stopped(void *key, BOOLEAN timed_out)
{
    PostQueuedCompletionStatus(port, timed_out, (ULONG_PTR)key, NULL);
}

/* One program after the other, the newest first, as a console of Windows ends them. */
static void stop_next(struct session *session)
{
    end_stop(session);
    while (session->stop.many) {
        session->stop.process = open_program(session->stop.pids[--session->stop.many]);
        if (!session->stop.process)
            continue;
        session->stop.thread = raise_event(session->stop.process, session->stop.event);
        if (session->stop.thread
            && RegisterWaitForSingleObject(&session->stop.wait, session->stop.thread,
                                           post_handler_ended, key_of(session, HANDLER_ENDED),
                                           INFINITE, WT_EXECUTEONLYONCE))
            return;
        TerminateProcess(session->stop.process, INTERRUPTED);
        end_stop(session);
    }
}

static void handler_ended(struct session *session)
{
    if (!session->stop.process)
        return;
    UnregisterWaitEx(session->stop.wait, INVALID_HANDLE_VALUE);
    session->stop.wait = NULL;
    if (!RegisterWaitForSingleObject(&session->stop.wait, session->stop.process, post_stopped,
                                     key_of(session, STOPPED), AFTER_HANDLER, WT_EXECUTEONLYONCE))
        stop_next(session);
}

static void stopped(struct session *session, BOOL timed_out)
{
    if (timed_out && session->stop.process)
        TerminateProcess(session->stop.process, INTERRUPTED);
    stop_next(session);
}

static void interrupt(struct session *session, DWORD event)
{
    DWORD pids[MAX_STOPPED];
    for (DWORD many = job_pids(session, pids); many;) {
        HANDLE process = open_program(pids[--many]);
        HANDLE thread = process ? raise_event(process, event) : NULL;
        drop(&thread);
        drop(&process);
    }
}

static void take_signal(struct session *session, BYTE kind)
{
    switch (kind) {
    case SIGNAL_SHUTDOWN:
    case SIGNAL_CLOSE:
        if (session->stop.process)
            return; /* under way */
        session->stop.event = kind == SIGNAL_CLOSE ? CTRL_CLOSE_EVENT : CTRL_SHUTDOWN_EVENT;
        session->stop.many = job_pids(session, session->stop.pids);
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

static void job_changed(struct session *session, DWORD message, DWORD pid)
{
    BOOL ended = message == JOB_OBJECT_MSG_ACTIVE_PROCESS_ZERO
        || ((message == JOB_OBJECT_MSG_EXIT_PROCESS
             || message == JOB_OBJECT_MSG_ABNORMAL_EXIT_PROCESS) && pid == session->pid);
    if (!ended || session->exited)
        return;
    WaitForSingleObject(session->process, INFINITE);
    GetExitCodeProcess(session->process, &session->code);
    session->exited = TRUE;
    session->last_heard = GetTickCount64();
    if (session->whole)
        TerminateJobObject(session->job, INTERRUPTED);
    end_console(session);
    finish_if_over(session);
}

/* ---- requests without a program ---- */

/* Changes to the registry: u8 root (0 the machine's, 1 the user's, 2 all users'), u8 what (0 set,
 * 1 remove the value, 2 remove the key), u32 type, text key, text name, u32 size, data. */
static DWORD change_registry(struct reader *reader)
{
    HKEY roots[] = {HKEY_LOCAL_MACHINE, HKEY_CURRENT_USER, HKEY_USERS}, opened = NULL;
    HKEY root = roots[*bytes(reader, 1) % 3];
    BYTE what = *bytes(reader, 1);
    DWORD type = get32(bytes(reader, 4));
    WCHAR *key = text(reader, MAX_TEXT), *name = text(reader, MAX_TEXT);
    DWORD size = get32(bytes(reader, 4));
    const BYTE *data = bytes(reader, size);
    LSTATUS error = ERROR_INVALID_PARAMETER;
    if (!reader->bad && what == 2) {
        error = RegDeleteTreeW(root, key);
    } else if (!reader->bad && what < 2) {
        error = RegCreateKeyExW(root, key, 0, NULL, 0, KEY_SET_VALUE, NULL, &opened, NULL);
        if (!error)
            error = what ? RegDeleteValueW(opened, name)
                         : RegSetValueExW(opened, name, 0, type, data, size);
    }
    if (opened)
        RegCloseKey(opened);
    release(key);
    release(name);
    return what && error == ERROR_FILE_NOT_FOUND ? 0 : (DWORD)error;
}

static void take_registry(DWORD id, const BYTE *payload, DWORD size)
{
    struct reader reader = {payload, payload + size, FALSE};
    DWORD error = 0;
    while (!error && reader.at < reader.end)
        error = change_registry(&reader);
    if (error)
        send_failure(id, error);
    else
        send_done(id);
}

/* What Windows says of a process; only what is used has a name. */
struct process_information {
    ULONG next, threads;
    BYTE unused[24];
    LONGLONG created, user, kernel;
    TEXT_VIEW image;
    LONG priority;
    HANDLE pid, parent;
    BYTE unused_too[16];
    SIZE_T peak_virtual, virtual_size;
    ULONG faults;
    SIZE_T peak_working_set, working_set, unused_at_last[4], page_file, peak_page_file, private_size;
};

static void put64(BYTE *at, ULONGLONG value)
{
    put32(at, (DWORD)value);
    put32(at + 4, (DWORD)(value >> 32));
}

/* Records: u32 pid, u32 parent, u32 threads, u64 created, user and kernel time (in 100 ns), u64
 * working set, u64 private bytes, u32 size of the name, the name in UTF-16. */
static void list_processes(DWORD id)
{
    ULONG needed = 64 << 10;
    BYTE *found = NULL;
    LONG status = -1;
    for (int tries = 0; tries < 5 && status < 0; tries++) {
        release(found);
        found = allocate(needed += 16 << 10);
        status = NtQuerySystemInformation(5, found, needed, &needed);
    }
    BYTE *frame = allocate(LINK_HEADER + MAX_FRAME), *at = frame + LINK_HEADER;
    BYTE *last = frame + LINK_HEADER + MAX_FRAME - 1024;
    for (BYTE *from = found; status >= 0 && at < last;) {
        struct process_information *one = (void *)from;
        DWORD size = one->image.Buffer ? min(one->image.Length, 512u) : 0;
        put32(at, (DWORD)(ULONG_PTR)one->pid);
        put32(at + 4, (DWORD)(ULONG_PTR)one->parent);
        put32(at + 8, one->threads);
        put64(at + 12, (ULONGLONG)one->created);
        put64(at + 20, (ULONGLONG)one->user);
        put64(at + 28, (ULONGLONG)one->kernel);
        put64(at + 36, one->working_set);
        put64(at + 44, one->private_size ? one->private_size : one->page_file);
        put32(at + 52, size);
        CopyMemory(at + 56, one->image.Buffer, size);
        at += 56 + size;
        if (!one->next)
            break;
        from += one->next;
    }
    send_frame(id, PROCESS_LIST, frame, (DWORD)(at - frame - LINK_HEADER));
    release(frame);
    release(found);
}

/* ---- the loop ---- */

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
