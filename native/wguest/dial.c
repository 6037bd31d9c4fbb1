/* A connection to a port of the pod, from inside: carried over a port of the microVM's own.
 *
 *     dial PORT NUMBER ADDRESS...
 *
 * The guest says first, as a u32, the number of the error, or 0. From then on both sides send
 * frames: a u32 length, and as many bytes; a length of 0 is the end of what that side sends. When
 * the host lets go of the port, the connection is closed.
 */

#define _GNU_SOURCE
#include "wguest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../protocol.h"

#define CONNECT_MS 10000
#define HOST_MS 10000 /* that the host's end of a new port may take to be seen */
#define BLOCK (16u << 10)

struct line {
    int port, connection;
    bool sent_all, heard_all;
    uint8_t heading[4];
    size_t headed;  /* bytes of the heading that have come */
    uint32_t awaited; /* bytes of the frame that have not */
};

static bool is_held(int port)
{
    struct pollfd one = {.fd = port, .events = POLLOUT};
    poll(&one, 1, 0);
    return !(one.revents & POLLHUP);
}

static void send_whole(int fd, const uint8_t *data, size_t size)
{
    while (size) {
        ssize_t now = write(fd, data, size);
        if (now < 0 && errno != EAGAIN && errno != EINTR)
            _exit(0);
        if (now > 0) {
            data += now;
            size -= (size_t)now;
            continue;
        }
        struct pollfd one = {.fd = fd, .events = POLLOUT};
        poll(&one, 1, 1000);
        if (one.revents & (POLLHUP | POLLERR))
            _exit(0);
    }
}

static int connect_to(const char *address, int number)
{
    struct sockaddr_in old = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number)};
    struct sockaddr_in6 new = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)number)};
    bool is_old = inet_pton(AF_INET, address, &old.sin_addr) == 1;
    if (!is_old && inet_pton(AF_INET6, address, &new.sin6_addr) != 1)
        return -EINVAL;
    int made = socket(is_old ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = 0;
    socklen_t size = sizeof error;
    if (!connect(made, is_old ? (void *)&old : (void *)&new, is_old ? sizeof old : sizeof new))
        return made;
    struct pollfd one = {.fd = made, .events = POLLOUT};
    if (errno != EINPROGRESS)
        error = errno;
    else if (poll(&one, 1, CONNECT_MS) != 1)
        error = ETIMEDOUT;
    else if (getsockopt(made, SOL_SOCKET, SO_ERROR, &error, &size))
        error = errno;
    if (!error)
        return made;
    close(made);
    return -error;
}

/* The connection, or the first error, negative. */
static int connect_to_any(char **addresses, int number)
{
    int first = -EINVAL;
    for (char **address = addresses; *address; address++) {
        int made = connect_to(*address, number);
        if (made >= 0)
            return made;
        if (address == addresses)
            first = made;
    }
    return first;
}

static void to_host(struct line *line)
{
    uint8_t frame[4 + BLOCK];
    ssize_t now = read(line->connection, frame + 4, BLOCK);
    if (now < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (now <= 0)
        line->sent_all = true;
    put32(frame, now > 0 ? (uint32_t)now : 0);
    send_whole(line->port, frame, 4 + (now > 0 ? (size_t)now : 0));
}

static void from_host(struct line *line)
{
    uint8_t data[BLOCK];
    bool in_heading = !line->awaited;
    size_t most = line->awaited < BLOCK ? line->awaited : BLOCK;
    ssize_t now = in_heading
        ? read(line->port, line->heading + line->headed, sizeof line->heading - line->headed)
        : read(line->port, data, most);
    if (now <= 0)
        return;
    if (!in_heading) {
        line->awaited -= (uint32_t)now;
        send_whole(line->connection, data, (size_t)now);
        return;
    }
    line->headed += (size_t)now;
    if (line->headed < sizeof line->heading)
        return;
    line->headed = 0;
    line->awaited = get32(line->heading);
    if (!line->awaited) {
        line->heard_all = true;
        shutdown(line->connection, SHUT_WR);
    }
}

static void carry_line(struct line *line)
{
    while (!line->sent_all || !line->heard_all) {
        struct pollfd ready[] = {
            {.fd = line->port, .events = line->heard_all ? 0 : POLLIN},
            {.fd = line->sent_all ? -1 : line->connection, .events = POLLIN},
        };
        poll(ready, 2, -1);
        if (ready[0].revents & POLLHUP)
            return;
        if (ready[0].revents & POLLIN)
            from_host(line);
        if (ready[1].revents)
            to_host(line);
    }
    while (is_held(line->port)) /* what was written is lost where a port is closed too early */
        usleep(20000);
}

static void answer_call(int port, char **words)
{
    for (int waited = 0; !is_held(port) && waited < HOST_MS; waited += 5)
        usleep(5000);
    int made = connect_to_any(words + 2, atoi(words[1]));
    uint8_t error[4];
    put32(error, made < 0 ? (uint32_t)-made : 0);
    send_whole(port, error, sizeof error);
    struct line line = {.port = port, .connection = made};
    line.sent_all = line.heard_all = made < 0;
    carry_line(&line);
    _exit(0);
}

int dial(char **words)
{
    int port = open_port(words[0]);
    if (port < 0)
        return ENODEV;
    pid_t child = fork();
    if (!child) {
        signal(SIGPIPE, SIG_IGN);
        answer_call(port, words);
    }
    int error = child < 0 ? errno : 0;
    close(port);
    return error;
}
