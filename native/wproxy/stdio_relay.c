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

#include "agent_protocol.h"
#include "cri_log.h"
#include "frame_io.h"
#include "io.h"
#include "queue.h"

#define SILO_DIED 137
#define MAX_INCOMING (FRAME_HEADER_SIZE + CHUNK)

static int bundle, agent;
static struct queue incoming, outputs[2]; /* outputs: stdout and stderr, not yet read by conmon */
static uint32_t window = STDIN_WINDOW;
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

bool send_frame(int to, uint8_t type, const void *payload, uint32_t size)
{
    uint8_t header[FRAME_HEADER_SIZE];
    put_frame_header(header, size, type);
    return write_all(to, header, sizeof header) && write_all(to, payload, size);
}

static void flush(int which)
{
    if (queue_flush(which + 1, &outputs[which]) < 0)
        queue_reset(&outputs[which]); /* its reader is gone */
}

/* Handles one complete frame, if there is one and its data can be buffered. */
static bool handle_frame(void)
{
    if (incoming.filled < FRAME_HEADER_SIZE)
        return false;
    const uint8_t *frame = queue_head(&incoming), *payload = frame + FRAME_HEADER_SIZE;
    uint32_t size = get32(frame);
    uint8_t type = frame[4];
    if (size > CHUNK)
        die(SILO_DIED);
    if (incoming.filled < FRAME_HEADER_SIZE + size)
        return false;
    if (type == FRAME_STDOUT || type == FRAME_STDERR) {
        int which = type == FRAME_STDERR;
        if (outputs[which].filled)
            return false;
        if (!queue_append(&outputs[which], payload, size))
            die(SILO_DIED);
        log_write(which, payload, size);
        flush(which);
    } else if (type == FRAME_STDIN_CREDIT && size == 4) {
        uint32_t more = get32(payload);
        window = more > STDIN_WINDOW - window ? STDIN_WINDOW : window + more;
    } else if (type == FRAME_EXIT && size == 4) {
        exited = true;
        exit_code = get32(payload);
    } else {
        die(SILO_DIED);
    }
    queue_consume(&incoming, FRAME_HEADER_SIZE + size);
    return true;
}

static void forward_input(void)
{
    static uint8_t data[CHUNK];
    ssize_t now = read(0, data, window < CHUNK ? window : CHUNK);
    if (now < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (now > 0) {
        window -= (uint32_t)now;
        send_frame(agent, FRAME_STDIN, data, (uint32_t)now);
        return;
    }
    input_open = false;
    send_frame(agent, FRAME_STDIN_CLOSE, "", 0);
}

static void send_size(void)
{
    struct winsize size;
    if (ioctl(0, TIOCGWINSZ, &size) || !size.ws_col || !size.ws_row)
        return;
    uint8_t payload[4];
    put32(payload, (uint32_t)size.ws_col | (uint32_t)size.ws_row << 16);
    send_frame(agent, FRAME_RESIZE, payload, sizeof payload);
}

static void forward_signal(int signals)
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
    send_frame(agent, FRAME_SIGNAL, &kind, 1);
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
        send_frame(agent, FRAME_STDIN_CLOSE, "", 0);
    for (int i = 0; i < 2; i++)
        fcntl(i + 1, F_SETFL, fcntl(i + 1, F_GETFL) | O_NONBLOCK);
    if (with_terminal)
        send_size();
    for (;;) {
        while (handle_frame())
            ;
        if (exited && !outputs[0].filled && !outputs[1].filled) {
            write_exit_code();
            die((int)(exit_code & 255));
        }
        struct pollfd ready[] = {
            {.fd = signals, .events = POLLIN},
            {.fd = incoming.filled < MAX_INCOMING && !exited ? agent : -1, .events = POLLIN},
            {.fd = input_open && window ? 0 : -1, .events = POLLIN},
            {.fd = outputs[0].filled ? 1 : -1, .events = POLLOUT},
            {.fd = outputs[1].filled ? 2 : -1, .events = POLLOUT},
        };
        if (poll(ready, 5, -1) < 0)
            continue;
        if (ready[0].revents)
            forward_signal(signals);
        if (ready[1].revents && !queue_fill(agent, &incoming, MAX_INCOMING - incoming.filled))
            die(SILO_DIED);
        if (ready[2].revents)
            forward_input();
        for (int i = 0; i < 2; i++)
            if (ready[3 + i].revents)
                flush(i);
    }
}
