/* The first process of a silo: starts wagent, and multiplexes its clients' frames.
 *
 *     winit PROGRAM ARGUMENT...     (clients connect to the listening socket that is descriptor 3)
 *     winit --link SOCKET           (for a silo in a microVM, whose agent is behind that socket)
 *
 * The socket is inherited, so it has no path in the container, and winit hides its memory and
 * descriptors from the container's programs. Frames are forwarded without interpretation. It reaps
 * children, and exits with the agent, or if wineserver was killed: without it all of Windows hangs.
 */

#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent_process.h"
#include "agent_protocol.h"
#include "frame_io.h"
#include "io.h"
#include "queue.h"

#define LISTENER 3
#define MAX_SESSIONS 256
#define MAX_QUEUED (1u << 20)

struct session {
    int socket;
    uint32_t id, uncredited; /* uncredited: bytes sent to the client but not reported to the agent */
    bool watching_in, watching_out;
    struct queue in, out;
};

static struct session sessions[MAX_SESSIONS];
static uint32_t last_id;
static struct queue to_agent, from_agent;
static int events, agent_in, agent_out, signals;
static pid_t agent;

static void send_to_agent(uint32_t id, uint8_t type, const void *payload, uint32_t size)
{
    uint8_t header[LINK_HEADER_SIZE];
    put_link_header(header, size, type, id);
    if (!queue_append(&to_agent, header, sizeof header) || !queue_append(&to_agent, payload, size))
        _exit(1); /* a partial frame would corrupt the stream */
}

static void watch(struct session *session)
{
    bool in = to_agent.filled < MAX_QUEUED, out = session->out.filled > 0;
    if (in == session->watching_in && out == session->watching_out)
        return;
    session->watching_in = in;
    session->watching_out = out;
    struct epoll_event event = {.data.ptr = session};
    event.events = (in ? EPOLLIN : 0u) | (out ? EPOLLOUT : 0u);
    epoll_ctl(events, EPOLL_CTL_MOD, session->socket, &event);
}

static void end_session(struct session *session)
{
    send_to_agent(session->id, FRAME_CLIENT_GONE, "", 0);
    close(session->socket);
    queue_reset(&session->in);
    queue_reset(&session->out);
    *session = (struct session){.socket = -1};
}

static void accept_client(void)
{
    int client = accept4(LISTENER, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0)
        return;
    for (struct session *session = sessions; session < sessions + MAX_SESSIONS; session++) {
        if (session->socket >= 0)
            continue;
        *session = (struct session){.socket = client, .id = ++last_id, .watching_in = true};
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = session};
        if (epoll_ctl(events, EPOLL_CTL_ADD, client, &event))
            break;
        return;
    }
    close(client);
}

static void send_credit(struct session *session)
{
    uint8_t taken[4];
    if (session->uncredited < OUTPUT_WINDOW / 4)
        return;
    put32(taken, session->uncredited);
    session->uncredited = 0;
    send_to_agent(session->id, FRAME_OUTPUT_CREDIT, taken, sizeof taken);
}

/* Forwards complete frames of a client. Returns false if they are invalid. */
static bool forward_client_frames(struct session *session)
{
    struct queue *in = &session->in;
    while (in->filled >= FRAME_HEADER_SIZE) {
        const uint8_t *frame = queue_head(in);
        uint32_t size = get32(frame);
        if (size > MAX_FRAME || !frame[4] || frame[4] > LAST_CLIENT_FRAME)
            return false;
        if (in->filled < FRAME_HEADER_SIZE + size)
            break;
        send_to_agent(session->id, frame[4], frame + FRAME_HEADER_SIZE, size);
        queue_consume(in, FRAME_HEADER_SIZE + size);
    }
    return true;
}

static void serve(struct session *session, uint32_t ready)
{
    if (session->socket < 0)
        return;
    if (ready & (EPOLLIN | EPOLLHUP | EPOLLERR)
        && (!queue_fill(session->socket, &session->in, QUEUE_READ)
            || !forward_client_frames(session))) {
        end_session(session);
        return;
    }
    if (ready & EPOLLOUT) {
        ssize_t written = queue_flush(session->socket, &session->out);
        if (written < 0) {
            end_session(session);
            return;
        }
        session->uncredited += (uint32_t)written;
        send_credit(session);
    }
}

static struct session *find(uint32_t id)
{
    for (struct session *session = sessions; session < sessions + MAX_SESSIONS; session++)
        if (session->socket >= 0 && session->id == id)
            return session;
    return NULL;
}

