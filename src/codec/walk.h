/* Going over the elements of a tensor in pieces: what codecs share. A piece never depends on the
 * number of threads, so held bytes are the same however the work was split. Includes what a codec
 * may ask about a source beyond codec.h.
 *
 * Every body and visit below runs with the floating point environment in its default state.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_WALK_H
#define MESA_CODEC_WALK_H

#include "codec/codec.h"

/* Elements that are not contiguous are gathered into a buffer of this size on the stack: what a
 * kernel then reads is still in the nearest cache. */
#define MESA_SCRATCH_BYTES (32u << 10)

/* Work is cut into pieces of about this size, so that threads get nearly the same share. */
#define MESA_PIECE_BYTES (64u << 10)

/* A thread takes at least this much of a source, as with the framework's own loops: then most of what
 * it reads it has written itself, and still has in its cache. */
#define MESA_SHARE_BYTES (128u << 10)

/* Windows begin at multiples of this many elements: a multiple of 8, so that packed bits of two
 * windows never share a byte, and whole cache lines of every dtype. */
#define MESA_WALK_UNIT 64

/* Runs body over [0, count) as a mesa_parallel_for would; an item is `item_bytes` of the source. */
void mesa_walk_items(size_t count, size_t item_bytes, mesa_parallel_for *parallel,
                     void (*body)(void *context, size_t begin, size_t end), void *context);

/* Runs body over elements [0, elements) of a dense result, cut at multiples of MESA_WALK_UNIT. */
void mesa_walk_result(size_t elements, size_t element_bytes, mesa_parallel_for *parallel,
                      void (*body)(void *context, size_t begin, size_t end), void *context);

/* `elements` holds n elements, the first of which is number `first` in dense order. False stops. */
typedef bool mesa_visit(void *context, const void *elements, size_t first, size_t n);

/* Visits all elements of `source` once, in several threads and in any order. False if any visit
 * returned false; others may have been left out then. */
bool mesa_walk_source(const struct mesa_source *source, mesa_parallel_for *parallel,
                      mesa_visit *visit, void *context);

/* Elements [begin, end): where they lie if they are contiguous, else gathered into `scratch`, which
 * must be large enough for them. */
const void *mesa_source_window(const struct mesa_source *source, size_t begin, size_t end,
                               void *scratch);

/* Rows of a source that one kernel call can take. */
struct mesa_source_rows {
    const void *first;
    size_t rows, row; /* `row` contiguous elements each */
    ptrdiff_t stride; /* elements from one row to the next */
};

/* The most elements from `begin` on, up to `end`, that are rows of a multiple of `unit` elements.
 * False if not even the first `unit` elements are contiguous. end - begin is a multiple of `unit`. */
bool mesa_source_rows(const struct mesa_source *source, size_t begin, size_t end, size_t unit,
                      struct mesa_source_rows *ret_rows);

static inline size_t mesa_divide_up(size_t n, size_t by) {
    return n / by + (n % by != 0);
}

static inline size_t mesa_smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Held parts begin at whole cache lines. */
static inline size_t mesa_round_to_line(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* Index into the tables of kernels for elements of 1, 2, 4, 8 bytes: 0..3. */
static inline unsigned mesa_log2_bytes(size_t element_bytes) {
    return (unsigned)__builtin_ctzll(element_bytes);
}

#endif
