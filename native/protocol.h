/* The protocol between the host, winit and wagent.
 *
 * A client connects to the silo's socket. A connection carries one program, one opened instance of a
 * named pipe (INPUT_END closes it, EXIT reports that the program closed it), or one request. Frames
 * are little endian: u32 length of the payload, u8 type, payload. Between winit and wagent a u32
 * session follows the type, so that one pair of pipes carries all sessions.
 *
 * A client may send INPUT_WINDOW bytes of INPUT, and more as WINDOW allows. wagent may send
 * OUTPUT_WINDOW bytes of OUTPUT and ERRORS, and more as CREDIT allows. So neither side ever has to
 * stop reading, signals are never stuck behind data, and buffers are bounded. For a named pipe the
 * client itself reports with TAKEN what it has forwarded, so neither direction blocks the other.
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
    INPUT_END = 3,   /* empty */
    SIGNAL = 4,      /* u8 kind */
    RESIZE = 5,      /* u16 columns, u16 rows */
    PROCESSES = 6,   /* empty */
    REGISTRY = 7,    /* sequence of changes: see requests.c of wagent */
    PING = 8,        /* empty */
    PIPE = 9,        /* text: a name; answered by DONE when the pipe exists, CONNECTED when opened */
    TAKEN = 10,      /* u32 bytes of a pipe's frames that were forwarded: CREDIT for pipes */
    /* from winit to wagent only */
    CREDIT = 32,     /* u32 bytes that a client has received */
    CLOSE = 33,      /* empty: the client disconnected */
    /* from the first process of a silo in a microVM to winit on the host */
    ENDED = 34,      /* empty: the silo has ended */
    /* to a client */
    STARTED = 65,    /* u32 Windows process id */
    OUTPUT = 66,     /* data */
    ERRORS = 67,     /* data */
    EXIT = 68,       /* u32 exit code */
    FAILED = 69,     /* u32 Windows error code, its message in UTF-8 */
    WINDOW = 70,     /* u32 bytes of INPUT that were consumed */
    PROCESS_LIST = 71, /* sequence of records: see requests.c of wagent */
    DONE = 72,       /* empty */
    CONNECTED = 73,  /* empty: from now on INPUT and OUTPUT are the pipe's data */
};

/* A text is a u32 count of UTF-16 units, then the units, the last of them 0. */

enum start_flag {
    START_TERMINAL = 1,
    START_INPUT = 2,  /* without it the program's stdin is at its end */
    START_WHOLE = 4,  /* terminate the program's descendants when it exits */
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
