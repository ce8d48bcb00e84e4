/* Reals with many zeros, such as the output of relu and dropout: a mask, and affine codes of the
 * other elements only. Zeros come back exactly (as +0), and no other element becomes zero or changes
 * its sign. nonzero.h has the format. The record of a chunk with n elements that are not zero is
 *
 *     words    uint32 for each group of these n, as one row of plan->group
 *     codes    mesa_code_row_bytes(n), at least 4, to a multiple of 4
 *
 * and behind all records the raw groups of all chunks follow in order, as in affine.c.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/affine.h"
#include "codec/nonzero.h"

#include <stdatomic.h>
#include <string.h>

#define CHUNK MESA_NONZERO_CHUNK

/* One raw group in this many is too much, as in affine.c. */
#define GROUPS_FOR_A_RAW_ONE 8

/* Where zeros are looked for before anything is encoded: at most so many samples, less in a small
 * tensor, and the share of zeros below which it is not worth going on: the mask costs a bit an
 * element. */
#define SAMPLES             32
#define SAMPLE_ELEMENTS     64
#define SAMPLE_OUT_OF       256
#define LEAST_ZEROS_PERCENT 10

static size_t record_codes_at(const struct mesa_plan *plan, size_t n) {
    return mesa_group_count(n, plan->group) * sizeof(uint32_t);
}

static size_t record_bytes(const struct mesa_plan *plan, size_t n) {
    if (n == 0)
        return 0;
    return record_codes_at(plan, n) + mesa_divide_up(mesa_code_row_bytes(n, plan->bits), 4) * 4;
}

/* Bytes of the elements of one raw group. At least as many as any group of any chunk has: groups
 * are at most twice as long as wanted, but for a unit at each end. */
static size_t raw_group_bytes(const struct mesa_plan *plan) {
    size_t most = 2 * (plan->group + MESA_GROUP_UNIT);
    return mesa_smaller(most, CHUNK) * mesa_dtype_bytes(plan->dtype);
}

/* What the affine codec would take for the elements, about; and the most that it pays to take. */
static size_t most_bytes(const struct mesa_plan *plan) {
    size_t plain = mesa_code_row_bytes(plan->elements, plan->bits) +
                   mesa_group_count(plan->elements, plan->group) * sizeof(uint32_t);
    return plain - plain / 32;
}

static size_t raw_limit(const struct mesa_plan *plan) {
    return mesa_group_count(plan->elements, plan->group) / GROUPS_FOR_A_RAW_ONE;
}

static size_t sparse_affine_bound_bytes(const struct mesa_plan *plan) {
    if (!mesa_dtype_is_real(plan->dtype) || plan->bits < 1 || plan->bits > MESA_MOST_CODE_BITS ||
        plan->group == 0 || plan->grouping != MESA_GROUP_BLOCK)
        return 0;
    if (mesa_nonzero_lay_out(plan).records_at >= most_bytes(plan))
        return 0;
    return most_bytes(plan) + raw_limit(plan) * raw_group_bytes(plan);
}

/* Elements whose bits are all 0: one loop a size. */
static size_t count_zeros(const char *elements, size_t n, size_t bytes) {
    size_t zeros = 0;
#define COUNT(type)                                                                                \
    for (size_t i = 0; i < n; i++) {                                                               \
        type bits;                                                                                 \
        memcpy(&bits, elements + i * sizeof bits, sizeof bits);                                    \
        zeros += bits == 0;                                                                        \
    }
    if (bytes == 4)
        COUNT(uint32_t)
    else if (bytes == 2)
        COUNT(uint16_t)
    else
        COUNT(uint64_t)
#undef COUNT
    return zeros;
}

/* Are there enough zeros in samples spread evenly over the source? If every fourth of them has none,
 * the others are not looked at: most tensors are dense. */
