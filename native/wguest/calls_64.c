/* Numbers of the denied system calls of 64-bit programs. */

#include "filter.h"

#include <asm/unistd_64.h>
#include <linux/audit.h>

static const uint32_t refused[] = {
#include "refused.h"
};

const struct calls calls_64 = {
    AUDIT_ARCH_X86_64, __NR_clone, __NR_clone3, NEW_NAMESPACES, sizeof refused / sizeof *refused, refused,
};
