/* See io.h. */

#define _GNU_SOURCE
#include "io.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../protocol.h"

bool write_all(int fd, const void *data, size_t size)
{
    for (const uint8_t *at = data; size;) {
        ssize_t now = write(fd, at, size);
        if (now < 0 && errno == EINTR)
            continue;
        if (now < 0)
            return false;
        at += now;
        size -= (size_t)now;
    }
    return true;
}

bool read_all(int fd, void *data, size_t size)
{
    for (uint8_t *at = data; size;) {
        ssize_t now = read(fd, at, size);
        if (now < 0 && errno == EINTR)
            continue;
        if (now <= 0)
            return false;
        at += now;
        size -= (size_t)now;
    }
    return true;
}

bool send_frame(int agent, uint8_t type, const void *payload, uint32_t size)
{
    uint8_t header[FRAME_HEADER];
    put32(header, size);
    header[4] = type;
    return write_all(agent, header, sizeof header) && write_all(agent, payload, size);
}

struct sockaddr_un address_of(int folder, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char *path = address.sun_path;
    if (folder < 0)
        snprintf(path, sizeof address.sun_path, "%s", name);
    else
        snprintf(path, sizeof address.sun_path, "/proc/self/fd/%d/%s", folder, name);
    return address;
}

int connect_to(int folder, const char *name, int flags)
{
    struct sockaddr_un address = address_of(folder, name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    if (fd < 0 || !connect(fd, (struct sockaddr *)&address, sizeof address))
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}
