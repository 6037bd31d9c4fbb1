/* The tables of a silo's seccomp filter: one for each architecture. */

#ifndef WINPOD_SECCOMP_H
#define WINPOD_SECCOMP_H

#include <stdint.h>

struct syscalls {
    uint32_t architecture, clone, clone3, new_namespaces, count;
    const uint32_t *denied;
};

extern const struct syscalls syscalls_x86_64, syscalls_x86;

#endif
