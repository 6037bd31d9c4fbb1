/* A web server for Windows, as small as can be: it says where it runs, and what it was told.
 *
 * web.exe [PORT]        serves; it greets with the variable GREETING, or C:\config\greeting.txt
 * web.exe get HOST PORT asks another one, and prints what it says */
#include <winsock2.h>
#include <ws2tcpip.h>
#include <windows.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void read_greeting(char *text, DWORD size) {
    FILE *file = fopen("C:\\config\\greeting.txt", "rb");
    if (file) {
        text[fread(text, 1, size - 1, file)] = 0;
        fclose(file);
    } else if (!GetEnvironmentVariableA("GREETING", text, size)) {
        strcpy(text, "Hello");
    }
    text[strcspn(text, "\r\n")] = 0;
}

static void read_build(char *text, DWORD size) {
    DWORD major = 0, minor = 0, length = sizeof major;
    char number[32] = "?";
    const char *key = "SOFTWARE\\Microsoft\\Windows NT\\CurrentVersion";
    RegGetValueA(HKEY_LOCAL_MACHINE, key, "CurrentMajorVersionNumber", RRF_RT_REG_DWORD, NULL, &major,
                 &length);
    length = sizeof minor;
    RegGetValueA(HKEY_LOCAL_MACHINE, key, "CurrentMinorVersionNumber", RRF_RT_REG_DWORD, NULL, &minor,
                 &length);
    length = sizeof number;
    RegGetValueA(HKEY_LOCAL_MACHINE, key, "CurrentBuildNumber", RRF_RT_REG_SZ, NULL, number,
                 &length);
    snprintf(text, size, "%lu.%lu.%s", major, minor, number);
}

static void answer(SOCKET client) {
    char request[2048], greeting[512], computer[256] = "?", build[64], page[2048], whole[4096];
    DWORD length = sizeof computer;
    int got = recv(client, request, sizeof request - 1, 0);
    if (got <= 0)
        return;
    read_greeting(greeting, sizeof greeting);
    read_build(build, sizeof build);
    GetComputerNameA(computer, &length);
    snprintf(page, sizeof page, "%s from %s, Windows %s\n", greeting, computer, build);
    snprintf(whole, sizeof whole,
             "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\n"
             "Connection: close\r\n\r\n%s",
             strlen(page), page);
    send(client, whole, (int)strlen(whole), 0);
    shutdown(client, SD_SEND);
    while (recv(client, request, sizeof request, 0) > 0)
        ;
}

static DWORD WINAPI serve(LPVOID client) {
    answer((SOCKET)client);
    closesocket((SOCKET)client);
    return 0;
}

static int get(const char *host, const char *port) {
    char text[4096], *body;
    int length = 0, got;
    struct addrinfo wanted = {0}, *found;
    SOCKET server;
    wanted.ai_family = AF_INET;
    wanted.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host, port, &wanted, &found)) {
        fprintf(stderr, "there is no %s\n", host);
        return 1;
    }
    server = socket(found->ai_family, found->ai_socktype, found->ai_protocol);
    if (connect(server, found->ai_addr, (int)found->ai_addrlen)) {
        fprintf(stderr, "%s does not answer: %d\n", host, WSAGetLastError());
        return 1;
    }
    send(server, "GET / HTTP/1.0\r\n\r\n", 18, 0);
    while ((got = recv(server, text + length, (int)sizeof text - 1 - length, 0)) > 0)
        length += got;
    text[length] = 0;
    body = strstr(text, "\r\n\r\n");
    fputs(body ? body + 4 : text, stdout);
    return 0;
}

int main(int count, char **words) {
    WSADATA data;
    struct sockaddr_in place = {0};
    int port = count > 1 ? atoi(words[1]) : 80;
    SOCKET server;
    if (WSAStartup(MAKEWORD(2, 2), &data))
        return 1;
    if (count == 4 && !strcmp(words[1], "get"))
        return get(words[2], words[3]);
    server = socket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
    place.sin_family = AF_INET;
    place.sin_port = htons((u_short)port);
    place.sin_addr.s_addr = htonl(INADDR_ANY);
    if (bind(server, (struct sockaddr *)&place, sizeof place) || listen(server, 64)) {
        fprintf(stderr, "cannot listen on port %d: %d\n", port, WSAGetLastError());
        return 1;
    }
    printf("listening on port %d\n", port);
    fflush(stdout);
    for (;;) {
        SOCKET client = accept(server, NULL, NULL);
        HANDLE thread;
        if (client == INVALID_SOCKET)
            continue;
        thread = CreateThread(NULL, 0, serve, (LPVOID)client, 0, NULL);
        if (thread)
            CloseHandle(thread);
        else
            closesocket(client);
    }
}
