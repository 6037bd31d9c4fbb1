/* The parts of wguest, the first process of a microVM. */

#ifndef WINPOD_WGUEST_H
#define WINPOD_WGUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "agent_protocol.h"

struct answer {
    size_t size;
    char data[GUEST_MAX_BYTES];
};

/* Each returns 0, or an errno. */
int run_command(char **words, struct answer *answer);
int start_silo(char **words);
int kill_silo(const char *name);
int mount_in_silo(const char *name, const char *source, const char *target);
int set_silo_hostname(const char *name, const char *hostname);
int install_seccomp_filter(bool with_32bit);
int run_program(const char *result, char **command);
int set_address(const char *interface, const char *address, const char *prefix);
int set_route(const char *interface, const char *gateway);
int raise_loopback(void);
int dial(char **words);

int open_port(const char *name);
void reap(void);
void relay_port(int port, char **command) __attribute__((noreturn));

#endif
