/* Silos in a microVM: one for each container of the pod, in its own namespaces.
 *
 * The host has mounted the root before START_SILO; the silo makes it its root directory, drops all
 * capabilities, and installs a seccomp filter. Paths of /proc are masked or read-only as the host
 * requests.
 */

#define _GNU_SOURCE
#include "wguest.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io.h"

#define MAX_SILOS 64
#define CLONE_TREE (1u | O_CLOEXEC | AT_RECURSIVE) /* OPEN_TREE_CLONE */
#define FROM_TREE 4u                              /* MOVE_MOUNT_F_EMPTY_PATH */
#define GUARDED (MS_NOSUID | MS_NODEV | MS_NOEXEC)
#define NAMESPACES (CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS)

static struct silo {
    char name[80], port[80];
    pid_t pid;
} silos[MAX_SILOS];

static struct silo *find(const char *name)
{
    for (struct silo *silo = silos; silo < silos + MAX_SILOS; silo++)
        if (name ? silo->pid && !strcmp(silo->name, name) : !silo->pid)
            return silo;
    return NULL;
}

static void check(bool done)
{
    if (!done)
        _exit(1);
}

static void drop_privileges(uid_t user)
{
    for (int right = 0; right < 64; right++)
        prctl(PR_CAPBSET_DROP, right, 0, 0, 0);
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    check(!setgid(user) && !setuid(user) && !syscall(SYS_capset, &header, none));
    check(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
}

/* Enters the root and unmounts everything else of the guest: a copy in this mount namespace would
 * keep other containers' mounts busy when they are removed. */
static void enter_root(const char *path)
{
    static const char *const others[] = {"/base", "/drives", "/volumes", "/run", "/sys", "/dev", "/proc"};
    check(!mount("", "/", "", MS_REC | MS_PRIVATE, ""));
    int root = (int)syscall(SYS_open_tree, AT_FDCWD, path, CLONE_TREE);
    check(root >= 0);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        check(!umount2(others[i], MNT_DETACH) || errno == EINVAL); /* a template has no drives yet */
    check(!syscall(SYS_move_mount, root, "", AT_FDCWD, "/", FROM_TREE));
    check(!fchdir(root) && !chroot(".") && !chdir("/"));
    close(root);
}

static void mask(const char *path)
{
    if (!mount("/dev/null", path, "", MS_BIND, "") || errno == ENOENT)
        return;
    check(errno == ENOTDIR && !mount("tmpfs", path, "tmpfs", MS_RDONLY | GUARDED, "size=4k"));
}

static void make_read_only(const char *path)
{
    if (mount(path, path, "", MS_BIND | MS_REC, "") && errno == ENOENT)
        return;
    check(!mount("", path, "", MS_BIND | MS_REMOUNT | MS_RDONLY | GUARDED, ""));
}

/* Becomes the silo. Writes to `done` once it is in its own root. */
static void run_silo(char **words, char **lists[], int port, int done)
{
    enter_root(words[2]);
    check(!mount("proc", "/proc", "proc", GUARDED, ""));
    for (char **path = lists[1]; *path; path++)
        mask(*path);
    for (char **path = lists[2]; *path; path++)
        make_read_only(*path);
    check(!sethostname(words[5], strlen(words[5])));
    drop_privileges((uid_t)strtoul(words[4], NULL, 10));
    check(!install_seccomp_filter(!strcmp(words[6], "32")));
    prctl(PR_SET_DUMPABLE, 0);
    environ = lists[0];
    check(write(done, "!", 1) == 1);
    close(done);
    relay_port(port, lists[3]);
}

/* Splits lists of words that are separated by "--". */
static bool split_lists(char **words, char **lists[], int many)
{
    lists[0] = words;
    for (int i = 1; i < many; i++) {
        while (*words && strcmp(*words, "--"))
            words++;
        if (!*words)
            return false;
        *words++ = NULL;
        lists[i] = words;
    }
    return *words;
}

static int join_cgroup(const char *group, pid_t pid)
{
    char path[512];
    snprintf(path, sizeof path, "%s/cgroup.procs", group);
    int file = open(path, O_WRONLY | O_CLOEXEC);
    int error = file < 0 || dprintf(file, "%d", (int)pid) < 0 ? errno : 0;
    close(file);
    return error;
}

int start_silo(char **words)
{
    struct silo *silo = find(NULL);
    char **lists[4];
    if (!split_lists(words + 7, lists, 4) || !silo || strlen(words[0]) >= sizeof silo->name
        || strlen(words[1]) >= sizeof silo->port || find(words[0]))
        return EINVAL;
    int port = open_port(words[1]), go[2], done[2];
    if (port < 0 || pipe2(go, O_CLOEXEC) || pipe2(done, O_CLOEXEC))
        return ENODEV;
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD | NAMESPACES, 0, 0, 0, 0);
    if (!pid) {
        char word;
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        close(go[1]);
        if (read(go[0], &word, 1) == 1)
            run_silo(words, lists, port, done[1]);
        _exit(1);
    }
    close(done[1]);
    int error = pid < 0 ? errno : join_cgroup(words[3], pid);
    if (!error) {
        strcpy(silo->name, words[0]);
        strcpy(silo->port, words[1]);
        silo->pid = pid;
        error = write(go[1], "!", 1) == 1 ? 0 : errno;
    }
    close(go[0]);
    close(go[1]);
    char word;
    if (!error && read(done[0], &word, 1) != 1)
        error = EIO;
    close(done[0]);
    close(port);
    return error;
}

