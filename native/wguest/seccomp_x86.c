/* Numbers of the denied system calls of 32-bit programs. */

#include "seccomp.h"

#include <asm/unistd_32.h>
#include <linux/audit.h>

static const uint32_t denied[] = {
#include "denied_syscalls.h"
};

const struct syscalls syscalls_x86 = {
    AUDIT_ARCH_I386, __NR_clone, __NR_clone3, NEW_NAMESPACES, sizeof denied / sizeof *denied, denied,
};
