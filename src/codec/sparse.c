/* Tensors of any dtype with many zeros: a mask and the other elements as they are. Exact, -0 and NaN
 * included. nonzero.h has the format; the record of a chunk is its elements.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/nonzero.h"

#include <string.h>

/* Worth holding if it takes at most nine tenths of the source. */
static size_t most_bytes(const struct mesa_plan *plan) {
    size_t bytes = plan->elements * mesa_dtype_bytes(plan->dtype);
    return bytes - mesa_divide_up(bytes, 10);
}

static size_t sparse_bound_bytes(const struct mesa_plan *plan) {
    size_t bytes = mesa_dtype_bytes(plan->dtype);
    if (bytes < 1 || bytes > 8)
        return 0;
    return mesa_nonzero_lay_out(plan).records_at <= most_bytes(plan) ? most_bytes(plan) : 0;
}

struct sparse {
    const struct mesa_plan *plan;
    const struct mesa_source *source; /* encode */
    const void *held;
    char *records;  /* encode */
    void *elements; /* decode */
};

static size_t record_bytes(const struct mesa_plan *plan, size_t n) {
    return n * mesa_dtype_bytes(plan->dtype);
}

static void pack_chunks(void *context, size_t begin, size_t end) {
    const struct sparse *sparse = context;
    const uint64_t *table = sparse->held;
    _Alignas(64) unsigned char packed[MESA_NONZERO_CHUNK * 8 + MESA_NONZERO_SLACK];
    for (size_t chunk = begin; chunk < end; chunk++) {
        size_t n = mesa_nonzero_pack(sparse->source, chunk, packed);
        memcpy(sparse->records + table[chunk], packed, record_bytes(sparse->plan, n));
    }
}

static enum mesa_status sparse_encode(struct mesa_plan *plan, const struct mesa_source *source,
                                      mesa_parallel_for *parallel, void *held, size_t *ret_bytes) {
    struct mesa_nonzero_layout layout = mesa_nonzero_lay_out(plan);
    struct sparse sparse = {
        .plan = plan, .source = source, .held = held, .records = (char *)held + layout.records_at};
    size_t bytes;
    if (sparse_bound_bytes(plan) == 0 ||
        !mesa_nonzero_index(plan, source, parallel, record_bytes,
                            most_bytes(plan) - layout.records_at, held, &bytes))
        return MESA_DECLINED;
    mesa_walk_items(layout.chunks, MESA_NONZERO_CHUNK * layout.element_bytes, parallel, pack_chunks,
                    &sparse);
    *ret_bytes = layout.records_at + bytes;
    return MESA_OK;
}

static void unpack_chunks(void *context, size_t begin, size_t end) {
    const struct sparse *sparse = context;
    const uint64_t *table = sparse->held;
    const char *records =
        (const char *)sparse->held + mesa_nonzero_lay_out(sparse->plan).records_at;
    for (size_t chunk = begin; chunk < end; chunk++)
        mesa_nonzero_unpack(sparse->plan, sparse->held, chunk, records + table[chunk],
                            sparse->elements);
}

static void sparse_decode(const struct mesa_plan *plan, const void *held,
                          mesa_parallel_for *parallel, void *ret_elements) {
    struct mesa_nonzero_layout layout = mesa_nonzero_lay_out(plan);
    struct sparse sparse = {.plan = plan, .held = held, .elements = ret_elements};
    mesa_walk_items(layout.chunks, MESA_NONZERO_CHUNK * layout.element_bytes, parallel,
                    unpack_chunks, &sparse);
}

const struct mesa_codec mesa_codec_sparse = {
    .name = "sparse",
    .exact = true,
    .bound_bytes = sparse_bound_bytes,
    .encode = sparse_encode,
    .decode = sparse_decode,
};
