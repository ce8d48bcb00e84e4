/* Floats of similar magnitude. Sign and mantissa look random, but exponents do not: most lie within a
 * few steps below the largest. Each chunk of elements picks the run of exponents that saves most, and
 * holds their distance from its top in 1 to 8 bits; exponents outside of it are held apart, as bytes.
 * Where there are zeros, a mask takes them out first. Exact for every bit pattern. Held bytes:
 *
 *     entries  struct entry for each chunk                  (to a multiple of 64 bytes)
 *     records  chunk after chunk: mask (if there is one), a bit for each element that is not +0;
 *              then of these elements rest (see kernels.h), extra (3 bits each), codes, far exponents
 *
 * SPDX-License-Identifier: MIT */
#include "codec/walk.h"

#include <stdatomic.h>
#include <string.h>

/* What plan->found holds. */
enum { FOUND_MASKED };

/* A chunk, and what is made of it, fit the nearest cache. */
#define CHUNK 2048

/* Smaller tensors are declined. A tenth to a quarter of the bytes would be saved, for which the source
 * is read four times (all of its chunks are samples): 3 us for 8 KiB. A network has many layer norms,
 * whose statistics cost more time so than their memory is worth. */
#define LEAST_BYTES (64u << 10)

/* What a kernel may write behind the elements that it packs. */
#define SLACK 64

/* Elements of a chunk that are looked at to choose its exponents, and chunks of a tensor that are
 * looked at before all are. */
#define SAMPLE_ELEMENTS 256
#define SAMPLE_CHUNKS   16

/* Zeros are held as a mask if there is one among so many elements: a zero costs about 3 or 4 bytes as
 * an element, a bit of the mask is paid by all. */
#define ZERO_AMONG 16

struct entry {
    uint64_t at;   /* bytes from the first record */
    uint16_t kept; /* elements in the record */
    uint16_t far;  /* exponents held apart */
    uint8_t top;
    uint8_t bits; /* of a code, 1..8 */
    uint8_t unused[2];
};

struct exponent {
    const struct mesa_plan *plan;
    const struct mesa_source *source; /* encode */
    enum mesa_dtype dtype;
    size_t element_bytes, chunks;
    bool masked;
    struct entry *entries; /* encode */
    uint8_t *records;      /* encode */
    size_t most;
    atomic_size_t bytes;
    const void *held; /* decode */
    char *elements;   /* decode */
};

/* One chunk on its way. */
struct chunk {
    size_t n, kept; /* elements: all, in the record */
    const void *elements;
    uint8_t mask[CHUNK / 8];
    _Alignas(64) unsigned char gathered[CHUNK * 4];
    _Alignas(64) unsigned char packed[CHUNK * 4 + SLACK];
};

static size_t entries_bytes(size_t chunks) {
    return mesa_round_to_line(chunks * sizeof(struct entry));
}

static size_t most_bytes(const struct mesa_plan *plan) {
    size_t bytes = plan->elements * mesa_dtype_bytes(plan->dtype);
    return bytes - mesa_divide_up(bytes, 10);
}

static size_t exponent_bound_bytes(const struct mesa_plan *plan) {
    if (plan->dtype != MESA_F32 && plan->dtype != MESA_BF16 && plan->dtype != MESA_F16)
        return 0;
    if (plan->elements * mesa_dtype_bytes(plan->dtype) < LEAST_BYTES)
        return 0;
    size_t most = most_bytes(plan);
    return entries_bytes(mesa_divide_up(plan->elements, CHUNK)) <= most ? most : 0;
}

/* ---- the parts of a record --------------------------------------------------------------------- */

struct record {
    size_t rest_at, extra_at, codes_at, far_at, bytes;
};

static struct record lay_out(const struct exponent *job, const struct entry *entry, size_t n) {
    struct record record;
    size_t kept = entry->kept;
    record.rest_at = job->masked ? mesa_divide_up(n, 8) : 0;
    record.extra_at = record.rest_at + kept * (job->dtype == MESA_F32 ? 3 : 1);
    record.codes_at = record.extra_at + (job->dtype == MESA_F16 ? mesa_code_row_bytes(kept, 3) : 0);
    record.far_at = record.codes_at + mesa_code_row_bytes(kept, entry->bits);
    record.bytes = record.far_at + entry->far;
    return record;
}

static uint8_t escape_of(const struct entry *entry) {
    return (uint8_t)((1u << entry->bits) - 1);
}

static size_t chunk_elements(const struct exponent *job, size_t index) {
    return mesa_smaller(CHUNK, job->plan->elements - index * CHUNK);
}

/* ---- encoding ---------------------------------------------------------------------------------- */

static void load_chunk(const struct exponent *job, size_t index, bool masked,
                       struct chunk *ret_chunk) {
    size_t begin = index * CHUNK;
    ret_chunk->n = chunk_elements(job, index);
    ret_chunk->kept = ret_chunk->n;
    ret_chunk->elements =
        mesa_source_window(job->source, begin, begin + ret_chunk->n, ret_chunk->gathered);
    if (!masked)
        return;
    ret_chunk->kept = mesa_kernels.sparse_compress[mesa_log2_bytes(job->element_bytes)](
        ret_chunk->elements, ret_chunk->n, ret_chunk->n, ret_chunk->mask, ret_chunk->packed);
    ret_chunk->elements = ret_chunk->packed;
}

