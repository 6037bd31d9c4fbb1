/* One loop over all openings of all pipes; none of them can make another wait. See relay.h. */

#define _GNU_SOURCE
#include "relay.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io.h"
#include "protocol.h"

#define MAX_PIPES 16
#define MAX_OPENINGS 64
#define WAITING_EACH 2
#define TRY_AGAIN 50 /* ms */

struct pipe {
    const uint8_t *request;
    uint32_t request_size;
    char folder[PATH_MAX], name[NAME_MAX + 1];
};

struct buffer {
    uint32_t start, filled;
    uint8_t data[OUTPUT_WINDOW];
};

enum state { FREE, ASKED, WAITING, DIALLING, OPEN };

struct opening {
    enum state state;
    struct pipe *pipe;
    int agent, host;
    uint32_t window, untold; /* untold: bytes that have gone on and the agent does not know of */
    bool input_open, exited;
    struct buffer in, to_host, to_agent;
};

static struct pipe pipes[MAX_PIPES];
static struct opening openings[MAX_OPENINGS];
static uint32_t pipe_count;
static int bundle = -1;
static bool turned_away; /* what was asked last was not granted */
static char refusal[512];

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

/* ---- one opening ---- */

/* The unfilled rest of a buffer, moved to where it is whole. */
static uint8_t *rest(struct buffer *buffer)
{
    memmove(buffer->data, buffer->data + buffer->start, buffer->filled);
    buffer->start = 0;
    return buffer->data + buffer->filled;
}

/* Ends a frame whose payload is in its place after the header. */
static void put_frame(struct buffer *buffer, uint8_t type, uint32_t size)
{
    uint8_t *frame = rest(buffer);
    put32(frame, size);
    frame[4] = type;
    buffer->filled += FRAME_HEADER + size;
}

static void end(struct opening *opening)
{
    turned_away |= opening->state == ASKED;
    close(opening->agent);
    if (opening->host >= 0)
        close(opening->host);
    opening->state = FREE;
}

/* Writes what it can. Returns how much that was, or -1 when nobody takes it. */
static ssize_t flush(int fd, struct buffer *buffer)
{
    uint32_t before = buffer->filled;
    while (buffer->filled) {
        ssize_t now = write(fd, buffer->data + buffer->start, buffer->filled);
        if (now < 0 && errno == EINTR)
            continue;
        if (now < 0 && errno != EAGAIN)
            return -1;
        if (now < 0)
            break;
        buffer->start += (uint32_t)now;
        buffer->filled -= (uint32_t)now;
    }
    return before - buffer->filled;
}

/* Asks for one more opening of a pipe. Returns false when the shell is no more. */
static bool ask(struct opening *opening, struct pipe *pipe)
{
    int agent = connect_to(bundle, "run/agent.sock", SOCK_NONBLOCK);
    if (agent < 0)
        return errno == EAGAIN;
    opening->state = ASKED;
    opening->pipe = pipe;
    opening->agent = agent;
    opening->host = -1;
    opening->window = INPUT_WINDOW;
    opening->input_open = true;
    opening->exited = false;
    opening->untold = 0;
    opening->in.filled = opening->to_host.filled = opening->to_agent.filled = 0;
    memcpy(opening->to_agent.data + FRAME_HEADER, pipe->request, pipe->request_size);
    put_frame(&opening->to_agent, PIPE, pipe->request_size);
    return true;
}

static void dial(struct opening *opening)
{
    int folder = open(opening->pipe->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0)
        opening->host = connect_to(folder, opening->pipe->name, SOCK_NONBLOCK);
    int why = errno;
    if (folder >= 0)
        close(folder);
    if (opening->host >= 0)
        opening->state = OPEN;
    else if (why != EAGAIN)
        end(opening);
}

/* Takes one frame of the agent, if it is there. */
static bool take_frame(struct opening *opening)
{
    struct buffer *in = &opening->in, *out = &opening->to_host;
    if (opening->state == FREE || in->filled < FRAME_HEADER)
        return false;
    uint8_t *frame = in->data + in->start, type = frame[4], *payload = frame + FRAME_HEADER;
    uint32_t size = get32(frame);
    if (size > CHUNK) {
        end(opening);
        return false;
    }
    if (in->filled < FRAME_HEADER + size)
        return false;
    if (type == DONE && opening->state == ASKED) {
        opening->state = WAITING;
    } else if (type == CONNECTED && opening->state == WAITING) {
        opening->state = DIALLING;
        dial(opening);
    } else if (type == OUTPUT && opening->state >= DIALLING && size <= sizeof out->data - out->filled) {
        memcpy(rest(out), payload, size);
        out->filled += size;
    } else if (type == WINDOW && size == 4) {
        uint32_t more = get32(payload);
        opening->window = more > INPUT_WINDOW - opening->window ? INPUT_WINDOW
                                                                : opening->window + more;
    } else if (type == EXIT) {
        opening->exited = true;
    } else {
        if (type == FAILED && size > 4 && opening->state == ASKED)
            snprintf(refusal, sizeof refusal, "%.*s\n", (int)size - 4, (char *)payload + 4);
        end(opening);
        return false;
    }
    in->start += FRAME_HEADER + size;
    in->filled -= FRAME_HEADER + size;
    opening->untold += FRAME_HEADER + (type == OUTPUT ? 0 : size);
    return true;
}

static void hear_agent(struct opening *opening)
{
    struct buffer *in = &opening->in;
    ssize_t now = read(opening->agent, rest(in), sizeof in->data - in->filled);
    if (now > 0)
        in->filled += (uint32_t)now;
    else if (now == 0 || (errno != EAGAIN && errno != EINTR))
        end(opening);
}

