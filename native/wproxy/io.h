/* Complete reads and writes, and sockets in directories with paths of any length. */

#ifndef WINPOD_IO_H
#define WINPOD_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/un.h>

bool write_all(int fd, const void *data, size_t size);
bool read_all(int fd, void *data, size_t size);

/* Sends one frame. */
bool send_frame(int agent, uint8_t type, const void *payload, uint32_t size);

/* Returns the address of a socket in a directory, or of a path if `folder` is negative. */
struct sockaddr_un address_of(int folder, const char *name);

/* Returns a connected socket, or -1; `flags` are those of socket(). */
int connect_to(int folder, const char *name, int flags);

#endif
