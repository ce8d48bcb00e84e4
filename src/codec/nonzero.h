/* Tensors with many zeros: what the sparse codecs share. The elements are taken in chunks of a fixed
 * number. A mask says which elements are not +0 (by their bits, so -0 is kept like any other), and a
 * table says where the record of each chunk's other elements begins, so that chunks are independent
 * of each other. Held bytes:
 *
 *     table    uint64 for each chunk: where its record begins, in bytes from the first record
 *     mask     a bit for each element                       (both to a multiple of 64 bytes)
 *     records  what the codec makes of the elements that are not zero, chunk after chunk
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_NONZERO_H
#define MESA_CODEC_NONZERO_H

#include "codec/walk.h"

/* Elements in a chunk: two buffers of 8-byte elements fit the stack. */
#define MESA_NONZERO_CHUNK 2048

/* What a kernel may write behind the elements that it packs. */
#define MESA_NONZERO_SLACK 64

struct mesa_nonzero_layout {
    size_t chunks;
    size_t mask_at, records_at; /* bytes from the start */
    size_t element_bytes;
};

struct mesa_nonzero_layout mesa_nonzero_lay_out(const struct mesa_plan *plan);

/* Fills table and mask. record_bytes says how long the record of n elements is. False, as early as
 * that is known, if the records come to more than `most` bytes; else their sum. */
bool mesa_nonzero_index(const struct mesa_plan *plan, const struct mesa_source *source,
                        mesa_parallel_for *parallel,
                        size_t (*record_bytes)(const struct mesa_plan *plan, size_t n), size_t most,
                        void *held, size_t *ret_bytes);

/* Packs the elements of `chunk` that are not zero into `ret_elements`, which has room for a chunk
 * and the slack. Returns how many there are. */
size_t mesa_nonzero_pack(const struct mesa_source *source, size_t chunk, void *ret_elements);

/* Elements of `chunk` that are not zero, counted in the mask. */
size_t mesa_nonzero_count(const struct mesa_plan *plan, const void *held, size_t chunk);

/* Writes the elements of `chunk` to their place among all elements. */
void mesa_nonzero_unpack(const struct mesa_plan *plan, const void *held, size_t chunk,
                         const void *packed, void *ret_elements);

#endif
