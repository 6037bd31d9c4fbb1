/* Numbers of the denied system calls of 32-bit programs. */

#include "filter.h"

#include <asm/unistd_32.h>
#include <linux/audit.h>

static const uint32_t refused[] = {
#include "refused.h"
};

const struct calls calls_32 = {
    AUDIT_ARCH_I386, __NR_clone, __NR_clone3, NEW_NAMESPACES, sizeof refused / sizeof *refused, refused,
};
