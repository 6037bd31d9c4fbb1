/* The seccomp filter of a silo, from the same table as the OCI runtime's on the host. A system call
 * is looked up in the table of its architecture; other architectures kill the process, including
 * 32-bit ones unless the base has 32-bit Wine.
 */

#define _GNU_SOURCE
#include "filter.h"
#include "wguest.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#define MAX_STEPS 1024
#define X32_SYSCALL_BIT 0x40000000u /* calls from here on are those of x32, another architecture */

static struct sock_filter steps[MAX_STEPS];
static unsigned short many;

static void add(struct sock_filter step)
{
    if (many < MAX_STEPS)
        steps[many++] = step;
}

static void load(size_t offset)
{
    add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset));
}

static void answer(uint32_t action)
{
    add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action));
}

/* The next step is executed only if the comparison holds. */
static void only_if(uint16_t compare, uint32_t value)
{
    add((struct sock_filter)BPF_JUMP(BPF_JMP | compare | BPF_K, value, 0, 1));
}

static void add_calls(const struct calls *calls)
{
    load(offsetof(struct seccomp_data, arch));
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls->architecture, 1, 0));
    unsigned short skip = many;
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JA, 0, 0, 0));
    load(offsetof(struct seccomp_data, nr));
    only_if(BPF_JGE, X32_SYSCALL_BIT);
    answer(SECCOMP_RET_KILL_PROCESS);
    for (uint32_t i = 0; i < calls->many; i++) {
        only_if(BPF_JEQ, calls->refused[i]);
        answer(SECCOMP_RET_ERRNO | EPERM);
    }
    only_if(BPF_JEQ, calls->clone3); /* its flags are in memory, which filters cannot read */
    answer(SECCOMP_RET_ERRNO | ENOSYS);
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls->clone, 1, 0));
    answer(SECCOMP_RET_ALLOW);
    load(offsetof(struct seccomp_data, args));
    only_if(BPF_JSET, calls->new_namespaces);
    answer(SECCOMP_RET_ERRNO | EPERM);
    answer(SECCOMP_RET_ALLOW);
    steps[skip].k = many - skip - 1u;
}

int install_seccomp_filter(bool with_32bit)
{
    many = 0;
    add_calls(&calls_64);
    if (with_32bit)
        add_calls(&calls_32);
    answer(SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = {many, steps};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) ? errno : 0;
}
