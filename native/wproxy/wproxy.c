/* The OCI runtime that conmon calls, and then the container's process.
 *
 *     wproxy create --bundle BUNDLE --pid-file FILE [--console-socket SOCKET] ID
 *     wproxy listen SOCKET COMMAND...
 *     wproxy enter FILES COMMAND...
 *     wproxy relay BUNDLE
 *
 * The program to start is in BUNDLE/start (the payload of START), registry changes to apply before
 * it in BUNDLE/registry (frames), the silo's socket is BUNDLE/run/agent.sock. `create` returns when
 * Windows has started the program, or prints Windows' message and fails. Its child relays the
 * program's streams to conmon, converts signals to Windows' events, and writes the 32-bit exit code
 * to BUNDLE/exit32 before it exits with the low 8 bits; 137 without exit32 means that the silo died.
 * When it is killed, so is the program. It also writes the log at the path in BUNDLE/log_path,
 * reopened on SIGUSR1, because conmon's log would keep \r.
 *
 * `listen` creates a silo's socket and executes the command with it as descriptor 3, which winit
 * inherits. Created on the host, it has no path in the container. `relay`: see pipe_relay.h.
 *
 * `enter` joins the cgroups whose cgroup.procs are FILES, separated by spaces, and executes the
 * command.
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

#include "agent_protocol.h"
#include "cri_log.h"
#include "frame_io.h"
#include "io.h"
#include "pipe_relay.h"
#include "stdio_relay.h"

#define SILO_SOCKET 3

static struct {
    const char *bundle, *pid_file, *console, *id;
} options;

static int agent = -1, report = -1, bundle = -1;

/* Reports to the caller of `create` why the program was not started. */
static _Noreturn void fail(const char *what, const char *why)
{
    char line[1024];
    snprintf(line, sizeof line, "%s%s%s\n", what, *what ? ": " : "", why);
    if (write(report, line, strlen(line)) < 0)
        _exit(2);
    _exit(1);
}

/* ---- starting ---- */

/* Opens a terminal and passes the master to conmon; this process gets its SIGWINCH. */
static void open_terminal(void)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0 || grantpt(master) || unlockpt(master))
        fail("The terminal cannot be opened", strerror(errno));
    int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    struct termios raw;
    if (slave < 0 || tcgetattr(slave, &raw))
        fail("The terminal cannot be opened", strerror(errno));
    cfmakeraw(&raw);
    tcsetattr(slave, TCSANOW, &raw);
    int console = connect_unix(-1, options.console, 0);
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
        fail("The terminal cannot be handed to conmon", strerror(errno));
    close(console);
    close(master);
    ioctl(slave, TIOCSCTTY, 0);
    dup2(slave, 0);
    dup2(slave, 1);
    dup2(slave, 2);
    close(slave);
}

/* Waits while a client that attaches before the start holds the lock. It is released if it dies. */
static void wait_for_attached(void)
{
    int hold = openat(bundle, "hold", O_RDONLY | O_CLOEXEC);
    if (hold < 0)
        return;
    while (flock(hold, LOCK_EX) && errno == EINTR)
        ;
    close(hold);
}

/* Sends a frame, and waits for the expected answer. */
static void request(uint8_t type, const uint8_t *payload, uint32_t size, uint8_t expected)
{
    uint8_t header[FRAME_HEADER_SIZE], answer[1024];
    if (!send_frame(agent, type, payload, size))
        fail("The container's silo does not answer", strerror(errno));
    if (!read_all(agent, header, sizeof header))
        fail("", "The container's silo has ended.");
    uint32_t length = get32(header);
    if (length >= sizeof answer || !read_all(agent, answer, length)
        || (header[4] != expected && (header[4] != FRAME_FAILED || length < 4)))
        fail("", "The container's silo sent an invalid answer.");
    answer[length] = 0;
    if (header[4] == FRAME_FAILED)
        fail("", (char *)answer + 4);
}

static uint8_t content[MAX_FRAME];

/* Applies the registry changes of the image and the pod, which are complete frames. */
static void change_registry(void)
{
    int file = openat(bundle, "registry", O_RDONLY | O_CLOEXEC);
    uint8_t header[FRAME_HEADER_SIZE];
    while (file >= 0 && read_all(file, header, sizeof header)) {
        uint32_t size = get32(header);
        if (size > sizeof content || !read_all(file, content, size))
            fail("The registry changes cannot be read", "the file is truncated");
        request(header[4], content, size, FRAME_DONE);
    }
    close(file);
}

