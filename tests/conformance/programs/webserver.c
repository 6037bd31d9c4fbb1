/* Web server on port 80 that responds to every request. */

#include <string.h>
#include <winsock2.h>

static const char ANSWER[] = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n"
                             "Connection: close\r\n\r\nhello\n";

int main(void)
{
    WSADATA started;
    WSAStartup(MAKEWORD(2, 2), &started);
    SOCKET listening = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in everywhere = {.sin_family = AF_INET, .sin_port = htons(80)};
    if (bind(listening, (struct sockaddr *)&everywhere, sizeof everywhere) || listen(listening, 16))
        return WSAGetLastError();
    for (;;) {
        char request[4096];
        SOCKET client = accept(listening, NULL, NULL);
        recv(client, request, sizeof request, 0);
        send(client, ANSWER, (int)strlen(ANSWER), 0);
        shutdown(client, SD_SEND);
        while (recv(client, request, sizeof request, 0) > 0)
            ;
        closesocket(client);
    }
}
