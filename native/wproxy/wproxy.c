/* Stands for the OCI runtime that conmon calls, and then for the container's process.
 *
 *     wproxy create --bundle BUNDLE --pid-file FILE [--console-socket SOCKET] ID
 *     wproxy listen SOCKET COMMAND...
 *     wproxy relay BUNDLE
 *
 * The program to start is in BUNDLE/start (the payload of START), what the registry has to be told
 * before it in BUNDLE/registry (frames), the shell's socket is BUNDLE/run/agent.sock. `create`
 * returns when Windows has started the program, or says Windows' sentence and fails. What stays
 * carries the program's streams to conmon's, turns signals into Windows' events, and writes the
 * 32-bit exit code to BUNDLE/exit32 before it exits with what of it fits; 137 and no exit32 means
 * that the shell died. When it is killed, so is the program. The log at the path in BUNDLE/log_path
 * is its own too, opened anew on SIGUSR1; conmon's would keep \r.
 *
 * `listen` makes a shell's socket and becomes the command, which has it as descriptor 3 to hand on
 * to winit. Made outside, it has no name in the container. `relay`: see relay.h.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "../protocol.h"
#include "carry.h"
#include "io.h"
#include "log.h"
#include "relay.h"

#define SHELL_SOCKET 3

static struct {
    const char *bundle, *pid_file, *console, *id;
} given;

static int agent = -1, report = -1, bundle = -1;

/* Says why nothing was started, to whoever called `create`. */
static _Noreturn void refuse(const char *what, const char *why)
{
    char line[1024];
    snprintf(line, sizeof line, "%s%s%s\n", what, *what ? ": " : "", why);
    if (write(report, line, strlen(line)) < 0)
        _exit(2);
    _exit(1);
}

/* ---- starting ---- */

/* A terminal whose other side goes to conmon; its size changes are ours to hear. */
static void open_terminal(void)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0 || grantpt(master) || unlockpt(master))
        refuse("The terminal cannot be opened", strerror(errno));
    int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    struct termios raw;
    if (slave < 0 || tcgetattr(slave, &raw))
        refuse("The terminal cannot be opened", strerror(errno));
    cfmakeraw(&raw);
    tcsetattr(slave, TCSANOW, &raw);
    int console = connect_to(-1, given.console, 0);
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    char name[] = "terminal";
    struct iovec data = {name, sizeof name};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    control.head.cmsg_len = CMSG_LEN(sizeof(int));
    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    memcpy(CMSG_DATA(&control.head), &master, sizeof master);
    if (console < 0 || sendmsg(console, &message, 0) < 0)
        refuse("The terminal cannot be handed to conmon", strerror(errno));
    close(console);
    close(master);
    ioctl(slave, TIOCSCTTY, 0);
    dup2(slave, 0);
    dup2(slave, 1);
    dup2(slave, 2);
    close(slave);
}

/* Until nobody holds the program back who wants all of its output. A holder that dies lets go. */
static void wait_for_attached(void)
{
    int hold = openat(bundle, "hold", O_RDONLY | O_CLOEXEC);
    if (hold < 0)
        return;
    while (flock(hold, LOCK_EX) && errno == EINTR)
        ;
    close(hold);
}

/* Sends a frame, and waits for the answer that it should have. */
static void ask(uint8_t type, const uint8_t *payload, uint32_t size, uint8_t wanted)
{
    uint8_t header[FRAME_HEADER], answer[1024];
    if (!tell(agent, type, payload, size))
        refuse("The container's shell does not answer", strerror(errno));
    if (!read_all(agent, header, sizeof header))
        refuse("", "The container's shell has ended.");
    uint32_t length = get32(header);
    if (length >= sizeof answer || !read_all(agent, answer, length)
        || (header[4] != wanted && (header[4] != FAILED || length < 4)))
        refuse("", "The container's shell answers what makes no sense.");
    answer[length] = 0;
    if (header[4] == FAILED)
        refuse("", (char *)answer + 4);
}

static uint8_t content[MAX_FRAME];

