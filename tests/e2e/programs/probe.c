/* Linux program in a Windows container, where Wine can start it: tries kernel operations. Each line
 * of its output is the name of an operation and its errno, 0 if it succeeded.
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static FILE *out;

static void tell(const char *name, long result)
{
    fprintf(out, "%s %d\n", name, result < 0 ? errno : 0);
}

static void try_open(const char *path, int flags)
{
    char name[256];
    snprintf(name, sizeof name, "%s:%s", flags & O_ACCMODE ? "write" : "read", path);
    int file = open(path, flags | O_CLOEXEC, 0600);
    tell(name, file);
    if (file >= 0)
        close(file);
}

static void list(const char *path, const char *as)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    while (folder && (entry = readdir(folder)))
        if (entry->d_name[0] != '.')
            fprintf(out, "%s:%s 0\n", as, entry->d_name);
    if (folder)
        closedir(folder);
    else
        tell(as, -1);
}

static void tell_of_itself(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}};
    syscall(SYS_capget, &head, data);
    unsigned any = data[0].effective | data[0].permitted | data[1].effective | data[1].permitted;
    fprintf(out, "capabilities %u\n", any);
    fprintf(out, "user %d\n", (int)getuid());
    fprintf(out, "no-new-privileges %d\n", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    fprintf(out, "seccomp %d\n", prctl(PR_GET_SECCOMP, 0, 0, 0, 0));
}

static void try_calls(void)
{
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)0x400000, 1};
    tell("mount", mount("none", "/tmp", "tmpfs", 0, NULL));
    tell("umount", umount2("/proc", MNT_DETACH));
    tell("unshare", unshare(CLONE_NEWUSER));
    tell("clone", syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
    tell("clone3", syscall(SYS_clone3, NULL, 0));
    tell("setns", setns(0, 0));
    tell("chroot", chroot("/tmp"));
    tell("sethostname", sethostname("other", 5));
    tell("bpf", syscall(SYS_bpf, 0, NULL, 0));
    tell("keyctl", syscall(SYS_keyctl, 0, 0, 0, 0, 0));
    tell("io_uring", syscall(SYS_io_uring_setup, 1, NULL));
    tell("userfaultfd", syscall(SYS_userfaultfd, 0));
    tell("perf", syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0));
    tell("module", syscall(SYS_init_module, "", 0, ""));
    tell("reboot", syscall(SYS_reboot, 0, 0, 0, NULL));
    tell("mknod", mknod("/tmp/disk", S_IFBLK | 0600, makedev(254, 0)));
    tell("ptrace-init", ptrace(PTRACE_ATTACH, 1, NULL, NULL));
    tell("memory-of-init", process_vm_readv(1, &here, 1, &there, 1, 0));
    tell("descriptor-of-init", syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, 1, 0), 3, 0));
    tell("root", setuid(0));
}

int main(int count, char **words)
{
    out = fopen("/prefix/drive_c/data/probe.txt", "w");
    if (!out)
        return 1;
    tell_of_itself();
    try_calls();
    for (int i = 1; i < count; i++)
        try_open(words[i] + 1, words[i][0] == 'w' ? O_WRONLY | O_CREAT : O_RDONLY);
    list("/proc", "process");
    list("/", "root");
    list("/dev", "device");
    FILE *sockets = fopen("/proc/net/unix", "r");
    char line[512];
    while (sockets && fgets(line, sizeof line, sockets))
        if (strchr(line, '/'))
            fprintf(out, "socket:%s", strchr(line, '/'));
    fputs("done 0\n", out);
    fclose(out);
    return 0;
}
