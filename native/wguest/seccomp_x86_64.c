/* Numbers of the denied system calls of 64-bit programs. */

#include "seccomp.h"

#include <asm/unistd_64.h>
#include <linux/audit.h>

static const uint32_t denied[] = {
#include "denied_syscalls.h"
};

const struct syscalls syscalls_x86_64 = {
    AUDIT_ARCH_X86_64, __NR_clone, __NR_clone3, NEW_NAMESPACES, sizeof denied / sizeof *denied, denied,
};
