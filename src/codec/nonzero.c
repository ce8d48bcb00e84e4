/* Finding, packing and unpacking elements that are not zero; see nonzero.h. The source is read twice:
 * once to count, once to pack. That keeps the held bytes in one piece without a buffer for the worst
 * case, and the first pass declines dense tensors at the cost of a read.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/nonzero.h"

#include <stdatomic.h>
#include <string.h>

#define CHUNK      MESA_NONZERO_CHUNK
#define MASK_BYTES (CHUNK / 8)

struct mesa_nonzero_layout mesa_nonzero_lay_out(const struct mesa_plan *plan) {
    struct mesa_nonzero_layout layout = {
        .chunks = mesa_divide_up(plan->elements, CHUNK),
        .element_bytes = mesa_dtype_bytes(plan->dtype),
    };
    layout.mask_at = mesa_round_to_line(layout.chunks * sizeof(uint64_t));
    layout.records_at = layout.mask_at + mesa_round_to_line(mesa_divide_up(plan->elements, 8));
    return layout;
}

/* Chunk of 8-byte elements with slack; narrower ones use less. */
struct chunk_buffer {
    _Alignas(64) unsigned char bytes[CHUNK * 8 + MESA_NONZERO_SLACK];
};

static size_t compress(const struct mesa_source *source, size_t chunk, uint8_t *ret_mask,
                       void *ret_elements) {
    struct chunk_buffer gathered;
    size_t begin = chunk * CHUNK;
    size_t end = mesa_smaller(begin + CHUNK, source->elements);
    const void *elements = mesa_source_window(source, begin, end, gathered.bytes);
    return mesa_kernels.sparse_compress[mesa_log2_bytes(mesa_dtype_bytes(source->dtype))](
        elements, end - begin, end - begin, ret_mask, ret_elements);
}

struct counting {
    const struct mesa_plan *plan;
    const struct mesa_source *source;
    size_t (*record_bytes)(const struct mesa_plan *plan, size_t n);
    size_t most;
    uint64_t *table; /* bytes of each record, until they are summed up */
    uint8_t *mask;
    atomic_size_t bytes;
};

static void count_chunks(void *context, size_t begin, size_t end) {
    struct counting *counting = context;
    struct chunk_buffer packed;
    for (size_t chunk = begin; chunk < end; chunk++) {
        size_t n =
            compress(counting->source, chunk, counting->mask + chunk * MASK_BYTES, packed.bytes);
        size_t bytes = counting->record_bytes(counting->plan, n);
        counting->table[chunk] = bytes;
        if (atomic_fetch_add_explicit(&counting->bytes, bytes, memory_order_relaxed) + bytes >
            counting->most)
            return;
    }
}

bool mesa_nonzero_index(const struct mesa_plan *plan, const struct mesa_source *source,
                        mesa_parallel_for *parallel,
                        size_t (*record_bytes)(const struct mesa_plan *plan, size_t n), size_t most,
                        void *held, size_t *ret_bytes) {
    struct mesa_nonzero_layout layout = mesa_nonzero_lay_out(plan);
    uint8_t *mask = (uint8_t *)held + layout.mask_at;
    struct counting counting = {
        .plan = plan,
        .source = source,
        .record_bytes = record_bytes,
        .most = most,
        .table = held,
        .mask = mask,
    };
    mesa_walk_items(layout.chunks, CHUNK * layout.element_bytes, parallel, count_chunks, &counting);
    size_t total = atomic_load_explicit(&counting.bytes, memory_order_relaxed);
    if (total > most)
        return false;

    uint64_t at = 0;
    for (size_t chunk = 0; chunk < layout.chunks; chunk++) {
        uint64_t bytes = counting.table[chunk];
        counting.table[chunk] = at;
        at += bytes;
    }
    size_t table_end = layout.chunks * sizeof(uint64_t);
    size_t mask_bytes = mesa_divide_up(plan->elements, 8);
    memset((uint8_t *)held + table_end, 0, layout.mask_at - table_end);
    memset(mask + mask_bytes, 0, layout.records_at - layout.mask_at - mask_bytes);
    *ret_bytes = total;
    return true;
}

size_t mesa_nonzero_pack(const struct mesa_source *source, size_t chunk, void *ret_elements) {
    uint8_t mask[MASK_BYTES];
    return compress(source, chunk, mask, ret_elements);
}

static const uint8_t *chunk_mask(const void *held, const struct mesa_nonzero_layout *layout,
                                 size_t chunk) {
    return (const uint8_t *)held + layout->mask_at + chunk * MASK_BYTES;
}

static size_t chunk_elements(const struct mesa_plan *plan, size_t chunk) {
    return mesa_smaller(CHUNK, plan->elements - chunk * CHUNK);
}

size_t mesa_nonzero_count(const struct mesa_plan *plan, const void *held, size_t chunk) {
    struct mesa_nonzero_layout layout = mesa_nonzero_lay_out(plan);
    const uint8_t *mask = chunk_mask(held, &layout, chunk);
    size_t bytes = mesa_divide_up(chunk_elements(plan, chunk), 8), count = 0;
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, mask + i, mesa_smaller(sizeof word, bytes - i));
        count += (size_t)__builtin_popcountll(word);
    }
    return count;
}

void mesa_nonzero_unpack(const struct mesa_plan *plan, const void *held, size_t chunk,
                         const void *packed, void *ret_elements) {
    struct mesa_nonzero_layout layout = mesa_nonzero_lay_out(plan);
    mesa_kernels.sparse_expand[mesa_log2_bytes(layout.element_bytes)](
        chunk_mask(held, &layout, chunk), chunk_elements(plan, chunk), packed,
        (char *)ret_elements + chunk * CHUNK * layout.element_bytes);
}
