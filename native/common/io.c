/* See io.h. */

#define _GNU_SOURCE
#include "io.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

bool write_all(int fd, const void *data, size_t size)
{
    for (const uint8_t *at = data; size;) {
        ssize_t now = write(fd, at, size);
        if (now < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        if (now > 0) {
            at += now;
            size -= (size_t)now;
        } else if (now == 0 || errno == EAGAIN) {
            struct pollfd one = {.fd = fd, .events = POLLOUT};
            poll(&one, 1, 1000);
            if (one.revents & POLLHUP)
                return false;
        }
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

bool set_unix_address(struct sockaddr_un *address, int folder, const char *name)
{
    size_t room = sizeof address->sun_path;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int size = folder < 0 ? snprintf(address->sun_path, room, "%s", name)
                          : snprintf(address->sun_path, room, "/proc/self/fd/%d/%s", folder, name);
    if (size >= 0 && (size_t)size < room)
        return true;
    errno = ENAMETOOLONG;
    return false;
}

int connect_unix(int folder, const char *name, int flags)
{
    struct sockaddr_un address;
    if (!set_unix_address(&address, folder, name))
        return -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    if (fd < 0 || !connect(fd, (struct sockaddr *)&address, sizeof address))
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}
