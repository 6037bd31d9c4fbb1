/* The address and the route of a microVM's interface. */

#define _GNU_SOURCE
#include "wguest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <net/route.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static bool put(struct sockaddr *where, const char *text)
{
    struct sockaddr_in *address = (struct sockaddr_in *)where;
    address->sin_family = AF_INET;
    return inet_pton(AF_INET, text, &address->sin_addr) == 1;
}

static void put_mask(struct sockaddr *where, int prefix)
{
    struct sockaddr_in *address = (struct sockaddr_in *)where;
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = prefix ? htonl(~0u << (32 - prefix)) : 0;
}

int set_address(const char *interface, const char *address, const char *prefix)
{
    int network = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), bits = atoi(prefix), error = 0;
    struct ifreq asked = {0};
    strncpy(asked.ifr_name, interface, IFNAMSIZ - 1);
    if (bits < 0 || bits > 32 || !put(&asked.ifr_addr, address))
        error = EINVAL;
    else if (ioctl(network, SIOCSIFADDR, &asked))
        error = errno;
    put_mask(&asked.ifr_netmask, bits);
    if (!error && ioctl(network, SIOCSIFNETMASK, &asked))
        error = errno;
    asked.ifr_flags = IFF_UP | IFF_RUNNING;
    if (!error && ioctl(network, SIOCSIFFLAGS, &asked))
        error = errno;
    close(network);
    return error;
}

int set_route(const char *gateway)
{
    int network = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};
    bool is_one = put(&route.rt_gateway, gateway);
    put(&route.rt_dst, "0.0.0.0");
    put(&route.rt_genmask, "0.0.0.0");
    int error = !is_one ? EINVAL : ioctl(network, SIOCADDRT, &route) ? errno : 0;
    close(network);
    return error;
}
