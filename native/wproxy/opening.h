/* One opening of a named pipe: asked for, waited for, and then carried to a socket and back. */

#ifndef WINPOD_OPENING_H
#define WINPOD_OPENING_H

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

enum state { FREE, ASKED, WAITING, DIALLING, OPEN };

struct opening {
    enum state state;
    struct pipe *pipe;
    int agent, host;
    uint32_t window, untold; /* untold: bytes that have gone on and the agent does not know of */
    bool input_open, exited;
    struct buffer in, to_host, to_agent;
};

/* The last that was asked for was not granted; what Windows said, if that was why. */
extern bool turned_away;
extern char refusal[512];

/* Asks for an opening of a pipe. Returns false when the shell is no more. */
bool ask(struct opening *opening, int bundle, struct pipe *pipe);

/* Tries to reach the socket of a pipe that was opened. */
void dial(struct opening *opening);

bool wants_host(const struct opening *opening);
void hear_host(struct opening *opening);
void hear_agent(struct opening *opening);

/* Hands on what was heard, as far as others take it. */
void move(struct opening *opening);

#endif