static void hear_host(struct opening *opening)
{
    struct buffer *out = &opening->to_agent;
    uint32_t most = opening->window < CHUNK ? opening->window : CHUNK;
    ssize_t now = read(opening->host, rest(out) + FRAME_HEADER, most);
    if (now < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (now > 0) {
        opening->window -= (uint32_t)now;
        put_frame(out, INPUT, (uint32_t)now);
        return;
    }
    opening->input_open = false;
    put_frame(out, INPUT_END, 0);
}

static void tell_taken(struct opening *opening)
{
    if (opening->untold < OUTPUT_WINDOW / 4)
        return;
    put32(rest(&opening->to_agent) + FRAME_HEADER, opening->untold);
    put_frame(&opening->to_agent, TAKEN, 4);
    opening->untold = 0;
}

static void move(struct opening *opening)
{
    while (take_frame(opening))
        ;
    if (opening->state == OPEN) {
        ssize_t gone = flush(opening->host, &opening->to_host);
        if (gone < 0) { /* it listens no more, but may still speak */
            gone = opening->to_host.filled;
            opening->to_host.filled = 0;
        }
        opening->untold += (uint32_t)gone;
    }
    if (opening->state == FREE)
        return;
    tell_taken(opening);
    if (flush(opening->agent, &opening->to_agent) < 0
        || (opening->exited && !opening->to_host.filled))
        end(opening);
}

/* ---- all of them ---- */

static struct opening *find_free(void)
{
    for (struct opening *one = openings; one < openings + MAX_OPENINGS; one++)
        if (one->state == FREE)
            return one;
    return NULL;
}

static uint32_t count(const struct pipe *pipe, enum state from, enum state to)
{
    uint32_t found = 0;
    for (struct opening *one = openings; one < openings + MAX_OPENINGS; one++)
        found += one->pipe == pipe && one->state >= from && one->state <= to;
    return found;
}

/* Returns false when the shell is no more. */
static bool ask_for_more(void)
{
    turned_away = false;
    for (struct pipe *pipe = pipes; pipe < pipes + pipe_count; pipe++)
        while (count(pipe, ASKED, WAITING) < WAITING_EACH) {
            struct opening *opening = find_free();
            if (!opening)
                return true;
            if (!ask(opening, pipe))
                return false;
            if (opening->state == FREE) {
                turned_away = true;
                return true;
            }
        }
    return true;
}

static bool wants_host(const struct opening *one)
{
    return one->state == OPEN && one->input_open && one->window && !one->to_agent.filled
        && !one->exited;
}

static void turn(int patience)
{
    struct pollfd ready[2 * MAX_OPENINGS];
    for (int i = 0; i < MAX_OPENINGS; i++) {
        struct opening *one = &openings[i];
        bool room = one->in.filled < sizeof one->in.data && !one->exited;
        short agent = (short)((room ? POLLIN : 0) | (one->to_agent.filled ? POLLOUT : 0));
        short host = (short)((wants_host(one) ? POLLIN : 0) | (one->to_host.filled ? POLLOUT : 0));
        ready[2 * i] = (struct pollfd){one->state != FREE && agent ? one->agent : -1, agent, 0};
        ready[2 * i + 1] = (struct pollfd){one->state == OPEN && host ? one->host : -1, host, 0};
    }
    if (poll(ready, 2 * MAX_OPENINGS, patience) < 0)
        return;
    for (int i = 0; i < MAX_OPENINGS; i++) {
        struct opening *one = &openings[i];
        if (one->state == DIALLING)
            dial(one);
        if (wants_host(one) && ready[2 * i + 1].revents)
            hear_host(one);
        if (one->state != FREE && ready[2 * i].revents & ~POLLOUT)
            hear_agent(one);
        if (one->state != FREE)
            move(one);
    }
}

static bool all_are_there(void)
{
    for (struct pipe *pipe = pipes; pipe < pipes + pipe_count; pipe++)
        if (!count(pipe, WAITING, OPEN))
            return false;
    return true;
}

static bool any_dialling(void)
{
    for (struct pipe *pipe = pipes; pipe < pipes + pipe_count; pipe++)
        if (count(pipe, DIALLING, DIALLING))
            return true;
    return false;
}

static long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static _Noreturn void carry(int report)
{
    for (long last = now() - TRY_AGAIN;;) {
        if (!turned_away || now() - last >= TRY_AGAIN) {
            last = now();
            if (!ask_for_more())
                break;
        }
        turn(turned_away || any_dialling() ? TRY_AGAIN : -1);
        if (report >= 0 && (all_are_there() || *refusal)) {
            dprintf(report, "%s", refusal);
            close(report);
            report = -1;
            if (*refusal)
                _exit(1);
        }
    }
    if (report >= 0)
        dprintf(report, "The container's shell does not answer: %s\n", strerror(errno));
    _exit(0);
}

int relay(const char *folder)
{
    int news[2];
    bundle = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (bundle < 0 || !read_pipes() || pipe2(news, O_CLOEXEC)) {
        fprintf(stderr, "The pipes in %s cannot be read: %s\n", folder, strerror(errno));
        return 1;
    }
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_NAME, "wproxy-relay");
        signal(SIGPIPE, SIG_IGN);
        close(news[0]);
        setsid();
        if (chdir("/"))
            _exit(1);
        int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
        for (int i = 0; i < 3; i++)
            dup2(nothing, i);
        carry(news[1]);
    }
    close(news[1]);
    char sentence[1024];
    ssize_t size = child < 0 ? -1 : read(news[0], sentence, sizeof sentence);
    if (size > 0)
        write_all(2, sentence, (size_t)size);
    return size == 0 ? 0 : 1;
}
