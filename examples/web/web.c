/* A minimal web server for Windows that reports its greeting, its host and its Windows build.
 *
 * web.exe [PORT]         serve; the greeting is in C:\config\greeting.txt or the variable GREETING
 * web.exe get HOST PORT  send a request to another server and print the response
 *
 * It needs no C library, so it builds quickly. */
#include <winsock2.h>
#include <ws2tcpip.h>

#define ROOM 2048

void *memset(void *to, int value, size_t count) {
    volatile char *at = to;
    while (count--)
        *at++ = (char)value;
    return to;
}

static void say(DWORD stream, const char *text) {
    DWORD written;
    WriteFile(GetStdHandle(stream), text, (DWORD)lstrlenA(text), &written, NULL);
}

static void append(char *text, const char *more) {
    int length = lstrlenA(text);
    lstrcpynA(text + length, more, ROOM - length);
}

static int number(const char *text) {
    int found = 0;
    while (*text >= '0' && *text <= '9')
        found = found * 10 + *text++ - '0';
    return found;
}

static void append_greeting(char *page) {
    char text[512] = "";
    DWORD length = 0;
    HANDLE file = CreateFileA("C:\\config\\greeting.txt", GENERIC_READ, FILE_SHARE_READ, NULL,
                              OPEN_EXISTING, 0, NULL);
    if (file != INVALID_HANDLE_VALUE) {
        ReadFile(file, text, sizeof text - 1, &length, NULL);
        CloseHandle(file);
        text[length] = 0;
    } else if (!GetEnvironmentVariableA("GREETING", text, sizeof text)) {
        lstrcpynA(text, "Hello", sizeof text);
    }
    for (char *at = text; *at; at++)
        if (*at == '\r' || *at == '\n')
            *at = 0;
    append(page, text);
}

static void append_build(char *page) {
    char build[32] = "?";
    DWORD length = sizeof build;
    RegGetValueA(HKEY_LOCAL_MACHINE, "SOFTWARE\\Microsoft\\Windows NT\\CurrentVersion",
                 "CurrentBuildNumber", RRF_RT_REG_SZ, NULL, build, &length);
    append(page, build);
}

static DWORD WINAPI answer(LPVOID given) {
    SOCKET client = (SOCKET)given;
    char text[ROOM], computer[256] = "?";
    DWORD length = sizeof computer;
    if (recv(client, text, sizeof text, 0) > 0) {
        lstrcpynA(text, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n", ROOM);
        append_greeting(text);
        append(text, " from ");
        GetComputerNameA(computer, &length);
        append(text, computer);
        append(text, ", Windows 10.0.");
        append_build(text);
        append(text, "\n");
        send(client, text, lstrlenA(text), 0);
        shutdown(client, SD_SEND);
        while (recv(client, text, sizeof text, 0) > 0)
            ;
    }
    closesocket(client);
    return 0;
}

static int serve(const char *port) {
    struct sockaddr_in place = {0};
    SOCKET server = socket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
    place.sin_family = AF_INET;
    place.sin_port = htons((u_short)number(port));
    if (bind(server, (struct sockaddr *)&place, sizeof place) || listen(server, 64)) {
        say(STD_ERROR_HANDLE, "the port is in use\n");
        return 1;
    }
    say(STD_OUTPUT_HANDLE, "listening on port ");
    say(STD_OUTPUT_HANDLE, port);
    say(STD_OUTPUT_HANDLE, "\n");
    for (;;) {
        SOCKET client = accept(server, NULL, NULL);
        HANDLE thread = CreateThread(NULL, 0, answer, (LPVOID)client, 0, NULL);
        if (thread)
            CloseHandle(thread);
    }
}

static int get(const char *host, const char *port) {
    char text[ROOM];
    int length = 0, got;
    struct addrinfo wanted = {0}, *found;
    SOCKET server;
    wanted.ai_family = AF_INET;
    wanted.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host, port, &wanted, &found)) {
        say(STD_ERROR_HANDLE, "unknown host\n");
        return 1;
    }
    server = socket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
    if (connect(server, found->ai_addr, (int)found->ai_addrlen)) {
        say(STD_ERROR_HANDLE, "connection failed\n");
        return 1;
    }
    send(server, "GET / HTTP/1.0\r\n\r\n", 18, 0);
    while ((got = recv(server, text + length, ROOM - 1 - length, 0)) > 0)
        length += got;
    text[length] = 0;
    for (char *at = text; *at; at++)
        if (at[0] == '\n' && at[1] == '\r' && at[2] == '\n') {
            say(STD_OUTPUT_HANDLE, at + 3);
            return 0;
        }
    return 1;
}

static int split(char *line, char **words, int most) {
    int count = 0;
    while (count < most) {
        while (*line == ' ')
            *line++ = 0;
        if (!*line)
            break;
        words[count++] = line;
        while (*line && *line != ' ')
            line++;
    }
    if (*line)
        *line = 0;
    return count;
}

void start(void) {
    WSADATA data;
    char *words[4];
    int count = split(GetCommandLineA(), words, 4), code;
    WSAStartup(MAKEWORD(2, 2), &data);
    if (count == 4)
        code = get(words[2], words[3]);
    else
        code = serve(count > 1 ? words[1] : "80");
    ExitProcess((UINT)code);
}
