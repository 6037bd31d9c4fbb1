/* What the host, winit and wagent say to each other.
 *
 * A client connects to the shell's socket; one connection is one program, one opening of a named
 * pipe (INPUT_END closes it, EXIT tells that the program has closed it), or one request. Frames
 * are little endian: u32 length of the payload, u8 type, payload. Between winit and wagent there is
 * a u32 session between type and payload, so that one pair of pipes carries them all.
 *
 * A client may send INPUT_WINDOW bytes of INPUT, and more as WINDOW allows. wagent may send
 * OUTPUT_WINDOW bytes of OUTPUT and ERRORS, and more as CREDIT allows: neither side ever has to
 * stop reading, so a signal is never stuck behind data, and no buffer grows without bound. Of a
 * named pipe the client itself says with TAKEN what has gone on: neither direction waits for the
 * other, however those at the ends read and write.
 */

#ifndef WINPOD_PROTOCOL_H
#define WINPOD_PROTOCOL_H

#include <stdint.h>

#define FRAME_HEADER 5
#define LINK_HEADER 9
#define MAX_FRAME (512u << 10)
#define CHUNK (32u << 10)
#define INPUT_WINDOW (64u << 10)
#define OUTPUT_WINDOW (128u << 10)

enum frame_type {
    /* from a client */
    START = 1,       /* u8 flags, u16 columns, u16 rows; texts: command line, directory, environment */
    INPUT = 2,       /* data */
    INPUT_END = 3,   /* nothing */
    SIGNAL = 4,      /* u8 kind */
    RESIZE = 5,      /* u16 columns, u16 rows */
    PROCESSES = 6,   /* nothing */
    REGISTRY = 7,    /* changes, one after the other: see requests.c of wagent */
    PING = 8,        /* nothing */
    PIPE = 9,        /* text: a name; DONE when it is a named pipe, CONNECTED when it is opened */
    TAKEN = 10,      /* u32 bytes of a pipe's frames that have gone on: what CREDIT is to programs */
    /* from winit to wagent only */
    CREDIT = 32,     /* u32 bytes that a client has taken */
    CLOSE = 33,      /* nothing: the client has gone */
    /* from the first process of a shell in a microVM to winit on the host */
    ENDED = 34,      /* nothing: the shell has */
    /* to a client */
    STARTED = 65,    /* u32 Windows process id */
    OUTPUT = 66,     /* data */
    ERRORS = 67,     /* data */
    EXIT = 68,       /* u32 exit code */
    FAILED = 69,     /* u32 Windows error code, its sentence in UTF-8 */
    WINDOW = 70,     /* u32 bytes of INPUT that were taken */
    PROCESS_LIST = 71, /* records, one after the other: see requests.c of wagent */
    DONE = 72,       /* nothing */
    CONNECTED = 73,  /* nothing: from here on INPUT and OUTPUT are what travels in the pipe */
};

/* A text is a u32 count of UTF-16 units, then the units, the last of them 0. */

enum start_flag {
    START_TERMINAL = 1,
    START_INPUT = 2,  /* without it the program reads an end of file */
    START_WHOLE = 4,  /* whatever the program has started ends with it */
};

enum signal_kind {
    SIGNAL_SHUTDOWN = 1,
    SIGNAL_CLOSE = 2,
    SIGNAL_INTERRUPT = 3,
    SIGNAL_BREAK = 4,
    SIGNAL_KILL = 5,
};

static inline void put32(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
    at[2] = (uint8_t)(value >> 16);
    at[3] = (uint8_t)(value >> 24);
}

static inline uint32_t get32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

#endif
