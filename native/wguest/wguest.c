/* The first process of a microVM: serves commands of the host on the port "control", and reaps.
 *
 * Requests and commands are described in agent_protocol.h. The host decides what a pod needs; this
 * side only mounts, reads, writes, starts and kills.
 */

#define _GNU_SOURCE
#include "wguest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "frame_io.h"
#include "io.h"

#define HEADER (4 + GUEST_MARK_SIZE)

static uint8_t request[HEADER + GUEST_MAX_BYTES + 1];
static struct answer answer;
static size_t received;

static void load_modules(void)
{
    struct dirent **found;
    int count = scandir("/modules", &found, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char path[512];
        snprintf(path, sizeof path, "/modules/%s", found[i]->d_name);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (found[i]->d_name[0] != '.' && syscall(SYS_finit_module, file, "", 0))
            fprintf(stderr, "wguest: %s: %s\n", path, strerror(errno));
        close(file);
    }
}

/* As in any pod's network: unprivileged programs may listen on every port, and ping. A pod's
 * addresses are assigned, so duplicate address detection is off. */
static void open_network(void)
{
    static const char *const settings[][2] = {
        {"/proc/sys/net/ipv4/ip_unprivileged_port_start", "0"},
        {"/proc/sys/net/ipv4/ping_group_range", "0 2147483647"},
        {"/proc/sys/net/ipv6/conf/default/accept_dad", "0"},
        {"/proc/sys/net/ipv6/conf/default/accept_ra", "0"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        int file = open(settings[i][0], O_WRONLY | O_CLOEXEC);
        if (write(file, settings[i][1], strlen(settings[i][1])) < 0)
            fprintf(stderr, "wguest: %s: %s\n", settings[i][0], strerror(errno));
        close(file);
    }
    raise_loopback();
}

static void set_up(void)
{
    static const char *const mounts[][3] = {
        {"proc", "/proc", "mode=755"},
        {"sysfs", "/sys", "mode=755"},
        {"devtmpfs", "/dev", "mode=755"},
        {"tmpfs", "/run", "mode=755,size=90%"},
        {"cgroup2", "/sys/fs/cgroup", ""},
    };
    for (size_t i = 0; i < sizeof mounts / sizeof *mounts; i++) {
        mkdir(mounts[i][1], 0755);
        if (mount(mounts[i][0], mounts[i][1], mounts[i][0], 0, i < 2 ? "" : mounts[i][2]))
            fprintf(stderr, "wguest: %s: %s\n", mounts[i][1], strerror(errno));
    }
    load_modules();
    open_network();
}

int open_port(const char *name)
{
    DIR *ports = opendir("/sys/class/virtio-ports");
    int found = -1;
    for (struct dirent *entry; ports && found < 0 && (entry = readdir(ports));) {
        char path[512], is[128] = "";
        snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", entry->d_name);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0)
            continue;
        if (read(file, is, sizeof is - 1) > 0)
            is[strcspn(is, "\n")] = 0;
        close(file);
        if (strcmp(is, name))
            continue;
        snprintf(path, sizeof path, "/dev/%s", entry->d_name);
        found = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    }
    if (ports)
        closedir(ports);
    return found;
}

static void reply(int port)
{
    char *words[GUEST_MAX_WORDS + 1];
    int count = 0;
    char *end = (char *)request + HEADER + get32(request);
    *end = 0;
    for (char *word = (char *)request + HEADER; word < end && count < GUEST_MAX_WORDS;
         word += strlen(word) + 1)
        words[count++] = word;
    words[count] = NULL;
    answer.size = 0;
    uint8_t header[GUEST_MARK_SIZE + 8];
    int error = run_command(words, &answer);
    memcpy(header, request + 4, GUEST_MARK_SIZE);
    put32(header + GUEST_MARK_SIZE, (uint32_t)answer.size);
    put32(header + GUEST_MARK_SIZE + 4, (uint32_t)error);
    if (write_all(port, header, sizeof header))
        write_all(port, answer.data, answer.size);
}

static void serve(int port)
{
    ssize_t now = read(port, request + received, sizeof request - 1 - received);
    if (now <= 0) {
        if (now == 0) { /* no client is connected */
            received = 0;
            usleep(50000);
        }
        return;
    }
    received += (size_t)now;
    if (received >= 4 && get32(request) > GUEST_MAX_BYTES)
        received = 0;
    if (received < HEADER || received < HEADER + get32(request))
        return;
    received = 0;
    reply(port);
}

/* Wine wakes up sixty times per second to update Windows' clock, which is expensive in an emulated
 * guest. Timer slack, which all children inherit, lets the kernel delay and merge these timers. */
static void set_timer_slack(void)
{
    const char *slack = getenv("TIMER_SLACK");
    if (slack)
        prctl(PR_SET_TIMERSLACK, strtoul(slack, NULL, 10), 0, 0, 0);
}

int main(void)
{
    set_timer_slack();
    set_up();
    int port;
    while ((port = open_port("control")) < 0)
        usleep(10000);
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    int signals = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
    for (;;) {
        struct pollfd ready[] = {{.fd = port, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
        poll(ready, 2, -1);
        struct signalfd_siginfo ended;
        while (read(signals, &ended, sizeof ended) > 0)
            reap();
        if (ready[0].revents)
            serve(port);
    }
}