static bool sparse_affine_may_fit(const struct mesa_plan *plan, const struct mesa_source *source) {
    size_t bytes = mesa_dtype_bytes(plan->dtype);
    size_t samples = mesa_smaller(SAMPLES, mesa_divide_up(source->elements, SAMPLE_OUT_OF));
    size_t seen = 0, zeros = 0;
    unsigned char scratch[SAMPLE_ELEMENTS * 8];
    for (size_t round = 0; round < 4 && (round == 0 || zeros != 0); round++) {
        for (size_t sample = round; sample < samples; sample += 4) {
            size_t begin = source->elements / samples * sample;
            size_t end = mesa_smaller(begin + SAMPLE_ELEMENTS, source->elements);
            const void *window = mesa_source_window(source, begin, end, scratch);
            zeros += count_zeros(window, end - begin, bytes);
            seen += end - begin;
        }
    }
    return zeros * 100 >= seen * LEAST_ZEROS_PERCENT;
}

static struct mesa_affine_rows rows_of(const struct mesa_plan *plan, size_t chunk, size_t n) {
    return (struct mesa_affine_rows){
        .rows = 1,
        .row = n,
        .row_stride = (ptrdiff_t)n,
        .groups = mesa_group_count(n, plan->group),
        .bits = plan->bits,
        .strict_sign = true, /* a code of 0 is for elements that the mask leaves out */
        .rounding = plan->rounding,
        .seed = plan->seed,
        .first_element = chunk * CHUNK,
    };
}

/* ---- encode ------------------------------------------------------------------------------------ */

struct encoder {
    const struct mesa_plan *plan;
    const struct mesa_source *source;
    const uint64_t *table;
    uint8_t *records;
    atomic_size_t groups, raw_groups;
};

struct packed_chunk {
    _Alignas(64) unsigned char bytes[CHUNK * 8 + MESA_NONZERO_SLACK];
};

static void encode_chunks(void *context, size_t begin, size_t end) {
    struct encoder *encoder = context;
    const struct mesa_plan *plan = encoder->plan;
    struct packed_chunk packed;
    size_t raw_groups = 0;
    for (size_t chunk = begin; chunk < end; chunk++) {
        size_t n = mesa_nonzero_pack(encoder->source, chunk, packed.bytes);
        if (n == 0)
            continue;
        struct mesa_affine_rows rows = rows_of(plan, chunk, n);
        uint8_t *record = encoder->records + encoder->table[chunk];
        uint8_t *codes = record + record_codes_at(plan, n);
        memset(record + record_bytes(plan, n) - 4, 0, 4); /* the padding */
        uint32_t *words = (uint32_t *)(void *)record;
        raw_groups += mesa_kernels.affine_encode[plan->dtype](&rows, packed.bytes, words, codes);
        raw_groups += mesa_affine_mark_wide(plan, words, rows.groups);
    }
    atomic_fetch_add_explicit(&encoder->raw_groups, raw_groups, memory_order_relaxed);
}

/* Appends the raw groups of one chunk, the first of which has number `index` among all. Returns the
 * number behind its last. */
static uint32_t append_raw_groups(struct encoder *encoder, size_t chunk, uint32_t index,
                                  uint8_t *raw) {
    const struct mesa_plan *plan = encoder->plan;
    size_t bytes = mesa_dtype_bytes(plan->dtype), raw_bytes = raw_group_bytes(plan);
    struct packed_chunk packed;
    size_t n = mesa_nonzero_pack(encoder->source, chunk, packed.bytes);
    uint8_t *record = encoder->records + encoder->table[chunk];
    const uint32_t *words = (const uint32_t *)(const void *)record;
    size_t groups = mesa_group_count(n, plan->group);
    for (size_t j = 0; j < groups; j++) {
        if (words[j] != MESA_GROUP_RAW)
            continue;
        size_t from = mesa_group_begin(n, groups, j), to = mesa_group_begin(n, groups, j + 1);
        uint8_t *place = raw + index * raw_bytes;
        memcpy(place, packed.bytes + from * bytes, (to - from) * bytes);
        memset(place + (to - from) * bytes, 0, raw_bytes - (to - from) * bytes);
        uint8_t *codes = record + record_codes_at(plan, n) + mesa_code_row_bytes(from, plan->bits);
        for (unsigned i = 0; i < 4; i++)
            codes[i] = (uint8_t)(index >> 8 * i);
        index++;
    }
    return index;
}

