/* Programs of the guest, such as mke2fs: each is supervised by its own process, so that other
 * commands can be served meanwhile.
 *
 *     run RESULT COMMAND...
 *
 * The output goes to RESULT.said; RESULT is created when the program has ended, with the exit code.
 */

#define _GNU_SOURCE
#include "wguest.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static void exec_program(const char *output, char **command)
{
    int file = open(output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (file >= 0 && dup2(file, 1) == 1 && dup2(file, 2) == 2)
        execv(command[0], command);
    _exit(127);
}

static void supervise(const char *result, char **command)
{
    char output[512], part[512];
    snprintf(output, sizeof output, "%s.said", result);
    snprintf(part, sizeof part, "%s.part", result);
    pid_t program = fork();
    if (!program)
        exec_program(output, command);
    int status = 0;
    if (program < 0 || waitpid(program, &status, 0) != program)
        _exit(1);
    int file = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    dprintf(file, "%d", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    close(file);
    _exit(rename(part, result) ? 1 : 0);
}

int run_program(const char *result, char **command)
{
    pid_t supervisor = fork();
    if (!supervisor)
        supervise(result, command);
    return supervisor < 0 ? errno : 0;
}
