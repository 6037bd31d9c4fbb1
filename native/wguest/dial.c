/* Connections to a port of the pod from inside of the microVM, relayed over a virtio port.
 *
 *     dial PORT NUMBER ADDRESS...
 *
 * The guest first sends a u32 errno, or 0. Then both sides send blocks: a u32 length and the data; a
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

#include "frame_io.h"
#include "queue.h"

#define CONNECT_MS 10000
#define HOST_MS 10000 /* until the guest sees that the host has opened a new port */
#define BLOCK (16u << 10)

struct line {
    int port, connection;
    bool sent_all, received_all;
    uint8_t header[4];
    size_t header_read; /* bytes of the header that were read */
    uint32_t remaining; /* bytes of the block that were not */
    struct queue to_host, from_host; /* no more is read before these are empty */
};

static bool is_connected(int port)
{
    struct pollfd one = {.fd = port, .events = POLLOUT};
    poll(&one, 1, 0);
    return !(one.revents & POLLHUP);
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
    uint8_t block[4 + BLOCK];
    ssize_t now = read(line->connection, block + 4, BLOCK);
    if (now < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    uint32_t size = now > 0 ? (uint32_t)now : 0;
    line->sent_all = !size;
    put32(block, size);
    queue_append(&line->to_host, block, 4 + size);
}

static void read_block_header(struct line *line)
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
    if (!line->remaining) {
        read_block_header(line);
        return;
    }
    queue_fill(line->port, &line->from_host, line->remaining < BLOCK ? line->remaining : BLOCK);
    line->remaining -= (uint32_t)line->from_host.filled;
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
        if (queue_flush(line->port, &line->to_host) < 0)
            return;
        if (queue_flush(line->connection, &line->from_host) < 0)
            queue_consume(&line->from_host, line->from_host.filled); /* the reader is gone */
    }
    while (is_connected(line->port)) /* closing the port too early would lose data */
        usleep(20000);
}

static void serve_dial(int port, char **words)
{
    static struct line line;
    if (!queue_reserve(&line.to_host, 4 + BLOCK) || !queue_reserve(&line.from_host, BLOCK))
        _exit(1);
    for (int waited = 0; !is_connected(port) && waited < HOST_MS; waited += 5)
        usleep(5000);
    line.port = port;
    line.connection = connect_to_any(words + 2, atoi(words[1]));
    uint8_t error[4];
    put32(error, line.connection < 0 ? (uint32_t)-line.connection : 0);
    queue_append(&line.to_host, error, sizeof error);
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