/* The image's registry, and the pod's names in it: whole frames. */
static void change_registry(void)
{
    int file = openat(bundle, "registry", O_RDONLY | O_CLOEXEC);
    uint8_t header[FRAME_HEADER];
    while (file >= 0 && read_all(file, header, sizeof header)) {
        uint32_t size = get32(header);
        if (size > sizeof content || !read_all(file, content, size))
            refuse("The changes to the registry cannot be read", "they are cut short");
        ask(header[4], content, size, DONE);
    }
    close(file);
}

static void start_program(void)
{
    int file = openat(bundle, "start", O_RDONLY | O_CLOEXEC);
    struct stat about;
    if (file < 0 || fstat(file, &about) || about.st_size > (off_t)sizeof content)
        refuse("The program to start cannot be read", strerror(errno));
    if (!read_all(file, content, (size_t)about.st_size))
        refuse("The program to start cannot be read", "it is cut short");
    close(file);
    ask(START, content, (uint32_t)about.st_size, STARTED);
}

/* ---- being called by conmon ---- */

static bool read_arguments(int count, char **arguments)
{
    if (count < 2 || strcmp(arguments[1], "create"))
        return false;
    for (int i = 2; i < count; i++) {
        const char *next = i + 1 < count ? arguments[i + 1] : NULL;
        if (!strcmp(arguments[i], "--bundle") && next)
            given.bundle = arguments[++i];
        else if (!strcmp(arguments[i], "--pid-file") && next)
            given.pid_file = arguments[++i];
        else if (!strcmp(arguments[i], "--console-socket") && next)
            given.console = arguments[++i];
        else if (arguments[i][0] != '-')
            given.id = arguments[i];
    }
    return given.bundle && given.pid_file && given.id;
}

static int write_pid(pid_t pid)
{
    char text[16];
    int size = snprintf(text, sizeof text, "%d", (int)pid);
    int file = open(given.pid_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file >= 0 && write_all(file, text, (size_t)size))
        return 0;
    fprintf(stderr, "%s cannot be written: %s\n", given.pid_file, strerror(errno));
    kill(pid, SIGKILL);
    return 1;
}

static int listen_and_become(char *path, char **command)
{
    char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (slash)
        *slash = 0;
    int folder = open(slash ? (*path ? path : "/") : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct sockaddr_un address = address_of(folder, name);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (folder >= 0)
        unlinkat(folder, name, 0);
    umask(0177);
    if (folder < 0 || fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address)
        || listen(fd, 128)) {
        fprintf(stderr, "The shell's socket cannot be made: %s\n", strerror(errno));
        return 1;
    }
    umask(022);
    close(folder);
    if (fd != SHELL_SOCKET && (dup2(fd, SHELL_SOCKET) < 0 || close(fd)))
        return 1;
    execvp(command[0], command);
    fprintf(stderr, "%s: %s\n", command[0], strerror(errno));
    return 127;
}

int main(int count, char **arguments)
{
    if (count > 3 && !strcmp(arguments[1], "listen"))
        return listen_and_become(arguments[2], arguments + 3);
    if (count == 3 && !strcmp(arguments[1], "relay"))
        return relay(arguments[2]);
    if (!read_arguments(count, arguments)) {
        fputs("usage: wproxy create --bundle BUNDLE --pid-file FILE [--console-socket SOCKET] ID\n",
              stderr);
        return 2;
    }
    bundle = open(given.bundle, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int news[2];
    if (bundle < 0 || pipe2(news, O_CLOEXEC)) {
        fprintf(stderr, "%s: %s\n", given.bundle, strerror(errno));
        return 1;
    }
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_NAME, "wproxy");
        report = news[1];
        close(news[0]);
        setsid();
        int signals = catch_signals();
        if (!log_open(bundle))
            refuse("The log cannot be opened", strerror(errno));
        if (given.console)
            open_terminal();
        wait_for_attached();
        agent = connect_to(bundle, "run/agent.sock", 0);
        if (agent < 0)
            refuse("The container's shell does not answer", strerror(errno));
        change_registry();
        start_program();
        close(report);
        carry(bundle, agent, signals, given.console != NULL);
    }
    close(news[1]);
    char sentence[1024];
    ssize_t size = child < 0 ? -1 : read(news[0], sentence, sizeof sentence);
    if (size == 0)
        return write_pid(child);
    if (size > 0)
        write_all(2, sentence, (size_t)size);
    return 1;
}
