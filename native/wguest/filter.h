/* The tables of a silo's seccomp filter: one for each architecture. */

#ifndef WINPOD_FILTER_H
#define WINPOD_FILTER_H

#include <stdint.h>

struct calls {
    uint32_t architecture, clone, clone3, new_namespaces, many;
    const uint32_t *refused;
};

extern const struct calls calls_64, calls_32;

#endif
