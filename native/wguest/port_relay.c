/* The first process of a silo in a microVM: relays data between its port and its agent, reaps, and
 * ends with the agent, or with wineserver. Sessions are handled by winit on the host.
 */

#define _GNU_SOURCE
#include "wguest.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

#include "agent_process.h"
#include "agent_protocol.h"
#include "frame_io.h"
#include "queue.h"

#define DISCONNECTED_MS 5 /* a port that the host has not opened is always ready, without data */

static struct queue to_agent, to_host;

static void send_exited(int port)
{
    uint8_t frame[LINK_HEADER_SIZE];
    put_link_header(frame, 0, FRAME_SILO_EXITED, 0);
    queue_flush(port, &to_host);
    if (to_host.filled || write(port, frame, sizeof frame) < 0)
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
    dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), 2); /* not the guest's terminal: Wine would use it */
    if (!queue_reserve(&to_agent, QUEUE_READ) || !queue_reserve(&to_host, QUEUE_READ))
        _exit(1);
    int agent_in, agent_out;
    pid_t agent = start_agent(command, &agent_in, &agent_out);
    bool disconnected = false;
    for (;;) {
        short events = (short)((to_agent.filled ? 0 : POLLIN) | (to_host.filled ? POLLOUT : 0));
        struct pollfd ready[] = {
            {.fd = disconnected ? -1 : port, .events = events},
            {.fd = to_agent.filled ? agent_in : -1, .events = POLLOUT},
            {.fd = to_host.filled ? -1 : agent_out, .events = POLLIN},
        };
        poll(ready, 3, disconnected ? DISCONNECTED_MS : 1000);
        siginfo_t ended;
        if (!reap_children(agent, &ended))
            send_exited(port);
        disconnected = !disconnected && ready[0].revents & POLLHUP;
        if (!to_agent.filled && (ready[0].revents & POLLIN))
            queue_fill(port, &to_agent, QUEUE_READ);
        if (!to_host.filled && ready[2].revents && !queue_fill(agent_out, &to_host, QUEUE_READ))
            send_exited(port);
        queue_flush(agent_in, &to_agent);
        queue_flush(port, &to_host);
    }
}
