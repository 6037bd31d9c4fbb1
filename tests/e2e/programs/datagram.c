/* Answers datagrams with its name and the sender's address, or sends one and prints the answer. */
#include <winsock2.h>
#include <ws2tcpip.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRIES = 5, WAIT_MILLISECONDS = 2000, LARGEST = 1500 };

static int fail(const char *what)
{
    printf("%s: error %d\n", what, WSAGetLastError());
    return 1;
}

static int serve(SOCKET made, unsigned short port)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(port)}, client;
    char name[256] = "", question[LARGEST], answer[LARGEST];
    int size = sizeof client;
    if (bind(made, (struct sockaddr *)&own, sizeof own))
        return fail("bind");
    gethostname(name, sizeof name);
    while (recvfrom(made, question, LARGEST, 0, (struct sockaddr *)&client, &size) >= 0) {
        snprintf(answer, LARGEST, "%s heard %s", name, inet_ntoa(client.sin_addr));
        sendto(made, answer, (int)strlen(answer), 0, (struct sockaddr *)&client, size);
    }
    return fail("recvfrom");
}

static int ask(SOCKET made, const char *host, unsigned short port)
{
    struct sockaddr_in other = {.sin_family = AF_INET, .sin_port = htons(port)};
    DWORD wait = WAIT_MILLISECONDS;
    char answer[LARGEST];
    other.sin_addr.s_addr = inet_addr(host);
    setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, (const char *)&wait, sizeof wait);
    for (int try = 0; try < TRIES; try++) {
        sendto(made, "hello", 5, 0, (struct sockaddr *)&other, sizeof other);
        int size = recv(made, answer, LARGEST, 0);
        if (size >= 0) {
            printf("%.*s\n", size, answer);
            return 0;
        }
    }
    return fail("recv");
}

int main(int count, char **arguments)
{
    WSADATA data;
    WSAStartup(MAKEWORD(2, 2), &data);
    SOCKET made = socket(AF_INET, SOCK_DGRAM, 0);
    if (made == INVALID_SOCKET)
        return fail("socket");
    if (count == 3 && !strcmp(arguments[1], "serve"))
        return serve(made, (unsigned short)atoi(arguments[2]));
    if (count == 4 && !strcmp(arguments[1], "ask"))
        return ask(made, arguments[2], (unsigned short)atoi(arguments[3]));
    puts("datagram serve PORT | datagram ask ADDRESS PORT");
    return 1;
}
