/* The pipes to and from winit: see agent_protocol.h. */

#include "wagent.h"

HANDLE requests, answers, frame_handled;

static BOOL read_all(BYTE *into, DWORD size)
{
    for (DWORD now; size; into += now, size -= now)
        if (!ReadFile(requests, into, size, &now, NULL) || !now)
            return FALSE;
    return TRUE;
}

DWORD WINAPI receive(void *unused)
{
    (void)unused;
    BYTE header[LINK_HEADER_SIZE];
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
        PostQueuedCompletionStatus(port, 0, EVENT_FRAME_RECEIVED, (OVERLAPPED *)frame);
        WaitForSingleObject(frame_handled, INFINITE);
    }
    ExitProcess(0);
}

/* Sends a frame whose first LINK_HEADER_SIZE bytes are reserved for the header. */
void send_frame(DWORD id, BYTE type, BYTE *frame, DWORD size)
{
    put_link_header(frame, size, type, id);
    struct session *session = find(id);
    if (session)
        session->credit -= (LONG)(FRAME_HEADER_SIZE + size);
    for (DWORD left = LINK_HEADER_SIZE + size, now; left; frame += now, left -= now)
        if (!WriteFile(answers, frame, left, &now, NULL))
            ExitProcess(1);
}

void send_number(DWORD id, BYTE type, DWORD number)
{
    BYTE frame[LINK_HEADER_SIZE + 4];
    put32(frame + LINK_HEADER_SIZE, number);
    send_frame(id, type, frame, 4);
}

void send_done(DWORD id)
{
    BYTE frame[LINK_HEADER_SIZE];
    send_frame(id, FRAME_DONE, frame, 0);
}

/* Windows' messages where Wine's differ. */
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

void send_failure(DWORD id, DWORD code)
{
    BYTE frame[LINK_HEADER_SIZE + 4 + 512];
    char *text = (char *)frame + LINK_HEADER_SIZE + 4;
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
    put32(frame + LINK_HEADER_SIZE, code);
    send_frame(id, FRAME_FAILED, frame, 4 + (DWORD)size);
}
