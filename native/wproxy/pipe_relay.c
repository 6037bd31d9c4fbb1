/* One event loop for all instances of all pipes; none of them can block another. See pipe_relay.h. */

#define _GNU_SOURCE
#include "pipe_relay.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent_protocol.h"
#include "frame_io.h"
#include "io.h"
#include "pipe_session.h"

#define MAX_PIPES 16
#define MAX_SESSIONS 64
#define WAITING_PER_PIPE 2
#define RETRY_MS 50

static struct pipe pipes[MAX_PIPES];
static struct pipe_session sessions[MAX_SESSIONS];
static uint32_t pipe_count;
static int bundle = -1;

static bool read_pipes(void)
{
    struct stat about;
    int file = openat(bundle, "pipes", O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &about))
        return false;
    uint8_t *all = malloc((size_t)about.st_size), *end = all + about.st_size;
    if (!all || !read_all(file, all, (size_t)about.st_size))
        return false;
    close(file);
    errno = EINVAL;
    for (uint8_t *at = all; at < end; pipe_count++) {
        struct pipe *pipe = &pipes[pipe_count];
        uint32_t sizes[2];
        const uint8_t *parts[2];
        for (int i = 0; i < 2; i++) {
            if (end - at < 4 || get32(at) > end - at - 4)
                return false;
            sizes[i] = get32(at);
            parts[i] = at + 4;
            at += 4 + sizes[i];
        }
        if (pipe_count == MAX_PIPES || sizes[0] > CHUNK || sizes[1] >= sizeof pipe->folder)
            return false;
        pipe->request = parts[0];
        pipe->request_size = sizes[0];
        memcpy(pipe->folder, parts[1], sizes[1]);
        char *slash = strrchr(pipe->folder, '/');
        if (!slash || strlen(slash + 1) >= sizeof pipe->name)
            return false;
        strcpy(pipe->name, slash + 1);
        slash[1] = 0;
    }
    return true;
}

static struct pipe_session *find_free(void)
{
    for (struct pipe_session *one = sessions; one < sessions + MAX_SESSIONS; one++)
        if (one->state == FREE)
            return one;
    return NULL;
}

static uint32_t count(const struct pipe *pipe, enum state from, enum state to)
{
    uint32_t found = 0;
    for (struct pipe_session *one = sessions; one < sessions + MAX_SESSIONS; one++)
        found += one->pipe == pipe && one->state >= from && one->state <= to;
    return found;
}

/* Returns false if the silo has ended. */
static bool request_sessions(void)
{
    rejected = false;
    for (struct pipe *pipe = pipes; pipe < pipes + pipe_count; pipe++)
        while (count(pipe, REQUESTED, WAITING) < WAITING_PER_PIPE) {
            struct pipe_session *session = find_free();
            if (!session)
                return true;
            if (!request_session(session, bundle, pipe))
                return false;
            if (session->state == FREE) {
                rejected = true;
                return true;
            }
        }
    return true;
}

static void poll_once(int timeout)
{
    struct pollfd ready[2 * MAX_SESSIONS];
    for (int i = 0; i < MAX_SESSIONS; i++) {
        struct pipe_session *one = &sessions[i];
        short agent = (short)((reads_agent(one) ? POLLIN : 0) | (one->to_agent.filled ? POLLOUT : 0));
        short host = (short)((reads_host(one) ? POLLIN : 0) | (one->to_host.filled ? POLLOUT : 0));
        ready[2 * i] = (struct pollfd){one->state != FREE && agent ? one->agent : -1, agent, 0};
        ready[2 * i + 1] = (struct pollfd){one->state == OPEN && host ? one->host : -1, host, 0};
    }
    if (poll(ready, 2 * MAX_SESSIONS, timeout) < 0)
        return;
    for (int i = 0; i < MAX_SESSIONS; i++) {
        struct pipe_session *one = &sessions[i];
        if (one->state == CONNECTING)
            connect_host(one);
        if (reads_host(one) && ready[2 * i + 1].revents)
            read_host(one);
        if (one->state != FREE && ready[2 * i].revents & ~POLLOUT)
            read_agent(one);
        if (one->state != FREE)
            forward(one);
    }
}

static bool all_exist(void)
{
    for (struct pipe *pipe = pipes; pipe < pipes + pipe_count; pipe++)
        if (!count(pipe, WAITING, OPEN))
            return false;
    return true;
}

static bool any_connecting(void)
{
    for (struct pipe *pipe = pipes; pipe < pipes + pipe_count; pipe++)
        if (count(pipe, CONNECTING, CONNECTING))
            return true;
    return false;
}

static long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static _Noreturn void serve(int report)
{
    for (long last = now() - RETRY_MS;;) {
        if (!rejected || now() - last >= RETRY_MS) {
            last = now();
            if (!request_sessions())
                break;
        }
        poll_once(rejected || any_connecting() ? RETRY_MS : -1);
        if (report >= 0 && (all_exist() || *refusal)) {
            dprintf(report, "%s", refusal);
            close(report);
            report = -1;
            if (*refusal)
                _exit(1);
        }
    }
    if (report >= 0)
        dprintf(report, "The container's silo does not answer: %s\n", strerror(errno));
    _exit(0);
}

int relay_pipes(const char *folder)
{
    int report_pipe[2];
    bundle = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (bundle < 0 || !read_pipes() || pipe2(report_pipe, O_CLOEXEC)) {
        fprintf(stderr, "The pipes in %s cannot be read: %s\n", folder, strerror(errno));
        return 1;
    }
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_NAME, "wproxy-relay");
        signal(SIGPIPE, SIG_IGN);
        close(report_pipe[0]);
        setsid();
        if (chdir("/"))
            _exit(1);
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        for (int i = 0; i < 3; i++)
            dup2(null, i);
        serve(report_pipe[1]);
    }
    close(report_pipe[1]);
    char message[1024];
    ssize_t size = child < 0 ? -1 : read(report_pipe[0], message, sizeof message);
    if (size > 0)
        write_all(2, message, (size_t)size);
    return size == 0 ? 0 : 1;
}
