/* See pipe_session.h. */

#define _GNU_SOURCE
#include "pipe_session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent_protocol.h"
#include "frame_io.h"
#include "io.h"

bool rejected;
char refusal[512];

static void end(struct pipe_session *session)
{
    rejected |= session->state == REQUESTED;
    close(session->agent);
    if (session->host >= 0)
        close(session->host);
    queue_reset(&session->in);
    queue_reset(&session->to_host);
    queue_reset(&session->to_agent);
    session->state = FREE;
}

/* Queues a frame for the agent. Ends the session without memory. */
static void queue_frame(struct pipe_session *session, uint8_t type, const void *payload, uint32_t size)
{
    uint8_t header[FRAME_HEADER_SIZE];
    put_frame_header(header, size, type);
    if (!queue_append(&session->to_agent, header, sizeof header)
        || !queue_append(&session->to_agent, payload, size))
        end(session);
}

bool request_session(struct pipe_session *session, int bundle, struct pipe *pipe)
{
    int agent = connect_unix(bundle, "run/agent.sock", SOCK_NONBLOCK);
    if (agent < 0)
        return errno == EAGAIN;
    *session = (struct pipe_session){
        .state = REQUESTED, .pipe = pipe, .agent = agent, .host = -1,
        .window = STDIN_WINDOW, .input_open = true,
    };
    queue_frame(session, FRAME_PIPE_LISTEN, pipe->request, pipe->request_size);
    return true;
}

void connect_host(struct pipe_session *session)
{
    int folder = open(session->pipe->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0)
        session->host = connect_unix(folder, session->pipe->name, SOCK_NONBLOCK);
    int error = errno;
    if (folder >= 0)
        close(folder);
    if (session->host >= 0)
        session->state = OPEN;
    else if (error != EAGAIN)
        end(session);
}

/* Handles one complete frame of the agent, if there is one. */
static bool handle_frame(struct pipe_session *session)
{
    struct queue *in = &session->in, *out = &session->to_host;
    if (session->state == FREE || in->filled < FRAME_HEADER_SIZE)
        return false;
    const uint8_t *frame = queue_head(in), *payload = frame + FRAME_HEADER_SIZE;
    uint8_t type = frame[4];
    uint32_t size = get32(frame);
    if (size > CHUNK) {
        end(session);
        return false;
    }
    if (in->filled < FRAME_HEADER_SIZE + size)
        return false;
    if (type == FRAME_DONE && session->state == REQUESTED) {
        session->state = WAITING;
    } else if (type == FRAME_PIPE_CONNECTED && session->state == WAITING) {
        session->state = CONNECTING;
        connect_host(session);
    } else if (type == FRAME_STDOUT && session->state >= CONNECTING
               && size <= OUTPUT_WINDOW - out->filled) {
        if (!queue_append(out, payload, size))
            end(session);
    } else if (type == FRAME_STDIN_CREDIT && size == 4) {
        uint32_t more = get32(payload);
        session->window = more > STDIN_WINDOW - session->window ? STDIN_WINDOW
                                                                : session->window + more;
    } else if (type == FRAME_EXIT) {
        session->exited = true;
    } else {
        if (type == FRAME_FAILED && size > 4 && session->state == REQUESTED)
            snprintf(refusal, sizeof refusal, "%.*s\n", (int)size - 4, (char *)payload + 4);
        end(session);
    }
    if (session->state == FREE)
        return false;
    queue_consume(in, FRAME_HEADER_SIZE + size);
    session->uncredited += FRAME_HEADER_SIZE + (type == FRAME_STDOUT ? 0 : size);
    return true;
}

bool reads_agent(const struct pipe_session *session)
{
    return session->state != FREE && session->in.filled < OUTPUT_WINDOW && !session->exited;
}

void read_agent(struct pipe_session *session)
{
    if (!queue_fill(session->agent, &session->in, OUTPUT_WINDOW - session->in.filled))
        end(session);
}

bool reads_host(const struct pipe_session *session)
{
    return session->state == OPEN && session->input_open && session->window && !session->to_agent.filled
        && !session->exited;
}

void read_host(struct pipe_session *session)
{
    static uint8_t data[CHUNK];
    ssize_t now = read(session->host, data, session->window < CHUNK ? session->window : CHUNK);
    if (now < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (now > 0) {
        session->window -= (uint32_t)now;
        queue_frame(session, FRAME_STDIN, data, (uint32_t)now);
        return;
    }
    session->input_open = false;
    queue_frame(session, FRAME_STDIN_CLOSE, NULL, 0);
}

static void send_credit(struct pipe_session *session)
{
    uint8_t forwarded[4];
    if (session->uncredited < OUTPUT_WINDOW / 4)
        return;
    put32(forwarded, session->uncredited);
    session->uncredited = 0;
    queue_frame(session, FRAME_PIPE_CREDIT, forwarded, sizeof forwarded);
}

void forward(struct pipe_session *session)
{
    while (handle_frame(session))
        ;
    if (session->state == OPEN) {
        size_t before = session->to_host.filled;
        if (queue_flush(session->host, &session->to_host) < 0)
            queue_reset(&session->to_host); /* it no longer reads, but may still write */
        session->uncredited += (uint32_t)(before - session->to_host.filled);
    }
    if (session->state != FREE)
        send_credit(session);
    if (session->state == FREE)
        return;
    if (queue_flush(session->agent, &session->to_agent) < 0
        || (session->exited && !session->to_host.filled))
        end(session);
}
