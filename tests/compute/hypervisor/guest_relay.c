/* Runs wguest's relays outside of a microVM, with an inherited socket as the virtio port.
 *
 *     guest_relay relay FD COMMAND...
 *     guest_relay dial FD NUMBER ADDRESS...
 */

#define _GNU_SOURCE
#include "wguest.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int open_port(const char *name)
{
    int port = dup(atoi(name));
    fcntl(port, F_SETFL, O_NONBLOCK);
    return port;
}

int main(int count, char **words)
{
    if (count > 3 && !strcmp(words[1], "relay"))
        relay_port(open_port(words[2]), words + 3);
    return count > 4 ? dial(words + 2) : 99;
}
