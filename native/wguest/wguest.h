/* The parts of wguest, the first process of a microVM. */

#ifndef WINPOD_WGUEST_H
#define WINPOD_WGUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define MOST_WORDS 256
#define MOST_BYTES (1u << 20)

struct answer {
    size_t size;
    char data[MOST_BYTES];
};

/* Each returns 0, or the number of the error. */
int answer_request(char **words, struct answer *answer);
int start_shell(char **words);
int kill_shell(const char *name);
int mount_in_shell(const char *name, const char *source, const char *target);
int rename_in_shell(const char *name, const char *hostname);
int filter_calls(bool with_32bit);
int run_program(const char *result, char **command);
int set_address(const char *interface, const char *address, const char *prefix);
int set_route(const char *interface, const char *gateway);
int raise_loopback(void);
int dial(char **words);

int open_port(const char *name);
bool write_whole(int port, const void *data, size_t size); /* false when nobody is at the other end */
void reap(void);
void carry(int port, char **command) __attribute__((noreturn));

#endif
