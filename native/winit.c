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
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol.h"

#define LISTENER 3
#define MAX_SESSIONS 256
#define MAX_QUEUED (1u << 20)

/* A FIFO of bytes. */
struct queue {
    uint8_t *data;
    size_t start, filled, capacity;
};

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

static bool queue_append(struct queue *queue, const void *data, size_t size)
{
    if (queue->start + queue->filled + size > queue->capacity) {
        if (queue->filled)
            memmove(queue->data, queue->data + queue->start, queue->filled);
        queue->start = 0;
    }
    if (queue->filled + size > queue->capacity) {
        size_t capacity = queue->capacity ? queue->capacity : 4096;
        while (capacity < queue->filled + size)
            capacity *= 2;
        uint8_t *grown = realloc(queue->data, capacity);
        if (!grown)
            return false;
        queue->data = grown;
        queue->capacity = capacity;
    }
    memcpy(queue->data + queue->start + queue->filled, data, size);
    queue->filled += size;
    return true;
}

static void queue_consume(struct queue *queue, size_t size)
{
    queue->start += size;
    queue->filled -= size;
    if (queue->filled)
        return;
    queue->start = 0;
    if (queue->capacity > 64 * 1024) {
        free(queue->data);
        *queue = (struct queue){0};
    }
}

static void queue_reset(struct queue *queue)
{
    free(queue->data);
    *queue = (struct queue){0};
}

/* Writes what it can. Returns the bytes written, or -1 if the other side is gone. */
static ssize_t queue_flush(int fd, struct queue *queue)
{
    size_t written = 0;
    while (queue->filled) {
        ssize_t now = write(fd, queue->data + queue->start, queue->filled);
        if (now < 0 && errno == EINTR)
            continue;
        if (now < 0)
            return errno == EAGAIN ? (ssize_t)written : -1;
        queue_consume(queue, (size_t)now);
        written += (size_t)now;
    }
    return (ssize_t)written;
}

/* Reads once. Returns false at the end, or without memory. */
static bool queue_fill(int fd, struct queue *queue)
{
    static uint8_t buffer[64 * 1024];
    ssize_t now = read(fd, buffer, sizeof buffer);
    if (now < 0)
        return errno == EAGAIN || errno == EINTR;
    return now > 0 && queue_append(queue, buffer, (size_t)now);
}

static void send_to_agent(uint32_t id, uint8_t type, const void *payload, uint32_t size)
{
    uint8_t header[LINK_HEADER];
    put32(header, size);
    header[4] = type;
    put32(header + 5, id);
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
    send_to_agent(session->id, CLOSE, "", 0);
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
    send_to_agent(session->id, CREDIT, taken, sizeof taken);
}

/* Forwards complete frames of a client. Returns false if they are invalid. */
static bool forward_client_frames(struct session *session)
{
    struct queue *in = &session->in;
    while (in->filled >= FRAME_HEADER) {
        const uint8_t *frame = in->data + in->start;
        uint32_t size = get32(frame);
        if (size > MAX_FRAME || !frame[4] || frame[4] >= CREDIT)
            return false;
        if (in->filled < FRAME_HEADER + size)
            break;
        send_to_agent(session->id, frame[4], frame + FRAME_HEADER, size);
        queue_consume(in, FRAME_HEADER + size);
    }
    return true;
}

static void serve(struct session *session, uint32_t ready)
{
    if (session->socket < 0)
        return;
    if (ready & (EPOLLIN | EPOLLHUP | EPOLLERR)
        && (!queue_fill(session->socket, &session->in) || !forward_client_frames(session))) {
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
    while (from_agent.filled >= LINK_HEADER) {
        uint8_t *frame = from_agent.data + from_agent.start;
        uint32_t size = get32(frame);
        if (size > MAX_FRAME)
            _exit(1);
        if (from_agent.filled < LINK_HEADER + size)
            return;
        if (frame[4] == ENDED)
            _exit(0);
        struct session *session = find(get32(frame + 5));
        if (session) {
            bool queued = queue_append(&session->out, frame, FRAME_HEADER)
                && queue_append(&session->out, frame + LINK_HEADER, size);
            ssize_t written = queued ? queue_flush(session->socket, &session->out) : -1;
            if (written < 0 || session->out.filled > MAX_QUEUED) {
                end_session(session);
            } else {
                session->uncredited += (uint32_t)written;
                send_credit(session);
            }
        }
        queue_consume(&from_agent, LINK_HEADER + size);
    }
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

static void reap(void)
{
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD)
            _exit(128 + (int)info.ssi_signo);
    siginfo_t ended = {0};
    while (!waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) && ended.si_pid) {
        bool killed = ended.si_code != CLD_EXITED;
        if (ended.si_pid == agent || (killed && is_wineserver(ended.si_pid)))
            _exit(killed ? 128 + ended.si_status : ended.si_status);
        waitpid(ended.si_pid, NULL, 0);
        ended.si_pid = 0;
    }
}

static void start_agent(char **command)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
        _exit(1);
    agent = fork();
    if (agent < 0)
        _exit(1);
    if (agent == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_DFL);
        dup2(in[0], 0);
        dup2(out[1], 1);
        execvp(command[0], command);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    agent_in = in[1];
    agent_out = out[0];
    fcntl(agent_in, F_SETFL, O_NONBLOCK);
    fcntl(agent_out, F_SETFL, O_NONBLOCK);
}

static void connect_agent(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    agent_in = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (strlen(path) >= sizeof address.sun_path)
        _exit(2);
    strcpy(address.sun_path, path);
    if (connect(agent_in, (struct sockaddr *)&address, sizeof address))
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
        start_agent(arguments + 1);
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
        int many = epoll_wait(events, ready, 32, -1);
        for (int i = 0; i < many; i++) {
            void *mark = ready[i].data.ptr;
            if (mark == &last_id)
                accept_client();
            else if (mark == &signals)
                reap();
            else if (mark == &from_agent) {
                if (!queue_fill(agent_out, &from_agent))
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
