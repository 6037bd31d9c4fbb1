/* Bytes between a reader and a writer of non-blocking descriptors. The memory grows as needed; the
 * caller limits it by not reading more. */

#ifndef WINPOD_QUEUE_H
#define WINPOD_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define QUEUE_READ (64u << 10) /* bytes that queue_fill reads at most */

struct queue {
    uint8_t *data;
    size_t start, filled, capacity;
};

/* Both return false without memory. An empty queue keeps up to QUEUE_READ bytes of memory. */
bool queue_reserve(struct queue *queue, size_t size);
bool queue_append(struct queue *queue, const void *data, size_t size);

/* Returns the first of the queued bytes. */
static inline uint8_t *queue_head(struct queue *queue)
{
    return queue->data + queue->start;
}

/* Removes the first bytes. */
void queue_consume(struct queue *queue, size_t size);

/* Removes all bytes and releases the memory. */
void queue_reset(struct queue *queue);

/* Reads once, at most `limit` bytes. Returns false at the end, or without memory. */
bool queue_fill(int fd, struct queue *queue, size_t limit);

/* Writes what it can. Returns the bytes written, or -1 if the other side is gone. */
ssize_t queue_flush(int fd, struct queue *queue);

#endif
