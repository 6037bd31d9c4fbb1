/* See start.h. */

#define _GNU_SOURCE
#include "start.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "io.h"

bool rejected;
char refusal[512];

/* Compacts a buffer and returns its free space. */
static uint8_t *rest(struct buffer *buffer)
{
    memmove(buffer->data, buffer->data + buffer->start, buffer->filled);
    buffer->start = 0;
    return buffer->data + buffer->filled;
}

/* Adds the header of a frame whose payload is already in place. */
static void put_frame(struct buffer *buffer, uint8_t type, uint32_t size)
{
    uint8_t *frame = rest(buffer);
    put32(frame, size);
    frame[4] = type;
    buffer->filled += FRAME_HEADER + size;
}

static void end(struct opening *opening)
{
    rejected |= opening->state == REQUESTED;
    close(opening->agent);
    if (opening->host >= 0)
        close(opening->host);
    opening->state = FREE;
}

/* Writes what it can. Returns the number of bytes, or -1 if the reader is gone. */
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

bool request_opening(struct opening *opening, int bundle, struct pipe *pipe)
{
    int agent = connect_to(bundle, "run/agent.sock", SOCK_NONBLOCK);
    if (agent < 0)
        return errno == EAGAIN;
    opening->state = REQUESTED;
    opening->pipe = pipe;
    opening->agent = agent;
    opening->host = -1;
    opening->window = INPUT_WINDOW;
    opening->input_open = true;
    opening->exited = false;
    opening->uncredited = 0;
    opening->in.filled = opening->to_host.filled = opening->to_agent.filled = 0;
    memcpy(opening->to_agent.data + FRAME_HEADER, pipe->request, pipe->request_size);
    put_frame(&opening->to_agent, PIPE, pipe->request_size);
    return true;
}

void connect_host(struct opening *opening)
{
    int folder = open(opening->pipe->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0)
        opening->host = connect_to(folder, opening->pipe->name, SOCK_NONBLOCK);
    int error = errno;
    if (folder >= 0)
        close(folder);
    if (opening->host >= 0)
        opening->state = OPEN;
    else if (error != EAGAIN)
        end(opening);
}

/* Handles one complete frame of the agent, if there is one. */
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
    if (type == DONE && opening->state == REQUESTED) {
        opening->state = WAITING;
    } else if (type == CONNECTED && opening->state == WAITING) {
        opening->state = CONNECTING;
        connect_host(opening);
    } else if (type == OUTPUT && opening->state >= CONNECTING && size <= sizeof out->data - out->filled) {
        memcpy(rest(out), payload, size);
        out->filled += size;
    } else if (type == WINDOW && size == 4) {
        uint32_t more = get32(payload);
        opening->window = more > INPUT_WINDOW - opening->window ? INPUT_WINDOW
                                                                : opening->window + more;
    } else if (type == EXIT) {
        opening->exited = true;
    } else {
        if (type == FAILED && size > 4 && opening->state == REQUESTED)
            snprintf(refusal, sizeof refusal, "%.*s\n", (int)size - 4, (char *)payload + 4);
        end(opening);
        return false;
    }
    in->start += FRAME_HEADER + size;
    in->filled -= FRAME_HEADER + size;
    opening->uncredited += FRAME_HEADER + (type == OUTPUT ? 0 : size);
    return true;
}

void read_agent(struct opening *opening)
{
    struct buffer *in = &opening->in;
    ssize_t now = read(opening->agent, rest(in), sizeof in->data - in->filled);
    if (now > 0)
        in->filled += (uint32_t)now;
    else if (now == 0 || (errno != EAGAIN && errno != EINTR))
        end(opening);
}

bool reads_host(const struct opening *opening)
{
    return opening->state == OPEN && opening->input_open && opening->window && !opening->to_agent.filled
        && !opening->exited;
}

void read_host(struct opening *opening)
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

static void report_taken(struct opening *opening)
{
    if (opening->uncredited < OUTPUT_WINDOW / 4)
        return;
    put32(rest(&opening->to_agent) + FRAME_HEADER, opening->uncredited);
    put_frame(&opening->to_agent, TAKEN, 4);
    opening->uncredited = 0;
}

void forward(struct opening *opening)
{
    while (take_frame(opening))
        ;
    if (opening->state == OPEN) {
        ssize_t gone = flush(opening->host, &opening->to_host);
        if (gone < 0) { /* it no longer reads, but may still write */
            gone = opening->to_host.filled;
            opening->to_host.filled = 0;
        }
        opening->uncredited += (uint32_t)gone;
    }
    if (opening->state == FREE)
        return;
    report_taken(opening);
    if (flush(opening->agent, &opening->to_agent) < 0
        || (opening->exited && !opening->to_host.filled))
        end(opening);
}
