/* Programs of the guest's own, such as what formats a disk: begun, and looked after by a process of
 * theirs, so that the host can ask for other things meanwhile.
 *
 *     run RESULT COMMAND...
 *
 * What it says goes to RESULT.said; RESULT is there when it has ended, with its exit code.
 */

#define _GNU_SOURCE
#include "wguest.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static void become_program(const char *said, char **command)
{
    int file = open(said, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (file >= 0 && dup2(file, 1) == 1 && dup2(file, 2) == 2)
        execv(command[0], command);
    _exit(127);
}

static void look_after(const char *result, char **command)
{
    char said[512], part[512];
    snprintf(said, sizeof said, "%s.said", result);
    snprintf(part, sizeof part, "%s.part", result);
    pid_t program = fork();
    if (!program)
        become_program(said, command);
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
    pid_t keeper = fork();
    if (!keeper)
        look_after(result, command);
    return keeper < 0 ? errno : 0;
}
