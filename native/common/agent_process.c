/* See agent_process.h. */

#define _GNU_SOURCE
#include "agent_process.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

pid_t start_agent(char **command, int *to, int *from)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
        _exit(1);
    pid_t agent = fork();
    if (agent < 0)
        _exit(1);
    if (agent == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_DFL);
        dup2(in[0], 0);
        dup2(out[1], 1);
        execvp(command[0], command);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    fcntl(in[1], F_SETFL, O_NONBLOCK);
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    *to = in[1];
    *from = out[0];
    return agent;
}

static bool is_wineserver(pid_t pid)
{
    char path[32], name[16] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    bool matches = file >= 0 && read(file, name, sizeof name) > 0 && !strncmp(name, "wineserver", 10);
    close(file);
    return matches;
}

bool reap_children(pid_t agent, siginfo_t *ended)
{
    *ended = (siginfo_t){0};
    while (!waitid(P_ALL, 0, ended, WEXITED | WNOHANG | WNOWAIT) && ended->si_pid) {
        bool killed = ended->si_code != CLD_EXITED;
        if (ended->si_pid == agent || (killed && is_wineserver(ended->si_pid)))
            return false;
        waitpid(ended->si_pid, NULL, 0);
        ended->si_pid = 0;
    }
    return true;
}