static uint8_t exponent_at(const struct exponent *job, const struct chunk *chunk, size_t i) {
    const char *element = (const char *)chunk->elements + i * job->element_bytes;
    uint32_t wide;
    uint16_t half;
    if (job->dtype == MESA_F32) {
        memcpy(&wide, element, sizeof wide);
        return (uint8_t)(wide >> 23);
    }
    memcpy(&half, element, sizeof half);
    return (uint8_t)(job->dtype == MESA_BF16 ? half >> 7 : half >> 10 & 0x1f);
}

struct histogram {
    unsigned lowest, highest; /* exponents that occur */
    unsigned count;
    uint16_t of[256];
};

static void count_exponents(const struct exponent *job, const struct chunk *chunk,
                            struct histogram *ret_histogram) {
    struct histogram histogram = {.lowest = 255};
    size_t step = mesa_divide_up(chunk->kept, SAMPLE_ELEMENTS);
    for (size_t i = 0; i < chunk->kept; i += step) {
        unsigned exponent = exponent_at(job, chunk, i);
        histogram.of[exponent]++;
        histogram.count++;
        histogram.lowest = exponent < histogram.lowest ? exponent : histogram.lowest;
        histogram.highest = exponent > histogram.highest ? exponent : histogram.highest;
    }
    *ret_histogram = histogram;
}

/* The run of `length` exponents with the most elements: its top. */
static unsigned best_run(const struct histogram *histogram, unsigned length, unsigned *ret_inside) {
    unsigned inside = 0, most = 0, best = histogram->highest;
    for (unsigned top = histogram->lowest; top <= histogram->highest; top++) {
        inside += histogram->of[top];
        if (top >= histogram->lowest + length)
            inside -= histogram->of[top - length];
        if (inside >= most) {
            most = inside;
            best = top;
        }
    }
    *ret_inside = most;
    return best;
}

/* Width of codes and their top exponent, by the bits that the sample would take. */
static void choose_codes(const struct exponent *job, const struct chunk *chunk,
                         struct entry *entry) {
    struct histogram histogram;
    count_exponents(job, chunk, &histogram);
    unsigned least = UINT32_MAX;
    entry->bits = 1;
    entry->top = 0;
    for (unsigned bits = 1; bits <= 8 && histogram.count > 0; bits++) {
        unsigned inside, length = (1u << bits) - 1;
        unsigned top = best_run(&histogram, length, &inside);
        unsigned cost = histogram.count * bits + (histogram.count - inside) * 8;
        if (cost < least) {
            least = cost;
            entry->bits = (uint8_t)bits;
            entry->top = (uint8_t)top;
        }
        if (inside == histogram.count)
            break;
    }
}

static struct entry measure(const struct exponent *job, const struct chunk *chunk) {
    struct entry entry = {.kept = (uint16_t)chunk->kept};
    choose_codes(job, chunk, &entry);
    entry.far = (uint16_t)mesa_kernels.exponent_count_far[job->dtype](chunk->elements, chunk->kept,
                                                                      entry.top, escape_of(&entry));
    return entry;
}

static void measure_chunks(void *context, size_t begin, size_t end) {
    struct exponent *job = context;
    struct chunk chunk;
    for (size_t index = begin; index < end; index++) {
        load_chunk(job, index, job->masked, &chunk);
        struct entry entry = measure(job, &chunk);
        size_t bytes = lay_out(job, &entry, chunk.n).bytes;
        job->entries[index] = entry;
        if (atomic_fetch_add_explicit(&job->bytes, bytes, memory_order_relaxed) + bytes > job->most)
            return;
    }
}

static void encode_chunks(void *context, size_t begin, size_t end) {
    const struct exponent *job = context;
    struct chunk chunk;
    uint8_t exponents[CHUNK], codes[CHUNK], extra[CHUNK], far[CHUNK + SLACK];
    for (size_t index = begin; index < end; index++) {
        const struct entry *entry = &job->entries[index];
        load_chunk(job, index, job->masked, &chunk);
        struct record record = lay_out(job, entry, chunk.n);
        uint8_t *at = job->records + entry->at;
        memcpy(at, chunk.mask, record.rest_at);
        mesa_kernels.exponent_split[job->dtype](chunk.elements, chunk.kept, exponents,
                                                at + record.rest_at, extra);
        if (job->dtype == MESA_F16)
            mesa_kernels.pack_bits(extra, chunk.kept, 3, at + record.extra_at);
        mesa_kernels.exponent_fold(exponents, chunk.kept, entry->top, escape_of(entry), codes, far);
        mesa_kernels.pack_bits(codes, chunk.kept, entry->bits, at + record.codes_at);
        memcpy(at + record.far_at, far, entry->far);
    }
}

