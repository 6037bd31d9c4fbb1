/* A container's log in the CRI format, one entry per line: TIME STREAM TAG CONTENT.
 *
 * Lines of a program end with \n or \r\n. The parts of a line longer than LOG_LINE, and a line that
 * is incomplete when the program ends, have the tag P; a complete line, and the last part of a long
 * one, F. Lines that do not fit on the disk are dropped and counted, and the log reports the count
 * once it can. A log that reaches its limit is renamed with the suffix .1, replacing an older one,
 * and continues in a new file.
 */

#ifndef WINPOD_CRI_LOG_H
#define WINPOD_CRI_LOG_H

#include <stdbool.h>
#include <stdint.h>

#define LOG_LINE 16384u

/* Opens the log at the path in the bundle's `log_path`, if any. `log_limit` is the maximum size in
 * bytes; without one the CRI client rotates it. */
bool log_open(int bundle);

/* Reopens the path after the log was rotated. Keeps the old file if that fails. */
void log_reopen(void);

void log_write(bool errors, const uint8_t *data, uint32_t size);

/* Writes incomplete lines. */
void log_end(void);

#endif
