/* Named pipes in a container that lead to Unix sockets of this machine.
 *
 * BUNDLE/pipes has them, one after the other: u32 size and the payload of PIPE, u32 size and the
 * path of the socket. Of each a few openings are always waited for; when a program takes one, the
 * socket is dialled, and bytes are carried both ways until either side ends, which ends the other.
 * `relay` returns when all pipes are there, or says why not. What stays ends with the shell.
 */

#ifndef WINPOD_RELAY_H
#define WINPOD_RELAY_H

int relay(const char *folder);

#endif