/* Whether a mask pays, and whether the tensor as a whole can, from some of its chunks. */
static bool is_worth_it(struct exponent *job) {
    size_t step = mesa_divide_up(job->chunks, SAMPLE_CHUNKS);
    size_t seen = 0, zeros = 0, bytes = 0;
    struct chunk chunk;
    for (size_t index = 0; index < job->chunks; index += step) {
        load_chunk(job, index, true, &chunk);
        seen += chunk.n;
        zeros += chunk.n - chunk.kept;
    }
    job->masked = zeros > seen / ZERO_AMONG;
    for (size_t index = 0; index < job->chunks; index += step) {
        load_chunk(job, index, job->masked, &chunk);
        struct entry entry = measure(job, &chunk);
        bytes += lay_out(job, &entry, chunk.n).bytes;
    }
    return bytes < seen * job->element_bytes / 20 * 19; /* all chunks are added up later */
}

static struct exponent job_of(const struct mesa_plan *plan) {
    return (struct exponent){.plan = plan,
                             .dtype = plan->dtype,
                             .element_bytes = mesa_dtype_bytes(plan->dtype),
                             .chunks = mesa_divide_up(plan->elements, CHUNK)};
}

/* The source is read twice: the first time finds how long each record is, so that the held bytes are
 * in one piece without a buffer for the worst case. */
static enum mesa_status exponent_encode(struct mesa_plan *plan, const struct mesa_source *source,
                                        mesa_parallel_for *parallel, void *held,
                                        size_t *ret_bytes) {
    if (exponent_bound_bytes(plan) == 0)
        return MESA_DECLINED;
    struct exponent job = job_of(plan);
    size_t records_at = entries_bytes(job.chunks);
    job.source = source;
    job.entries = held;
    job.records = (uint8_t *)held + records_at;
    job.most = most_bytes(plan) - records_at;
    mesa_float_state state = mesa_float_state_enter();
    bool is_worth = is_worth_it(&job);
    mesa_float_state_leave(state);
    if (!is_worth)
        return MESA_DECLINED;
    mesa_walk_items(job.chunks, CHUNK * job.element_bytes, parallel, measure_chunks, &job);
    size_t total = atomic_load_explicit(&job.bytes, memory_order_relaxed);
    if (total > job.most)
        return MESA_DECLINED;

    uint64_t at = 0;
    for (size_t index = 0; index < job.chunks; index++) {
        job.entries[index].at = at;
        at += lay_out(&job, &job.entries[index], chunk_elements(&job, index)).bytes;
    }
    size_t entries_end = job.chunks * sizeof(struct entry);
    memset((uint8_t *)held + entries_end, 0, records_at - entries_end);
    mesa_walk_items(job.chunks, CHUNK * job.element_bytes, parallel, encode_chunks, &job);
    plan->found[FOUND_MASKED] = job.masked;
    *ret_bytes = records_at + total;
    return MESA_OK;
}

/* ---- decoding ---------------------------------------------------------------------------------- */

static void decode_chunks(void *context, size_t begin, size_t end) {
    const struct exponent *job = context;
    const struct entry *entries = job->held;
    const uint8_t *records = (const uint8_t *)job->held + entries_bytes(job->chunks);
    uint8_t exponents[CHUNK], codes[CHUNK], extra[CHUNK];
    _Alignas(64) unsigned char packed[CHUNK * 4];
    for (size_t index = begin; index < end; index++) {
        const struct entry *entry = &entries[index];
        size_t n = chunk_elements(job, index), kept = entry->kept;
        struct record record = lay_out(job, entry, n);
        const uint8_t *at = records + entry->at;
        void *dst = job->elements + index * CHUNK * job->element_bytes;
        mesa_kernels.unpack_bits(at + record.codes_at, kept, entry->bits, codes);
        mesa_kernels.exponent_unfold(codes, kept, entry->top, escape_of(entry), at + record.far_at,
                                     entry->far, exponents);
        if (job->dtype == MESA_F16)
            mesa_kernels.unpack_bits(at + record.extra_at, kept, 3, extra);
        mesa_kernels.exponent_join[job->dtype](exponents, at + record.rest_at, extra, kept,
                                               job->masked ? packed : dst);
        if (job->masked)
            mesa_kernels.sparse_expand[mesa_log2_bytes(job->element_bytes)](at, n, packed, dst);
    }
}

static void exponent_decode(const struct mesa_plan *plan, const void *held,
                            mesa_parallel_for *parallel, void *ret_elements) {
    struct exponent job = job_of(plan);
    job.masked = plan->found[FOUND_MASKED] != 0;
    job.held = held;
    job.elements = ret_elements;
    mesa_walk_items(job.chunks, CHUNK * job.element_bytes, parallel, decode_chunks, &job);
}

const struct mesa_codec mesa_codec_exponent = {
    .name = "exponent",
    .exact = true,
    .bound_bytes = exponent_bound_bytes,
    .encode = exponent_encode,
    .decode = exponent_decode,
};
