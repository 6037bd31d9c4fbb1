/* Lines are collected and written in batches: see cri_log.h for the format. */

#define _GNU_SOURCE
#include "cri_log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define HEAD 64

/* The current incomplete line, and one more byte for a \r that may belong to its end. */
struct line {
    uint32_t size;
    uint8_t text[LOG_LINE + 1];
};

static struct line lines[2];
static char path[PATH_MAX];
static int file = -1;
static long long limit;
static uint8_t pending[2 * (HEAD + LOG_LINE)];
static size_t filled;
static uint64_t lost;
static int lost_errno;

static int open_file(void)
{
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0640);
}

/* Reads a file of a bundle as text; empty if it does not exist. */
static bool read_text(int bundle, const char *name, char *text, size_t size)
{
    int named = openat(bundle, name, O_RDONLY | O_CLOEXEC);
    if (named < 0)
        return errno == ENOENT;
    ssize_t now = read(named, text, size - 1);
    close(named);
    text[now > 0 ? now : 0] = 0;
    return now >= 0;
}

bool log_open(int bundle)
{
    char bytes[24] = "";
    if (!read_text(bundle, "log_path", path, sizeof path)
        || !read_text(bundle, "log_limit", bytes, sizeof bytes))
        return false;
    limit = atoll(bytes);
    if (!*path)
        return true;
    file = open_file();
    return file >= 0;
}

void log_reopen(void)
{
    int next = *path ? open_file() : -1;
    if (next < 0)
        return;
    close(file);
    file = next;
}

static bool is_too_long(void)
{
    struct stat about;
    return limit && !fstat(file, &about) && about.st_size >= limit;
}

/* Rotates the log. If it cannot be renamed, it is truncated. */
static void rotate(void)
{
    static char rotated[sizeof path + 2];
    snprintf(rotated, sizeof rotated, "%s.1", path);
    rename(path, rotated);
    log_reopen();
    if (is_too_long() && ftruncate(file, 0))
        lost_errno = errno;
}

/* Writes complete lines. Returns the bytes written; the file never ends with a partial line. */
static size_t write_lines(const uint8_t *data, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t now = write(file, data + done, size - done);
        if (now < 0 && errno == EINTR)
            continue;
        if (now < 0) {
            lost_errno = errno;
            break;
        }
        done += (size_t)now;
    }
    size_t whole = done;
    while (whole < size && whole && data[whole - 1] != '\n')
        whole--;
    if (whole < done && ftruncate(file, lseek(file, 0, SEEK_END) - (off_t)(done - whole)))
        lost_errno = errno;
    return whole;
}

static size_t put_head(uint8_t *at, bool errors, bool whole)
{
    struct timespec now;
    struct tm date;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &date);
    size_t size = strftime((char *)at, HEAD, "%Y-%m-%dT%H:%M:%S", &date);
    return size + (size_t)snprintf((char *)at + size, HEAD - size, ".%09ldZ %s %c ", now.tv_nsec,
                                   errors ? "stderr" : "stdout", whole ? 'F' : 'P');
}

/* Reports lost lines once there is enough disk space; until then more lines are lost. */
static void report_loss(void)
{
    struct statvfs disk;
    if (!fstatvfs(file, &disk) && disk.f_bavail * disk.f_frsize < sizeof pending)
        return;
    uint8_t text[HEAD + 256];
    size_t size = put_head(text, false, true);
    size += (size_t)snprintf((char *)text + size, sizeof text - size,
                             "winpod: %llu lines of this log are lost: %s\n",
                             (unsigned long long)lost, strerror(lost_errno));
    if (write_lines(text, size) == size)
        lost = 0;
}

static void write_out(void)
{
    size_t written = lost ? 0 : write_lines(pending, filled);
    for (; written < filled; written++)
        lost += pending[written] == '\n';
    filled = 0;
    if (is_too_long())
        rotate();
}

static void put_line(bool errors, const uint8_t *text, uint32_t size, bool whole)
{
    if (filled + HEAD + size > sizeof pending)
        write_out();
    filled += put_head(pending + filled, errors, whole);
    memcpy(pending + filled, text, size);
    filled += size;
    pending[filled++] = '\n';
}

static void put_part(bool errors, struct line *line)
{
    put_line(errors, line->text, LOG_LINE, false);
    line->size -= LOG_LINE;
    memmove(line->text, line->text + LOG_LINE, line->size);
}

static void append(bool errors, struct line *line, const uint8_t *data, size_t size)
{
    while (size) {
        if (line->size > LOG_LINE || (line->size == LOG_LINE && *data != '\r'))
            put_part(errors, line);
        size_t room = line->size < LOG_LINE ? LOG_LINE - line->size : 1;
        size_t now = size < room ? size : room;
        memcpy(line->text + line->size, data, now);
        line->size += (uint32_t)now;
        data += now;
        size -= now;
    }
}

void log_write(bool errors, const uint8_t *data, uint32_t size)
{
    struct line *line = &lines[errors];
    const uint8_t *past = data + size;
    if (file < 0)
        return;
    if (lost)
        report_loss();
    for (const uint8_t *end; data < past; data = end + 1) {
        end = memchr(data, '\n', (size_t)(past - data));
        append(errors, line, data, (size_t)((end ? end : past) - data));
        if (!end)
            break;
        if (line->size && line->text[line->size - 1] == '\r')
            line->size--;
        put_line(errors, line->text, line->size, true);
        line->size = 0;
    }
    write_out();
}

void log_end(void)
{
    if (file < 0)
        return;
    if (lost)
        report_loss();
    for (int errors = 0; errors < 2; errors++) {
        struct line *line = &lines[errors];
        if (line->size > LOG_LINE)
            put_part(errors, line);
        if (line->size)
            put_line(errors, line->text, line->size, false);
        line->size = 0;
    }
    write_out();
}
