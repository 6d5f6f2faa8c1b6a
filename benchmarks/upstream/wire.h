// What the stub engine and the load client share: time, buffers and the few HTTP/1.1 facts that they need.
#ifndef WIRE_H
#define WIRE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

typedef int64_t nanoseconds;

#define MICROSECOND ((nanoseconds)1000)
#define MILLISECOND ((nanoseconds)1000000)
#define SECOND ((nanoseconds)1000000000)
#define NEVER INT64_MAX

static inline nanoseconds now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

// The time left until `due` as epoll_pwait2 wants it; NULL (wait for ever) for NEVER.
static inline struct timespec *wait_until(nanoseconds due, struct timespec *timeout) {
    if (due == NEVER) return NULL;
    nanoseconds left = due - now_ns();
    if (left < 0) left = 0;
    timeout->tv_sec = left / SECOND;
    timeout->tv_nsec = left % SECOND;
    return timeout;
}

static inline void die(const char *what) {
    perror(what);
    exit(1);
}

static inline void *must(void *memory) {
    if (!memory) die("out of memory");
    return memory;
}

// Bytes received and not yet consumed; always ends in a NUL that is not counted.
typedef struct {
    char *data;
    size_t length, capacity;
} buffer;

static inline void reserve(buffer *b, size_t more) {
    if (b->length + more + 1 <= b->capacity) return;
    while (b->capacity < b->length + more + 1) b->capacity = b->capacity ? b->capacity * 2 : 4096;
    b->data = must(realloc(b->data, b->capacity));
}

static inline void consume(buffer *b, size_t count) {
    memmove(b->data, b->data + count, b->length - count);
    b->length -= count;
    b->data[b->length] = 0;
}

static inline char *read_file(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (!file) die(path);
    fseek(file, 0, SEEK_END);
    *length = (size_t)ftell(file);
    rewind(file);
    char *data = must(malloc(*length + 1));
    if (fread(data, 1, *length, file) != *length) die(path);
    data[*length] = 0;
    fclose(file);
    return data;
}

// The value of a header in a head of `length` bytes, or NULL. `name` is lower case, with its colon: "content-length:".
static inline const char *header(const char *head, size_t length, const char *name) {
    size_t name_length = strlen(name);
    const char *end = head + length;
    for (const char *line = head; line && line < end; line = memchr(line, '\n', (size_t)(end - line))) {
        if (*line == '\n') line++;
        if ((size_t)(end - line) <= name_length || strncasecmp(line, name, name_length)) continue;
        const char *value = line + name_length;
        while (*value == ' ') value++;
        return value;
    }
    return NULL;
}

// Decodes a chunked body piece by piece. Feed it bytes until `done`.
typedef struct {
    enum { CHUNK_SIZE, CHUNK_SIZE_REST, CHUNK_DATA, CHUNK_DATA_END, TRAILER, CHUNKS_DONE } state;
    size_t left;  // of the chunk's data; in TRAILER, characters in the current line
} chunk_decoder;

static inline int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Advances over input until some payload or the end of input. Returns the bytes used; the payload is in *payload, *size.
static inline size_t decode_chunk(chunk_decoder *d, const char *in, size_t length, const char **payload, size_t *size) {
    *size = 0;
    for (size_t i = 0; i < length; i++) {
        char c = in[i];
        switch (d->state) {
            case CHUNK_SIZE:
                if (hex_digit(c) >= 0) {
                    d->left = d->left * 16 + (size_t)hex_digit(c);
                    break;
                }
                d->state = CHUNK_SIZE_REST;
                // fall through
            case CHUNK_SIZE_REST:
                if (c != '\n') break;
                d->state = d->left ? CHUNK_DATA : TRAILER;
                break;
            case CHUNK_DATA:
                *payload = in + i;
                *size = length - i < d->left ? length - i : d->left;
                d->left -= *size;
                if (!d->left) d->state = CHUNK_DATA_END;
                return i + *size;
            case CHUNK_DATA_END:
                if (c == '\n') d->state = CHUNK_SIZE;
                break;
            case TRAILER:
                if (c == '\n') {
                    if (!d->left) {
                        d->state = CHUNKS_DONE;
                        return i + 1;
                    }
                    d->left = 0;
                } else if (c != '\r') {
                    d->left++;
                }
                break;
            case CHUNKS_DONE:
                return i;
        }
    }
    return length;
}

#endif