/* Serial, as there are few; in order, so that held bytes depend on the data only. */
static void append_all_raw_groups(struct encoder *encoder, const void *held, size_t chunks,
                                  uint8_t *raw) {
    const struct mesa_plan *plan = encoder->plan;
    uint32_t index = 0;
    for (size_t chunk = 0; chunk < chunks; chunk++) {
        size_t n = mesa_nonzero_count(plan, held, chunk);
        const uint32_t *words =
            (const uint32_t *)(const void *)(encoder->records + encoder->table[chunk]);
        size_t groups = n == 0 ? 0 : mesa_group_count(n, plan->group);
        for (size_t j = 0; j < groups; j++) {
            if (words[j] == MESA_GROUP_RAW) {
                index = append_raw_groups(encoder, chunk, index, raw);
                break;
            }
        }
    }
}

static enum mesa_status sparse_affine_encode(struct mesa_plan *plan,
                                             const struct mesa_source *source,
                                             mesa_parallel_for *parallel, void *held,
                                             size_t *ret_bytes) {
    struct mesa_nonzero_layout layout = mesa_nonzero_lay_out(plan);
    size_t bytes;
    if (sparse_affine_bound_bytes(plan) == 0 ||
        !mesa_nonzero_index(plan, source, parallel, record_bytes,
                            most_bytes(plan) - layout.records_at, held, &bytes))
        return MESA_DECLINED;
    struct encoder encoder = {
        .plan = plan,
        .source = source,
        .table = held,
        .records = (uint8_t *)held + layout.records_at,
    };
    mesa_walk_items(layout.chunks, CHUNK * layout.element_bytes, parallel, encode_chunks, &encoder);
    size_t raw_groups = atomic_load_explicit(&encoder.raw_groups, memory_order_relaxed);
    if (raw_groups > raw_limit(plan))
        return MESA_DECLINED;
    if (raw_groups > 0)
        append_all_raw_groups(&encoder, held, layout.chunks, encoder.records + bytes);
    plan->found[0] = raw_groups;
    plan->found[1] = bytes; /* of all records: the raw groups follow */
    *ret_bytes = layout.records_at + bytes + raw_groups * raw_group_bytes(plan);
    return MESA_OK;
}

/* ---- decode ------------------------------------------------------------------------------------ */

struct decoder {
    const struct mesa_plan *plan;
    const void *held;
    void *elements;
};

static void decode_chunks(void *context, size_t begin, size_t end) {
    const struct decoder *decoder = context;
    const struct mesa_plan *plan = decoder->plan;
    const uint64_t *table = decoder->held;
    const uint8_t *records = (const uint8_t *)decoder->held + mesa_nonzero_lay_out(plan).records_at;
    struct packed_chunk packed;
    for (size_t chunk = begin; chunk < end; chunk++) {
        size_t n = mesa_nonzero_count(plan, decoder->held, chunk);
        if (n > 0) {
            struct mesa_affine_rows rows = rows_of(plan, chunk, n);
            const uint8_t *record = records + table[chunk];
            mesa_kernels.affine_decode[plan->dtype](
                &rows, (const uint32_t *)(const void *)record, record + record_codes_at(plan, n),
                records + plan->found[1], raw_group_bytes(plan), false, packed.bytes);
        }
        mesa_nonzero_unpack(plan, decoder->held, chunk, packed.bytes, decoder->elements);
    }
}

static void sparse_affine_decode(const struct mesa_plan *plan, const void *held,
                                 mesa_parallel_for *parallel, void *ret_elements) {
    struct decoder decoder = {plan, held, ret_elements};
    struct mesa_nonzero_layout layout = mesa_nonzero_lay_out(plan);
    mesa_walk_items(layout.chunks, CHUNK * layout.element_bytes, parallel, decode_chunks, &decoder);
}

const struct mesa_codec mesa_codec_sparse_affine = {
    .name = "sparse_affine",
    .exact = false,
    .bound_bytes = sparse_affine_bound_bytes,
    .may_fit = sparse_affine_may_fit,
    .encode = sparse_affine_encode,
    .decode = sparse_affine_decode,
};
