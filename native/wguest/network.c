/* Addresses and routes of a microVM's interfaces. */

#define _GNU_SOURCE
#include "wguest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <net/route.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* struct in6_ifreq; the kernel's header conflicts with those of the C library. */
struct address6 {
    struct in6_addr address;
    uint32_t prefix;
    int interface;
};

static bool put(struct sockaddr *target, const char *text)
{
    struct sockaddr_in *address = (struct sockaddr_in *)target;
    address->sin_family = AF_INET;
    return inet_pton(AF_INET, text, &address->sin_addr) == 1;
}

static void put_mask(struct sockaddr *target, int prefix)
{
    struct sockaddr_in *address = (struct sockaddr_in *)target;
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = prefix ? htonl(~0u << (32 - prefix)) : 0;
}

static int set_address4(int network, struct ifreq *request, const char *address, int prefix)
{
    if (prefix < 0 || prefix > 32 || !put(&request->ifr_addr, address))
        return EINVAL;
    if (ioctl(network, SIOCSIFADDR, request))
        return errno;
    put_mask(&request->ifr_netmask, prefix);
    return ioctl(network, SIOCSIFNETMASK, request) ? errno : 0;
}

static int set_address6(const char *interface, const char *address, int prefix)
{
    struct address6 request = {.prefix = (uint32_t)prefix};
    request.interface = (int)if_nametoindex(interface);
    if (!request.interface)
        return ENODEV;
    if (prefix < 0 || prefix > 128 || inet_pton(AF_INET6, address, &request.address) != 1)
        return EINVAL;
    int network = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int error = ioctl(network, SIOCSIFADDR, &request) && errno != EEXIST ? errno : 0;
    close(network);
    return error;
}

static int raise_interface(int network, struct ifreq *request)
{
    request->ifr_flags = IFF_UP | IFF_RUNNING;
    return ioctl(network, SIOCSIFFLAGS, request) ? errno : 0;
}

int raise_loopback(void)
{
    struct ifreq request = {.ifr_name = "lo"};
    int network = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int error = raise_interface(network, &request);
    close(network);
    return error;
}

int set_address(const char *interface, const char *address, const char *prefix)
{
    int network = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), error = 0;
    struct ifreq request = {0};
    strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
    bool is_ipv6 = strchr(address, ':');
    if (!is_ipv6)
        error = set_address4(network, &request, address, atoi(prefix));
    if (!error)
        error = raise_interface(network, &request);
    if (!error && is_ipv6)
        error = set_address6(interface, address, atoi(prefix));
    close(network);
    return error;
}

static int set_route6(const char *interface, const char *gateway)
{
    struct in6_rtmsg route = {.rtmsg_flags = RTF_UP | RTF_GATEWAY, .rtmsg_metric = 1};
    route.rtmsg_ifindex = (int)if_nametoindex(interface);
    if (inet_pton(AF_INET6, gateway, &route.rtmsg_gateway) != 1)
        return EINVAL;
    int network = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int error = ioctl(network, SIOCADDRT, &route) ? errno : 0;
    close(network);
    return error;
}

int set_route(const char *interface, const char *gateway)
{
    if (strchr(gateway, ':'))
        return set_route6(interface, gateway);
    int network = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};
    bool is_valid = put(&route.rt_gateway, gateway);
    put(&route.rt_dst, "0.0.0.0");
    put(&route.rt_genmask, "0.0.0.0");
    int error = !is_valid ? EINVAL : ioctl(network, SIOCADDRT, &route) ? errno : 0;
    close(network);
    return error;
}
