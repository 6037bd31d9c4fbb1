/* Relays named pipes of a container to Unix sockets of the host.
 *
 * BUNDLE/pipes has a sequence of u32 size and payload of PIPE, u32 size and path of the socket. For
 * each pipe a few instances are always waiting. When a program opens one, the relay connects to the
 * socket and relays data until either side closes, which closes the other. `relay` returns when all
 * pipes exist, or reports why not. Its child ends with the silo.
 */

#ifndef WINPOD_RELAY_H
#define WINPOD_RELAY_H

int relay(const char *folder);

#endif
