/* Complete reads and writes, and Unix sockets in directories with paths of any length. */

#ifndef WINPOD_IO_H
#define WINPOD_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/un.h>

/* Writes everything, also to a non-blocking descriptor. Returns false if the reader is gone. */
bool write_all(int fd, const void *data, size_t size);

bool read_all(int fd, void *data, size_t size);

/* Sets the address of a socket in a directory, or of a path if `folder` is negative. Fails with
 * ENAMETOOLONG. */
bool set_unix_address(struct sockaddr_un *address, int folder, const char *name);

/* Returns a connected socket, or -1; `flags` are those of socket(). */
int connect_unix(int folder, const char *name, int flags);

#endif
