/* Connections to a port of the pod from inside of the microVM, relayed over a virtio port.
 *
 *     dial PORT NUMBER ADDRESS...
 *
 * The guest first sends a u32 errno, or 0. Then both sides send frames: a u32 length and the data; a
 * length of 0 is the end of that side's data. The connection is closed when the host closes the port.
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
#define HOST_MS 10000 /* until the guest sees that the host has opened a new port */
#define BLOCK (16u << 10)

/* Data being relayed: no more is read before it was written. */
struct buffer {
    size_t start, filled;
    uint8_t data[4 + BLOCK];
};

struct line {
    int port, connection;
    bool sent_all, received_all;
    uint8_t header[4];
    size_t header_read; /* bytes of the header that were read */
    uint32_t remaining; /* bytes of the frame that were not */
    struct buffer to_host, from_host;
};

static bool is_connected(int port)
{
    struct pollfd one = {.fd = port, .events = POLLOUT};
    poll(&one, 1, 0);
    return !(one.revents & POLLHUP);
}

/* Writes what it can. Returns false if the other side is gone. */
static bool drain(int fd, struct buffer *buffer)
{
    while (buffer->filled) {
        ssize_t now = write(fd, buffer->data + buffer->start, buffer->filled);
        if (now < 0)
            return errno == EAGAIN || errno == EINTR;
        buffer->start += (size_t)now;
        buffer->filled -= (size_t)now;
    }
    return true;
}

static int connect_to(const char *address, int number)
{
    struct sockaddr_in ipv4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number)};
    struct sockaddr_in6 ipv6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)number)};
    bool is_ipv4 = inet_pton(AF_INET, address, &ipv4.sin_addr) == 1;
    if (!is_ipv4 && inet_pton(AF_INET6, address, &ipv6.sin6_addr) != 1)
        return -EINVAL;
    int fd = socket(is_ipv4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = 0;
    socklen_t size = sizeof error;
    if (!connect(fd, is_ipv4 ? (void *)&ipv4 : (void *)&ipv6, is_ipv4 ? sizeof ipv4 : sizeof ipv6))
        return fd;
    struct pollfd one = {.fd = fd, .events = POLLOUT};
    if (errno != EINPROGRESS)
        error = errno;
    else if (poll(&one, 1, CONNECT_MS) != 1)
        error = ETIMEDOUT;
    else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size))
        error = errno;
    if (!error)
        return fd;
    close(fd);
    return -error;
}

/* Returns the connection, or the first error, negative. */
static int connect_to_any(char **addresses, int number)
{
    int first = -EINVAL;
    for (char **address = addresses; *address; address++) {
        int fd = connect_to(*address, number);
        if (fd >= 0)
            return fd;
        if (address == addresses)
            first = fd;
    }
    return first;
}

static void read_from_pod(struct line *line)
{
    struct buffer *buffer = &line->to_host;
    ssize_t now = read(line->connection, buffer->data + 4, BLOCK);
    if (now < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    line->sent_all = now <= 0;
    put32(buffer->data, now > 0 ? (uint32_t)now : 0);
    buffer->start = 0;
    buffer->filled = 4 + (now > 0 ? (size_t)now : 0);
}

static void read_frame_header(struct line *line)
{
    ssize_t now = read(line->port, line->header + line->header_read, 4 - line->header_read);
    if (now <= 0 || (line->header_read += (size_t)now) < 4)
        return;
    line->header_read = 0;
    line->remaining = get32(line->header);
    if (!line->remaining) {
        line->received_all = true;
        shutdown(line->connection, SHUT_WR);
    }
}

static void read_from_host(struct line *line)
{
    struct buffer *buffer = &line->from_host;
    if (!line->remaining) {
        read_frame_header(line);
        return;
    }
    ssize_t now = read(line->port, buffer->data, line->remaining < BLOCK ? line->remaining : BLOCK);
    if (now <= 0)
        return;
    line->remaining -= (uint32_t)now;
    buffer->start = 0;
    buffer->filled = (size_t)now;
}

static void relay(struct line *line)
{
    while (!line->sent_all || !line->received_all || line->to_host.filled) {
        bool reads_host = !line->received_all && !line->from_host.filled;
        bool reads_pod = !line->sent_all && !line->to_host.filled;
        struct pollfd ready[] = {
            {.fd = line->port, .events = (reads_host ? POLLIN : 0)},
            {.fd = line->connection, .events = (reads_pod ? POLLIN : 0)},
        };
        ready[0].events |= line->to_host.filled ? POLLOUT : 0;
        ready[1].events |= line->from_host.filled ? POLLOUT : 0;
        if (!ready[1].events)
            ready[1].fd = -1; /* POLLHUP would be reported again and again */
        poll(ready, 2, -1);
        if (ready[0].revents & POLLHUP)
            return;
        if (reads_host && ready[0].revents & POLLIN)
            read_from_host(line);
        if (reads_pod && ready[1].revents)
            read_from_pod(line);
        if (!drain(line->port, &line->to_host))
            return;
        if (!drain(line->connection, &line->from_host))
            line->from_host.filled = 0; /* the reader is gone */
    }
    while (is_connected(line->port)) /* closing the port too early would lose data */
        usleep(20000);
}

static void serve_dial(int port, char **words)
{
    static struct line line;
    for (int waited = 0; !is_connected(port) && waited < HOST_MS; waited += 5)
        usleep(5000);
    line.port = port;
    line.connection = connect_to_any(words + 2, atoi(words[1]));
    put32(line.to_host.data, line.connection < 0 ? (uint32_t)-line.connection : 0);
    line.to_host.filled = 4;
    line.sent_all = line.received_all = line.connection < 0;
    relay(&line);
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
        serve_dial(port, words);
    }
    int error = child < 0 ? errno : 0;
    close(port);
    return error;
}