static void start_program(void)
{
    int file = openat(bundle, "start", O_RDONLY | O_CLOEXEC);
    struct stat about;
    if (file < 0 || fstat(file, &about) || about.st_size > (off_t)sizeof content)
        fail("The program to start cannot be read", strerror(errno));
    if (!read_all(file, content, (size_t)about.st_size))
        fail("The program to start cannot be read", "the file is truncated");
    close(file);
    request(FRAME_START, content, (uint32_t)about.st_size, FRAME_STARTED);
}

/* ---- called by conmon ---- */

static bool read_arguments(int count, char **arguments)
{
    if (count < 2 || strcmp(arguments[1], "create"))
        return false;
    for (int i = 2; i < count; i++) {
        const char *next = i + 1 < count ? arguments[i + 1] : NULL;
        if (!strcmp(arguments[i], "--bundle") && next)
            options.bundle = arguments[++i];
        else if (!strcmp(arguments[i], "--pid-file") && next)
            options.pid_file = arguments[++i];
        else if (!strcmp(arguments[i], "--console-socket") && next)
            options.console = arguments[++i];
        else if (arguments[i][0] != '-')
            options.id = arguments[i];
    }
    return options.bundle && options.pid_file && options.id;
}

static int write_pid(pid_t pid)
{
    char text[16];
    int size = snprintf(text, sizeof text, "%d", (int)pid);
    int file = open(options.pid_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file >= 0 && write_all(file, text, (size_t)size))
        return 0;
    fprintf(stderr, "%s cannot be written: %s\n", options.pid_file, strerror(errno));
    kill(pid, SIGKILL);
    return 1;
}

static int exec_command(char **command)
{
    execvp(command[0], command);
    fprintf(stderr, "%s: %s\n", command[0], strerror(errno));
    return 127;
}

static int listen_and_exec(char *path, char **command)
{
    char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (slash)
        *slash = 0;
    int folder = open(slash ? (*path ? path : "/") : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (folder >= 0)
        unlinkat(folder, name, 0);
    umask(0177);
    if (folder < 0 || fd < 0 || !set_unix_address(&address, folder, name)
        || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 128)) {
        fprintf(stderr, "The silo's socket cannot be created: %s\n", strerror(errno));
        return 1;
    }
    umask(022);
    close(folder);
    if (fd != SILO_SOCKET && (dup2(fd, SILO_SOCKET) < 0 || close(fd)))
        return 1;
    return exec_command(command);
}

static int enter_and_exec(char *files, char **command)
{
    char *rest = NULL;
    for (char *file = strtok_r(files, " ", &rest); file; file = strtok_r(NULL, " ", &rest)) {
        int fd = open(file, O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, "0", 1) != 1) {
            fprintf(stderr, "%s: %s\n", file, strerror(errno));
            return 1;
        }
        close(fd);
    }
    return exec_command(command);
}

int main(int count, char **arguments)
{
    if (count > 3 && !strcmp(arguments[1], "enter"))
        return enter_and_exec(arguments[2], arguments + 3);
    if (count > 3 && !strcmp(arguments[1], "listen"))
        return listen_and_exec(arguments[2], arguments + 3);
    if (count == 3 && !strcmp(arguments[1], "relay"))
        return relay_pipes(arguments[2]);
    if (!read_arguments(count, arguments)) {
        fputs("usage: wproxy create --bundle BUNDLE --pid-file FILE [--console-socket SOCKET] ID\n",
              stderr);
        return 2;
    }
    bundle = open(options.bundle, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int report_pipe[2];
    if (bundle < 0 || pipe2(report_pipe, O_CLOEXEC)) {
        fprintf(stderr, "%s: %s\n", options.bundle, strerror(errno));
        return 1;
    }
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_NAME, "wproxy");
        report = report_pipe[1];
        close(report_pipe[0]);
        setsid();
        int signals = catch_signals();
        if (!log_open(bundle))
            fail("The log cannot be opened", strerror(errno));
        if (options.console)
            open_terminal();
        wait_for_attached();
        agent = connect_unix(bundle, "run/agent.sock", 0);
        if (agent < 0)
            fail("The container's silo does not answer", strerror(errno));
        change_registry();
        start_program();
        close(report);
        relay_stdio(bundle, agent, signals, options.console != NULL);
    }
    close(report_pipe[1]);
    char message[1024];
    ssize_t size = child < 0 ? -1 : read(report_pipe[0], message, sizeof message);
    if (size == 0)
        return write_pid(child);
    if (size > 0)
        write_all(2, message, (size_t)size);
    return 1;
}
