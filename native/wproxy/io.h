/* Reading and writing to the end, and sockets whose directory has a path of any length. */

#ifndef WINPOD_IO_H
#define WINPOD_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/un.h>

bool write_all(int fd, const void *data, size_t size);
bool read_all(int fd, void *data, size_t size);

/* Sends one frame, whole. */
bool tell(int agent, uint8_t type, const void *payload, uint32_t size);

/* The address of a socket in a directory, or of a path of its own when `folder` is below 0. */
struct sockaddr_un address_of(int folder, const char *name);

/* A connected socket, or -1; `flags` as socket() has them. */
int connect_to(int folder, const char *name, int flags);

#endif
