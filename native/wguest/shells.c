/* Shells in a microVM: one for each container of the pod, in namespaces of its own.
 *
 *     start NAME PORT ROOT GROUP USER HOSTNAME BITS VARIABLE... -- MASKED... -- READONLY... -- COMMAND...
 *
 * The root was mounted together before; the shell makes it its own, without any capability, and with
 * a filter of system calls. What it has of the guest's kernel in /proc is masked and read-only where
 * the host says. BITS is 32 where 32-bit programs may run too, else 64.
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

#include "../protocol.h"

#define MOST_SHELLS 64
#define CLONE_TREE (1u | O_CLOEXEC | AT_RECURSIVE) /* OPEN_TREE_CLONE */
#define FROM_TREE 4u                              /* MOVE_MOUNT_F_EMPTY_PATH */
#define GUARDED (MS_NOSUID | MS_NODEV | MS_NOEXEC)
#define SPACES (CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS)

static struct shell {
    char name[80], port[80];
    pid_t pid;
} shells[MOST_SHELLS];

static struct shell *find(const char *name)
{
    for (struct shell *shell = shells; shell < shells + MOST_SHELLS; shell++)
        if (name ? shell->pid && !strcmp(shell->name, name) : !shell->pid)
            return shell;
    return NULL;
}

static void check(bool done)
{
    if (!done)
        _exit(1);
}

static void give_up_rights(uid_t user)
{
    for (int right = 0; right < 64; right++)
        prctl(PR_CAPBSET_DROP, right, 0, 0, 0);
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    check(!setgid(user) && !setuid(user) && !syscall(SYS_capset, &header, none));
    check(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
}

/* All else that the guest has mounted is none of the shell's: who kept a copy of it, in places that
 * nothing leads to, would keep it from going when another container goes. */
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

/* Who waits for `done` finds the shell in the root that is its own. */
static void become(char **words, char **lists[], int port, int done)
{
    enter_root(words[2]);
    check(!mount("proc", "/proc", "proc", GUARDED, ""));
    for (char **path = lists[1]; *path; path++)
        mask(*path);
    for (char **path = lists[2]; *path; path++)
        make_read_only(*path);
    check(!sethostname(words[5], strlen(words[5])));
    give_up_rights((uid_t)strtoul(words[4], NULL, 10));
    check(!filter_calls(!strcmp(words[6], "32")));
    prctl(PR_SET_DUMPABLE, 0);
    environ = lists[0];
    check(write(done, "!", 1) == 1);
    close(done);
    carry(port, lists[3]);
}

/* Lists of words, one after the other, with "--" between them: each is ended there. */
static bool divide(char **words, char **lists[], int many)
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

static int put_into_group(const char *group, pid_t pid)
{
    char path[512];
    snprintf(path, sizeof path, "%s/cgroup.procs", group);
    int file = open(path, O_WRONLY | O_CLOEXEC);
    int error = file < 0 || dprintf(file, "%d", (int)pid) < 0 ? errno : 0;
    close(file);
    return error;
}

int start_shell(char **words)
{
    struct shell *shell = find(NULL);
    char **lists[4];
    if (!divide(words + 7, lists, 4) || !shell || strlen(words[0]) >= sizeof shell->name
        || strlen(words[1]) >= sizeof shell->port || find(words[0]))
        return EINVAL;
    int port = open_port(words[1]), go[2], done[2];
    if (port < 0 || pipe2(go, O_CLOEXEC) || pipe2(done, O_CLOEXEC))
        return ENODEV;
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD | SPACES, 0, 0, 0, 0);
    if (!pid) {
        char word;
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        close(go[1]);
        if (read(go[0], &word, 1) == 1)
            become(words, lists, port, done[1]);
        _exit(1);
    }
    close(done[1]);
    int error = pid < 0 ? errno : put_into_group(words[3], pid);
    if (!error) {
        strcpy(shell->name, words[0]);
        strcpy(shell->port, words[1]);
        shell->pid = pid;
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

int kill_shell(const char *name)
{
    struct shell *shell = find(name);
    return shell && kill(shell->pid, SIGKILL) ? errno : 0;
}

static int open_space(const char *name, const char *kind)
{
    struct shell *shell = find(name);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", shell ? (int)shell->pid : -1, kind);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* In a process of its own, because whoever enters a namespace stays there. */
static int act_inside(int space, int (*act)(void *), void *with)
{
    if (space < 0)
        return ESRCH;
    pid_t child = fork();
    if (!child)
        _exit(setns(space, 0) || act(with) ? errno : 0);
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

int mount_in_shell(const char *name, const char *source, const char *target)
{
    struct move it = {.target = target};
    it.tree = (int)syscall(SYS_open_tree, AT_FDCWD, source, CLONE_TREE);
    if (it.tree < 0)
        return errno;
    int space = open_space(name, "mnt");
    int error = act_inside(space, move, &it);
    close(space);
    close(it.tree);
    return error;
}

static int rename_host(void *with)
{
    return sethostname(with, strlen(with));
}

int rename_in_shell(const char *name, const char *hostname)
{
    int space = open_space(name, "uts");
    int error = act_inside(space, rename_host, (void *)hostname);
    close(space);
    return error;
}

/* A shell whose first process was killed could not say that it has ended, and may have been in the
 * middle of a frame. What is sent for it is longer than any, and the beginning of none, so winit on
 * the host ends wherever it was; a process of its own does it, because that may have to wait. */
static void end_link(const char *name)
{
    static uint8_t nonsense[CHUNK];
    if (fork())
        return;
    memset(nonsense, 0xff, sizeof nonsense);
    int port = open_port(name);
    for (size_t sent = 0; port >= 0 && sent < MAX_FRAME + 2 * CHUNK; sent += CHUNK)
        if (!write_whole(port, nonsense, CHUNK))
            break;
    _exit(0);
}

void reap(void)
{
    int status;
    for (pid_t ended; (ended = waitpid(-1, &status, WNOHANG)) > 0;)
        for (struct shell *shell = shells; shell < shells + MOST_SHELLS; shell++)
            if (shell->pid == ended) {
                shell->pid = 0;
                if (status)
                    end_link(shell->port);
            }
}
