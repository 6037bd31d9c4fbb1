/* Relays named pipes of a container to Unix sockets of the host.
 *
 * BUNDLE/pipes has a sequence of u32 size and payload of PIPE_LISTEN, u32 size and path of the
 * socket. For each pipe a few instances are always waiting. When a program opens one, the relay
 * connects to the socket and relays data until either side closes, which closes the other.
 * `relay_pipes` returns when all pipes exist, or reports why not. Its child ends with the silo.
 */

#ifndef WINPOD_PIPE_RELAY_H
#define WINPOD_PIPE_RELAY_H

int relay_pipes(const char *folder);

#endif