/* Forwards the agent's frames to their clients; drops those of disconnected ones. */
static void dispatch_agent_frames(void)
{
    while (from_agent.filled >= LINK_HEADER_SIZE) {
        const uint8_t *frame = queue_head(&from_agent);
        uint32_t size = get32(frame);
        if (size > MAX_FRAME)
            _exit(1);
        if (from_agent.filled < LINK_HEADER_SIZE + size)
            return;
        if (frame[4] == FRAME_SILO_EXITED)
            _exit(0);
        struct session *session = find(get32(frame + 5));
        if (session) {
            bool queued = queue_append(&session->out, frame, FRAME_HEADER_SIZE)
                && queue_append(&session->out, frame + LINK_HEADER_SIZE, size);
            ssize_t written = queued ? queue_flush(session->socket, &session->out) : -1;
            if (written < 0 || session->out.filled > MAX_QUEUED) {
                end_session(session);
            } else {
                session->uncredited += (uint32_t)written;
                send_credit(session);
            }
        }
        queue_consume(&from_agent, LINK_HEADER_SIZE + size);
    }
}

static void reap(void)
{
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD)
            _exit(128 + (int)info.ssi_signo);
    siginfo_t ended;
    if (!reap_children(agent, &ended))
        _exit(ended.si_code == CLD_EXITED ? ended.si_status : 128 + ended.si_status);
}

static void connect_agent(const char *path)
{
    agent_in = connect_unix(-1, path, 0);
    if (agent_in < 0)
        _exit(1);
    fcntl(agent_in, F_SETFL, O_NONBLOCK);
    agent_out = fcntl(agent_in, F_DUPFD_CLOEXEC, 0);
    /* The agent may still have sessions of an earlier link. */
    if (getrandom(&last_id, sizeof last_id, 0) < 0)
        _exit(1);
}

static void add(int fd, uint32_t what, void *mark)
{
    struct epoll_event event = {.events = what, .data.ptr = mark};
    if (epoll_ctl(events, EPOLL_CTL_ADD, fd, &event))
        _exit(1);
}

int main(int count, char **arguments)
{
    if (count < 2 || fcntl(LISTENER, F_SETFD, FD_CLOEXEC) || fcntl(LISTENER, F_SETFL, O_NONBLOCK))
        return 2;
    prctl(PR_SET_DUMPABLE, 0);
    signal(SIGPIPE, SIG_IGN);
    sigset_t caught;
    sigemptyset(&caught);
    sigaddset(&caught, SIGCHLD);
    sigaddset(&caught, SIGTERM);
    sigaddset(&caught, SIGINT);
    sigprocmask(SIG_BLOCK, &caught, NULL);
    signals = signalfd(-1, &caught, SFD_CLOEXEC | SFD_NONBLOCK);
    events = epoll_create1(EPOLL_CLOEXEC);
    for (struct session *session = sessions; session < sessions + MAX_SESSIONS; session++)
        session->socket = -1;
    if (count == 3 && !strcmp(arguments[1], "--link"))
        connect_agent(arguments[2]);
    else
        agent = start_agent(arguments + 1, &agent_in, &agent_out);
    add(LISTENER, EPOLLIN, &last_id);
    add(signals, EPOLLIN, &signals);
    add(agent_out, EPOLLIN, &from_agent);
    add(agent_in, 0, &to_agent);
    bool watching = false;
    for (;;) {
        if (watching != (to_agent.filled > 0)) {
            watching = to_agent.filled > 0;
            struct epoll_event event = {.events = watching ? EPOLLOUT : 0u, .data.ptr = &to_agent};
            epoll_ctl(events, EPOLL_CTL_MOD, agent_in, &event);
        }
        struct epoll_event ready[32];
        int ready_count = epoll_wait(events, ready, 32, -1);
        for (int i = 0; i < ready_count; i++) {
            void *mark = ready[i].data.ptr;
            if (mark == &last_id)
                accept_client();
            else if (mark == &signals)
                reap();
            else if (mark == &from_agent) {
                if (!queue_fill(agent_out, &from_agent, QUEUE_READ))
                    _exit(1);
                dispatch_agent_frames();
            } else if (mark != &to_agent)
                serve(mark, ready[i].events);
        }
        if (queue_flush(agent_in, &to_agent) < 0)
            _exit(1);
        for (struct session *session = sessions; session < sessions + MAX_SESSIONS; session++)
            if (session->socket >= 0)
                watch(session);
    }
}
