/* The agent of a silo, as the child of the silo's first process. */

#ifndef WINPOD_AGENT_PROCESS_H
#define WINPOD_AGENT_PROCESS_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

/* Starts the agent with non-blocking pipes to and from it. Exits if that is impossible. */
pid_t start_agent(char **command, int *to, int *from);

/* Reaps children. Returns false, with the child in `ended`, if the silo has to end: when the agent
 * ended, or wineserver was killed, because without it all of Windows hangs. */
bool reap_children(pid_t agent, siginfo_t *ended);

#endif