int kill_silo(const char *name)
{
    struct silo *silo = find(name);
    return silo && kill(silo->pid, SIGKILL) ? errno : 0;
}

static int open_namespace(const char *name, const char *kind)
{
    struct silo *silo = find(name);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", silo ? (int)silo->pid : -1, kind);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* Runs a function in a namespace, in a child process, because setns cannot be undone. */
static int run_in_namespace(int namespace, int (*act)(void *), void *with)
{
    if (namespace < 0)
        return ESRCH;
    pid_t child = fork();
    if (!child)
        _exit(setns(namespace, 0) || act(with) ? errno : 0);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return errno;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

struct move {
    int tree;
    const char *target;
};

static int move(void *with)
{
    struct move *it = with;
    return (int)syscall(SYS_move_mount, it->tree, "", AT_FDCWD, it->target, FROM_TREE);
}

int mount_in_silo(const char *name, const char *source, const char *target)
{
    struct move it = {.target = target};
    it.tree = (int)syscall(SYS_open_tree, AT_FDCWD, source, CLONE_TREE);
    if (it.tree < 0)
        return errno;
    int namespace = open_namespace(name, "mnt");
    int error = run_in_namespace(namespace, move, &it);
    close(namespace);
    close(it.tree);
    return error;
}

static int set_hostname(void *with)
{
    return sethostname(with, strlen(with));
}

int set_silo_hostname(const char *name, const char *hostname)
{
    int namespace = open_namespace(name, "uts");
    int error = run_in_namespace(namespace, set_hostname, (void *)hostname);
    close(namespace);
    return error;
}

/* A silo whose first process was killed could not send SILO_EXITED, and may have stopped within a
 * frame. Garbage that is longer than any frame, and not a valid header, makes winit on the host exit
 * in any state. A child process sends it, because that may block. */
static void end_link(const char *name)
{
    static uint8_t garbage[CHUNK];
    if (fork())
        return;
    memset(garbage, 0xff, sizeof garbage);
    int port = open_port(name);
    for (size_t sent = 0; port >= 0 && sent < MAX_FRAME + 2 * CHUNK; sent += CHUNK)
        if (!write_all(port, garbage, CHUNK))
            break;
    _exit(0);
}

void reap(void)
{
    int status;
    for (pid_t ended; (ended = waitpid(-1, &status, WNOHANG)) > 0;)
        for (struct silo *silo = silos; silo < silos + MAX_SILOS; silo++)
            if (silo->pid == ended) {
                silo->pid = 0;
                if (status)
                    end_link(silo->port);
            }
}
