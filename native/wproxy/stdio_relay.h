/* Relays the streams and signals of a running program, and writes its log and exit code. */

#ifndef WINPOD_STDIO_RELAY_H
#define WINPOD_STDIO_RELAY_H

#include <stdbool.h>
#include <stdint.h>

/* Sends a frame to the agent. */
bool send_frame(int agent, uint8_t type, const void *payload, uint32_t size);

/* Returns a signalfd of the signals that `relay_stdio` converts to Windows' events. */
int catch_signals(void);

/* Runs until the program of a bundle exits, or the agent's connection ends. */
_Noreturn void relay_stdio(int bundle, int agent, int signals, bool with_terminal);

#endif
