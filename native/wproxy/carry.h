/* A program that runs: its streams, what it is told, its log and its exit code. */

#ifndef WINPOD_CARRY_H
#define WINPOD_CARRY_H

#include <stdbool.h>

/* A descriptor that tells of the signals that `carry` passes on as Windows' events. */
int catch_signals(void);

/* Until the program of a bundle ends, or the agent from which its frames come. */
_Noreturn void carry(int bundle, int agent, int signals, bool with_terminal);

#endif
