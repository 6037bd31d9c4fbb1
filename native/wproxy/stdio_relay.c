/* See stdio_relay.h. */

#define _GNU_SOURCE
#include "stdio_relay.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../protocol.h"
#include "io.h"
#include "log.h"

#define SILO_DIED 137

struct out {
    int fd;
    uint32_t start, filled;
    uint8_t data[CHUNK];
};

static int bundle, agent;
static struct out outputs[2] = {{.fd = 1}, {.fd = 2}};
static uint8_t incoming[FRAME_HEADER + CHUNK];
static uint32_t received, window = INPUT_WINDOW;
static bool input_open, exited;
static uint32_t exit_code;

static _Noreturn void die(int code)
{
    log_end();
    _exit(code);
}

static void write_exit_code(void)
{
    char text[16];
    int size = snprintf(text, sizeof text, "%u\n", exit_code);
    int file = openat(bundle, "exit32.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0 || !write_all(file, text, (size_t)size) || fsync(file)
        || renameat(bundle, "exit32.new", bundle, "exit32"))
        die(SILO_DIED);
}

static void flush(struct out *out)
{
    while (out->filled) {
        ssize_t now = write(out->fd, out->data + out->start, out->filled);
        if (now < 0 && errno == EINTR)
            continue;
        if (now < 0 && errno == EAGAIN)
            return;
        if (now < 0)
            now = (ssize_t)out->filled; /* the reader is gone; the program continues */
        out->start += (uint32_t)now;
        out->filled -= (uint32_t)now;
    }
    out->start = 0;
}

/* Handles one complete frame, if there is one and its data can be buffered. */
static bool take_frame(void)
{
    if (received < FRAME_HEADER)
        return false;
    uint32_t size = get32(incoming);
    uint8_t type = incoming[4], *payload = incoming + FRAME_HEADER;
    if (size > CHUNK)
        die(SILO_DIED);
    if (received < FRAME_HEADER + size)
        return false;
    if (type == OUTPUT || type == ERRORS) {
        struct out *out = &outputs[type == ERRORS];
        if (out->filled)
            return false;
        memcpy(out->data, payload, size);
        out->filled = size;
        log_write(type == ERRORS, payload, size);
        flush(out);
    } else if (type == WINDOW && size == 4) {
        uint32_t more = get32(payload);
        window = more > INPUT_WINDOW - window ? INPUT_WINDOW : window + more;
    } else if (type == EXIT && size == 4) {
        exited = true;
        exit_code = get32(payload);
    } else {
        die(SILO_DIED);
    }
    received -= FRAME_HEADER + size;
    memmove(incoming, payload + size, received);
    return true;
}

static void take_input(void)
{
    static uint8_t data[CHUNK];
    ssize_t now = read(0, data, window < CHUNK ? window : CHUNK);
    if (now < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (now > 0) {
        window -= (uint32_t)now;
        send_frame(agent, INPUT, data, (uint32_t)now);
        return;
    }
    input_open = false;
    send_frame(agent, INPUT_END, "", 0);
}

static void send_size(void)
{
    struct winsize size;
    if (ioctl(0, TIOCGWINSZ, &size) || !size.ws_col || !size.ws_row)
        return;
    uint8_t payload[4];
    put32(payload, (uint32_t)size.ws_col | (uint32_t)size.ws_row << 16);
    send_frame(agent, RESIZE, payload, sizeof payload);
}

static void take_signal(int signals)
{
    struct signalfd_siginfo info;
    if (read(signals, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    uint8_t kind = SIGNAL_SHUTDOWN;
    switch (info.ssi_signo) {
    case SIGWINCH:
        send_size();
        return;
    case SIGUSR1:
        log_reopen();
        return;
    case SIGHUP:
        kind = SIGNAL_CLOSE;
        break;
    case SIGINT:
        kind = SIGNAL_INTERRUPT;
        break;
    case SIGQUIT:
        kind = SIGNAL_BREAK;
        break;
    }
    send_frame(agent, SIGNAL, &kind, 1);
}

int catch_signals(void)
{
    static const int caught[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGWINCH, SIGUSR1};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
        sigaddset(&set, caught[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

_Noreturn void relay_stdio(int in, int from, int signals, bool with_terminal)
{
    bundle = in;
    agent = from;
    struct stat about;
    input_open = with_terminal || (!fstat(0, &about) && !S_ISCHR(about.st_mode));
    if (!input_open)
        send_frame(agent, INPUT_END, "", 0);
    for (int i = 0; i < 2; i++)
        fcntl(i + 1, F_SETFL, fcntl(i + 1, F_GETFL) | O_NONBLOCK);
    if (with_terminal)
        send_size();
    for (;;) {
        while (take_frame())
            ;
        if (exited && !outputs[0].filled && !outputs[1].filled) {
            write_exit_code();
            die((int)(exit_code & 255));
        }
        struct pollfd ready[] = {
            {.fd = signals, .events = POLLIN},
            {.fd = received < sizeof incoming && !exited ? agent : -1, .events = POLLIN},
            {.fd = input_open && window ? 0 : -1, .events = POLLIN},
            {.fd = outputs[0].filled ? 1 : -1, .events = POLLOUT},
            {.fd = outputs[1].filled ? 2 : -1, .events = POLLOUT},
        };
        if (poll(ready, 5, -1) < 0)
            continue;
        if (ready[0].revents)
            take_signal(signals);
        if (ready[1].revents) {
            ssize_t now = read(agent, incoming + received, sizeof incoming - received);
            if (now == 0 || (now < 0 && errno != EINTR && errno != EAGAIN))
                die(SILO_DIED);
            if (now > 0)
                received += (uint32_t)now;
        }
        if (ready[2].revents)
            take_input();
        for (int i = 0; i < 2; i++)
            if (ready[3 + i].revents)
                flush(&outputs[i]);
    }
}
