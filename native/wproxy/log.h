/* A container's log in the form of the CRI, one line after the other: TIME STREAM TAG CONTENT.
 *
 * A program's line ends with \n or \r\n. The parts of one that is longer than LOG_LINE, and what
 * has no end when the program ends, have the tag P; a whole line, and a long one's last part, F.
 * What finds no room on the disk is left out and counted, and the log says so once it can.
 * A log with a limit that has come to it is moved to its own name with .1 at the end, in the place
 * of the one that was there, and goes on in a new file.
 */

#ifndef WINPOD_LOG_H
#define WINPOD_LOG_H

#include <stdbool.h>
#include <stdint.h>

#define LOG_LINE 16384u

/* Opens the log that the file `log_path` of a bundle names, if it names one. `log_limit` is how many
 * bytes it may have; without one somebody else looks after it. */
bool log_open(int bundle);

/* Opens the same path again, for a log that was moved away. The old one stays if that fails. */
void log_reopen(void);

void log_write(bool errors, const uint8_t *data, uint32_t size);

/* Writes what has no end of line. */
void log_end(void);

#endif
