/* One opened instance of a named pipe: requested, waited for, and relayed to a Unix socket. */

#ifndef WINPOD_START_H
#define WINPOD_START_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "../protocol.h"

struct pipe {
    const uint8_t *request;
    uint32_t request_size;
    char folder[PATH_MAX], name[NAME_MAX + 1];
};

struct buffer {
    uint32_t start, filled;
    uint8_t data[OUTPUT_WINDOW];
};

enum state { FREE, REQUESTED, WAITING, CONNECTING, OPEN };

struct opening {
    enum state state;
    struct pipe *pipe;
    int agent, host;
    uint32_t window, uncredited; /* uncredited: forwarded bytes not yet reported to the agent */
    bool input_open, exited;
    struct buffer in, to_host, to_agent;
};

/* Whether the last request was rejected, and Windows' message if it refused it. */
extern bool rejected;
extern char refusal[512];

/* Requests an instance of a pipe. Returns false if the silo has ended. */
bool request_opening(struct opening *opening, int bundle, struct pipe *pipe);

/* Connects to the socket of a pipe that a program opened. */
void connect_host(struct opening *opening);

bool reads_host(const struct opening *opening);
void read_host(struct opening *opening);
void read_agent(struct opening *opening);

/* Forwards received data as far as it can be written. */
void forward(struct opening *opening);

#endif
