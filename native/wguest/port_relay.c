/* The first process of a silo in a microVM: relays data between its port and its agent, reaps, and
 * ends with the agent, or with wineserver. Sessions are handled by winit on the host.
 */

#define _GNU_SOURCE
#include "wguest.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../protocol.h"

#define DISCONNECTED_MS 5 /* a port that the host has not opened is always ready, without data */

struct buffer {
    int from, to;
    size_t start, filled;
    uint8_t data[64 * 1024];
};

static struct buffer in, out;

/* Returns false at the end of the input. */
static bool fill(struct buffer *buffer)
{
    ssize_t now = read(buffer->from, buffer->data, sizeof buffer->data);
    if (now <= 0)
        return now < 0 && (errno == EAGAIN || errno == EINTR);
    buffer->start = 0;
    buffer->filled = (size_t)now;
    return true;
}

static void drain(struct buffer *buffer)
{
    while (buffer->filled) {
        ssize_t now = write(buffer->to, buffer->data + buffer->start, buffer->filled);
        if (now < 0)
            return;
        buffer->start += (size_t)now;
        buffer->filled -= (size_t)now;
    }
}

static pid_t start_agent(int port, char **command)
{
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC))
        _exit(1);
    pid_t agent = fork();
    if (!agent) {
        signal(SIGPIPE, SIG_DFL);
        dup2(to[0], 0);
        dup2(from[1], 1);
        dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), 2); /* not the guest's terminal: Wine would use it */
        execvp(command[0], command);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    fcntl(to[1], F_SETFL, O_NONBLOCK);
    fcntl(from[0], F_SETFL, O_NONBLOCK);
    in.from = port;
    in.to = to[1];
    out.from = from[0];
    out.to = port;
    return agent;
}

static bool is_wineserver(pid_t pid)
{
    char path[32], name[16] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    bool matches = file >= 0 && read(file, name, sizeof name) > 0 && !strncmp(name, "wineserver", 10);
    close(file);
    return matches;
}

/* Returns false if the silo has to end. */
static bool reap_inside(pid_t agent)
{
    siginfo_t ended = {0};
    while (!waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) && ended.si_pid) {
        bool killed = ended.si_code != CLD_EXITED;
        if (ended.si_pid == agent || (killed && is_wineserver(ended.si_pid)))
            return false;
        waitpid(ended.si_pid, NULL, 0);
        ended.si_pid = 0;
    }
    return true;
}

static void send_ended(int port)
{
    uint8_t frame[LINK_HEADER] = {0};
    frame[4] = ENDED;
    drain(&out);
    if (out.filled || write(port, frame, sizeof frame) < 0)
        _exit(1); /* then the guest's first process ends the link */
    _exit(0);
}

static void ignore(int signal)
{
    (void)signal;
}

void relay_port(int port, char **command)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, ignore);
    pid_t agent = start_agent(port, command);
    bool disconnected = false;
    for (;;) {
        struct pollfd ready[] = {
            {.fd = disconnected ? -1 : port, .events = out.filled ? POLLIN | POLLOUT : POLLIN},
            {.fd = in.filled ? in.to : -1, .events = POLLOUT},
            {.fd = out.filled ? -1 : out.from, .events = POLLIN},
        };
        if (in.filled)
            ready[0].events &= ~POLLIN;
        poll(ready, 3, disconnected ? DISCONNECTED_MS : 1000);
        if (!reap_inside(agent))
            send_ended(port);
        disconnected = !disconnected && ready[0].revents & POLLHUP;
        if (!in.filled && (ready[0].revents & POLLIN))
            fill(&in);
        if (!out.filled && ready[2].revents && !fill(&out))
            send_ended(port);
        drain(&in);
        drain(&out);
    }
}
