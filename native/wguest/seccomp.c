/* The seccomp filter of a silo, from the same table as the OCI runtime's on the host. A system call
 * is looked up in the table of its architecture; other architectures kill the process, including
 * 32-bit ones unless the base has 32-bit Wine.
 */

#define _GNU_SOURCE
#include "seccomp.h"
#include "wguest.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#define MAX_STEPS 1024
#define X32_SYSCALL_BIT 0x40000000u /* calls from here on are those of x32, another architecture */

static struct sock_filter steps[MAX_STEPS];
static unsigned short step_count;

static void add(struct sock_filter step)
{
    if (step_count < MAX_STEPS)
        steps[step_count++] = step;
}

static void load(size_t offset)
{
    add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset));
}

static void decide(uint32_t action)
{
    add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action));
}

/* The next step is executed only if the comparison holds. */
static void only_if(uint16_t compare, uint32_t value)
{
    add((struct sock_filter)BPF_JUMP(BPF_JMP | compare | BPF_K, value, 0, 1));
}

static void add_calls(const struct syscalls *calls)
{
    load(offsetof(struct seccomp_data, arch));
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls->architecture, 1, 0));
    unsigned short skip = step_count;
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JA, 0, 0, 0));
    load(offsetof(struct seccomp_data, nr));
    only_if(BPF_JGE, X32_SYSCALL_BIT);
    decide(SECCOMP_RET_KILL_PROCESS);
    for (uint32_t i = 0; i < calls->count; i++) {
        only_if(BPF_JEQ, calls->denied[i]);
        decide(SECCOMP_RET_ERRNO | EPERM);
    }
    only_if(BPF_JEQ, calls->clone3); /* its flags are in memory, which filters cannot read */
    decide(SECCOMP_RET_ERRNO | ENOSYS);
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls->clone, 1, 0));
    decide(SECCOMP_RET_ALLOW);
    load(offsetof(struct seccomp_data, args));
    only_if(BPF_JSET, calls->new_namespaces);
    decide(SECCOMP_RET_ERRNO | EPERM);
    decide(SECCOMP_RET_ALLOW);
    steps[skip].k = step_count - skip - 1u;
}

int install_seccomp_filter(bool with_32bit)
{
    step_count = 0;
    add_calls(&syscalls_x86_64);
    if (with_32bit)
        add_calls(&syscalls_x86);
    decide(SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = {step_count, steps};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) ? errno : 0;
}
