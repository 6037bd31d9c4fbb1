/* See queue.h. */

#include "queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool queue_reserve(struct queue *queue, size_t size)
{
    if (queue->start + queue->filled + size > queue->capacity) {
        if (queue->filled)
            memmove(queue->data, queue_head(queue), queue->filled);
        queue->start = 0;
    }
    if (queue->filled + size <= queue->capacity)
        return true;
    size_t capacity = queue->capacity ? queue->capacity : 4096;
    while (capacity < queue->filled + size)
        capacity *= 2;
    uint8_t *grown = realloc(queue->data, capacity);
    if (!grown)
        return false;
    queue->data = grown;
    queue->capacity = capacity;
    return true;
}

bool queue_append(struct queue *queue, const void *data, size_t size)
{
    if (!queue_reserve(queue, size))
        return false;
    if (size)
        memcpy(queue_head(queue) + queue->filled, data, size);
    queue->filled += size;
    return true;
}

void queue_consume(struct queue *queue, size_t size)
{
    queue->start += size;
    queue->filled -= size;
    if (queue->filled)
        return;
    queue->start = 0;
    if (queue->capacity > QUEUE_READ)
        queue_reset(queue);
}

void queue_reset(struct queue *queue)
{
    free(queue->data);
    *queue = (struct queue){0};
}

bool queue_fill(int fd, struct queue *queue, size_t limit)
{
    static uint8_t buffer[QUEUE_READ];
    ssize_t now = read(fd, buffer, limit < sizeof buffer ? limit : sizeof buffer);
    if (now < 0)
        return errno == EAGAIN || errno == EINTR;
    return now > 0 && queue_append(queue, buffer, (size_t)now);
}

ssize_t queue_flush(int fd, struct queue *queue)
{
    size_t written = 0;
    while (queue->filled) {
        ssize_t now = write(fd, queue_head(queue), queue->filled);
        if (now < 0 && errno == EINTR)
            continue;
        if (now < 0)
            return errno == EAGAIN ? (ssize_t)written : -1;
        queue_consume(queue, (size_t)now);
        written += (size_t)now;
    }
    return (ssize_t)written;
}
