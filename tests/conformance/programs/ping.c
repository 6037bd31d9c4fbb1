/* Stand-in for `ping -t NAME`, which Wine's ping does not support: resolves the name with the
 * Windows API, and prints a line per second until it is killed. It sends nothing.
 */

#include <stdio.h>
#include <winsock2.h>
#include <ws2tcpip.h>

int main(int count, char **words)
{
    WSADATA started;
    WSAStartup(MAKEWORD(2, 2), &started);
    if (count != 3 || strcmp(words[1], "-t")) {
        fprintf(stderr, "ping (stand-in): only -t NAME is known\n");
        return 1;
    }
    for (;; Sleep(1000)) {
        struct addrinfo *found, wanted = {.ai_family = AF_INET};
        char address[INET_ADDRSTRLEN];
        if (getaddrinfo(words[2], NULL, &wanted, &found)) {
            printf("Ping request could not find host %s.\n", words[2]);
            return 1;
        }
        struct sockaddr_in *first = (struct sockaddr_in *)found->ai_addr;
        printf("%s is %s\n", words[2],
               inet_ntop(AF_INET, &first->sin_addr, address, sizeof address));
        fflush(stdout);
        freeaddrinfo(found);
    }
}
