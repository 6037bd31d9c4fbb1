/* Little-endian numbers and headers of frames. */

#ifndef WINPOD_FRAME_IO_H
#define WINPOD_FRAME_IO_H

#include <stdint.h>

static inline void put32(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
    at[2] = (uint8_t)(value >> 16);
    at[3] = (uint8_t)(value >> 24);
}

static inline void put64(uint8_t *at, uint64_t value)
{
    put32(at, (uint32_t)value);
    put32(at + 4, (uint32_t)(value >> 32));
}

static inline uint32_t get32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static inline void put_frame_header(uint8_t *frame, uint32_t size, uint8_t type)
{
    put32(frame, size);
    frame[4] = type;
}

static inline void put_link_header(uint8_t *frame, uint32_t size, uint8_t type, uint32_t session)
{
    put_frame_header(frame, size, type);
    put32(frame + 5, session);
}

#endif
