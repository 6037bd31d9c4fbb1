/* Pseudo consoles, where Wine's differ from Windows'. */

#include "wagent.h"

#define CTRL_C 3

LONG NTAPI NtCreateFile(HANDLE *file, ACCESS_MASK access, void *attributes, void *status,
                        void *size, ULONG kind, ULONG share, ULONG how, ULONG options, void *more,
                        ULONG more_size);

/* Console requests run in their own thread, because the console answers only when its output has
 * been read. */
struct console_work {
    HANDLE part;
    COORD size;
};

static void run_console_request(HANDLE part, LPTHREAD_START_ROUTINE what, COORD size)
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

/* Wine cannot resize a pseudo console, but its screen buffer can be resized. */
void resize(struct session *session, DWORD columns, DWORD rows)
{
    if (session->screen && columns && rows && columns <= 1000 && rows <= 1000)
        run_console_request(session->screen, set_size, (COORD){(SHORT)columns, (SHORT)rows});
}

/* Wine's console closes on Ctrl+C as a character, so it is sent as a key event. */
DWORD without_ctrl_c(struct session *session, BYTE *data, DWORD size)
{
    DWORD left = 0;
    for (DWORD i = 0; i < size; i++)
        if (data[i] != CTRL_C)
            data[left++] = data[i];
    if (left < size) {
        run_console_request(session->keys, press_ctrl_c, (COORD){0, 0});
        send_number(session->id, FRAME_STDIN_CREDIT, size - left);
    }
    return left;
}

/* Opens a part of the console device, absolute or relative to a handle. */
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
                 FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, 1 /* FILE_OPEN */,
                 0x60 /* FILE_NON_DIRECTORY_FILE | FILE_SYNCHRONOUS_IO_NONALERT */, NULL, 0);
    return opened;
}

/* Windows gives a program the streams of its pseudo console, Wine does not. They are opened here,
 * which requires a connection to the console meanwhile. */
BOOL open_screen(struct session *session, HANDLE theirs[3])
{
    const struct {
        HANDLE signal, reference, process;
    } *wine = session->console;
    HANDLE connection = open_console(wine->reference, (WCHAR *)L"Connection", FALSE);
    close_handle(&theirs[0]);
    close_handle(&theirs[1]);
    theirs[0] = open_console(NULL, (WCHAR *)L"\\Device\\ConDrv\\CurrentIn", TRUE);
    theirs[1] = open_console(NULL, (WCHAR *)L"\\Device\\ConDrv\\CurrentOut", TRUE);
    theirs[2] = open_console(NULL, (WCHAR *)L"\\Device\\ConDrv\\CurrentOut", TRUE);
    session->keys = open_console(NULL, (WCHAR *)L"\\Device\\ConDrv\\CurrentIn", FALSE);
    session->screen = open_console(NULL, (WCHAR *)L"\\Device\\ConDrv\\CurrentOut", FALSE);
    close_handle(&connection);
    SetLastError(ERROR_INVALID_HANDLE);
    return theirs[0] && theirs[1] && theirs[2] && session->keys && session->screen;
}

static DWORD WINAPI close_console(void *console)
{
    ClosePseudoConsole(console); /* waits until the program's output was read */
    return 0;
}

void end_console(struct session *session)
{
    HPCON console = session->console;
    session->console = NULL;
    HANDLE thread = console ? CreateThread(NULL, 0, close_console, console, 0, NULL) : NULL;
    if (thread)
        CloseHandle(thread);
}
