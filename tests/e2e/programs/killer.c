/* Kills a process of a Linux guest; runs as root.
 *
 *     killer WHEN [NAME GROUP]     once the file WHEN exists
 *
 * Kills the process of the cgroup whose command ends with NAME. Without a group it is process 1,
 * which ignores signals: its instruction pointer is set to an unmapped address.
 */

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FIRST = 1, PAUSE_US = 20000 };

static int is_called(int pid, const char *name)
{
    char path[64], command[4096] = "";
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    size_t read = fread(command, 1, sizeof command - 1, file);
    fclose(file);
    size_t length = strlen(command), ends = strlen(name);
    return read && length >= ends && !strcmp(command + length - ends, name);
}

static int find(const char *group, const char *name)
{
    char path[512];
    int pid, found = 0;
    snprintf(path, sizeof path, "%s/cgroup.procs", group);
    FILE *file = fopen(path, "r");
    while (file && !found && fscanf(file, "%d", &pid) == 1)
        if (is_called(pid, name))
            found = pid;
    if (file)
        fclose(file);
    return found;
}

static int mislead(int pid)
{
    long call = offsetof(struct user_regs_struct, orig_rax);
    if (ptrace(PTRACE_ATTACH, pid, NULL, NULL) || waitpid(pid, NULL, 0) != pid)
        return 1;
    if (ptrace(PTRACE_POKEUSER, pid, (void *)call, (void *)-1L)
        || ptrace(PTRACE_POKEUSER, pid, (void *)offsetof(struct user_regs_struct, rip), NULL))
        return 1;
    return ptrace(PTRACE_DETACH, pid, NULL, NULL) != 0;
}

int main(int count, char **words)
{
    if (count < 2)
        return 2;
    while (access(words[1], F_OK))
        usleep(PAUSE_US);
    if (count < 4)
        return mislead(FIRST);
    int pid = find(words[3], words[2]);
    return !pid || kill(pid, SIGKILL);
}
