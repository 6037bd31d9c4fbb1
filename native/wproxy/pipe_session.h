/* One opened instance of a named pipe: requested, waited for, and relayed to a Unix socket. */

#ifndef WINPOD_PIPE_SESSION_H
#define WINPOD_PIPE_SESSION_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "queue.h"

struct pipe {
    const uint8_t *request;
    uint32_t request_size;
    char folder[PATH_MAX], name[NAME_MAX + 1];
};

enum state { FREE, REQUESTED, WAITING, CONNECTING, OPEN };

struct pipe_session {
    enum state state;
    struct pipe *pipe;
    int agent, host;
    uint32_t window, uncredited; /* uncredited: forwarded bytes not yet reported to the agent */
    bool input_open, exited;
    struct queue in, to_host, to_agent;
};

/* Whether the last request was rejected, and Windows' message if it refused it. */
extern bool rejected;
extern char refusal[512];

/* Requests an instance of a pipe. Returns false if the silo has ended. */
bool request_session(struct pipe_session *session, int bundle, struct pipe *pipe);

/* Connects to the socket of a pipe that a program opened. */
void connect_host(struct pipe_session *session);

bool reads_agent(const struct pipe_session *session);
bool reads_host(const struct pipe_session *session);
void read_host(struct pipe_session *session);
void read_agent(struct pipe_session *session);

/* Forwards received data as far as it can be written. */
void forward(struct pipe_session *session);

#endif
