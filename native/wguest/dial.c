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

/* Bytes on their way: nothing more is read before they have gone on. */
struct way {
    size_t start, filled;
    uint8_t data[4 + BLOCK];
};

struct line {
    int port, connection;
    bool sent_all, heard_all;
    uint8_t heading[4];
    size_t headed;    /* bytes of the heading that have come */
    uint32_t awaited; /* bytes of the frame that have not */
    struct way to_host, from_host;
};

static bool is_held(int port)
{
    struct pollfd one = {.fd = port, .events = POLLOUT};
    poll(&one, 1, 0);
    return !(one.revents & POLLHUP);
}

/* Writes what it can. Returns false when the other side is gone. */
static bool drain(int fd, struct way *way)
{
    while (way->filled) {
        ssize_t now = write(fd, way->data + way->start, way->filled);
        if (now < 0)
            return errno == EAGAIN || errno == EINTR;
        way->start += (size_t)now;
        way->filled -= (size_t)now;
    }
    return true;
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

static void hear_pod(struct line *line)
{
    struct way *way = &line->to_host;
    ssize_t now = read(line->connection, way->data + 4, BLOCK);
    if (now < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    line->sent_all = now <= 0;
    put32(way->data, now > 0 ? (uint32_t)now : 0);
    way->start = 0;
    way->filled = 4 + (now > 0 ? (size_t)now : 0);
}

static void hear_heading(struct line *line)
{
    ssize_t now = read(line->port, line->heading + line->headed, 4 - line->headed);
    if (now <= 0 || (line->headed += (size_t)now) < 4)
        return;
    line->headed = 0;
    line->awaited = get32(line->heading);
    if (!line->awaited) {
        line->heard_all = true;
        shutdown(line->connection, SHUT_WR);
    }
}

static void hear_host(struct line *line)
{
    struct way *way = &line->from_host;
    if (!line->awaited) {
        hear_heading(line);
        return;
    }
    ssize_t now = read(line->port, way->data, line->awaited < BLOCK ? line->awaited : BLOCK);
    if (now <= 0)
        return;
    line->awaited -= (uint32_t)now;
    way->start = 0;
    way->filled = (size_t)now;
}

static void carry_line(struct line *line)
{
    while (!line->sent_all || !line->heard_all || line->to_host.filled) {
        bool hears_host = !line->heard_all && !line->from_host.filled;
        bool hears_pod = !line->sent_all && !line->to_host.filled;
        struct pollfd ready[] = {
            {.fd = line->port, .events = (hears_host ? POLLIN : 0)},
            {.fd = line->connection, .events = (hears_pod ? POLLIN : 0)},
        };
        ready[0].events |= line->to_host.filled ? POLLOUT : 0;
        ready[1].events |= line->from_host.filled ? POLLOUT : 0;
        if (!ready[1].events)
            ready[1].fd = -1; /* that it is over is known already */
        poll(ready, 2, -1);
        if (ready[0].revents & POLLHUP)
            return;
        if (hears_host && ready[0].revents & POLLIN)
            hear_host(line);
        if (hears_pod && ready[1].revents)
            hear_pod(line);
        if (!drain(line->port, &line->to_host))
            return;
        if (!drain(line->connection, &line->from_host))
            line->from_host.filled = 0; /* nobody reads it any more */
    }
    while (is_held(line->port)) /* what was written is lost where a port is closed too early */
        usleep(20000);
}

static void answer_call(int port, char **words)
{
    static struct line line;
    for (int waited = 0; !is_held(port) && waited < HOST_MS; waited += 5)
        usleep(5000);
    line.port = port;
    line.connection = connect_to_any(words + 2, atoi(words[1]));
    put32(line.to_host.data, line.connection < 0 ? (uint32_t)-line.connection : 0);
    line.to_host.filled = 4;
    line.sent_all = line.heard_all = line.connection < 0;
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
