/* Signed integers in as many bits as their range needs: indices of pooling, embedding, gather. Held is
 * x - lo, in 1..8 bits or in 2 or 4 bytes. Exact.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/walk.h"

#include <stdatomic.h>

/* What plan->found holds. */
enum { FOUND_LO, FOUND_BITS };

/* Codes of up to 8 bits pass through a buffer of this many bytes. */
#define CODES_AT_ONCE 4096

/* Held bits of an element that is worth holding: one width below the dtype's own. */
static unsigned most_bits(enum mesa_dtype dtype) {
    size_t bits = mesa_dtype_bytes(dtype) * 8;
    return bits == 8 ? 7 : (unsigned)bits / 2;
}

/* 1..8, 16 or 32; 64 if the range needs more. */
static unsigned bits_for(uint64_t range) {
    unsigned bits = range == 0 ? 1 : 64 - (unsigned)__builtin_clzll(range);
    return bits <= 8 ? bits : bits <= 16 ? 16 : bits <= 32 ? 32 : 64;
}

static size_t narrow_bytes(size_t elements, unsigned bits) {
    return mesa_code_row_bytes(elements, bits);
}

static size_t narrow_bound_bytes(const struct mesa_plan *plan) {
    if (!mesa_dtype_is_signed_integer(plan->dtype))
        return 0;
    return narrow_bytes(plan->elements, most_bits(plan->dtype));
}

struct narrow {
    unsigned index; /* of the kernels */
    size_t element_bytes;
    unsigned bits;
    int64_t lo;
    uint8_t *codes;      /* encode */
    const uint8_t *held; /* decode */
    char *elements;      /* decode */
};

struct integer_range {
    unsigned index;
    _Atomic int64_t lo, hi;
};

static bool widen_range(void *context, const void *elements, size_t first, size_t n) {
    (void)first;
    struct integer_range *range = context;
    int64_t lo, hi;
    mesa_kernels.integer_range[range->index](elements, n, &lo, &hi);
    int64_t seen = atomic_load_explicit(&range->lo, memory_order_relaxed);
    while (lo < seen && !atomic_compare_exchange_weak(&range->lo, &seen, lo))
        ;
    seen = atomic_load_explicit(&range->hi, memory_order_relaxed);
    while (hi > seen && !atomic_compare_exchange_weak(&range->hi, &seen, hi))
        ;
    return true;
}

static bool narrow_window(void *context, const void *elements, size_t first, size_t n) {
    const struct narrow *job = context;
    if (job->bits >= 8) {
        unsigned bytes = job->bits / 8;
        mesa_kernels.integer_narrow[job->index](elements, n, job->lo, bytes,
                                                job->codes + first * bytes);
        return true;
    }
    uint8_t codes[CODES_AT_ONCE];
    for (size_t at = 0; at < n; at += CODES_AT_ONCE) {
        size_t count = mesa_smaller(n - at, CODES_AT_ONCE);
        mesa_kernels.integer_narrow[job->index]((const char *)elements + at * job->element_bytes,
                                                count, job->lo, 1, codes);
        mesa_kernels.pack_bits(codes, count, job->bits, job->codes + (first + at) / 8 * job->bits);
    }
    return true;
}

static enum mesa_status narrow_encode(struct mesa_plan *plan, const struct mesa_source *source,
                                      mesa_parallel_for *parallel, void *held, size_t *ret_bytes) {
    size_t element_bytes = mesa_dtype_bytes(plan->dtype);
    unsigned index = mesa_log2_bytes(element_bytes);
    struct integer_range range = {.index = index, .lo = INT64_MAX, .hi = INT64_MIN};
    mesa_walk_source(source, parallel, widen_range, &range);

    unsigned bits = bits_for((uint64_t)range.hi - (uint64_t)range.lo);
    if (bits > most_bits(plan->dtype))
        return MESA_DECLINED;
    struct narrow job = {.index = index,
                         .element_bytes = element_bytes,
                         .bits = bits,
                         .lo = range.lo,
                         .codes = held};
    mesa_walk_source(source, parallel, narrow_window, &job);
    plan->found[FOUND_LO] = (uint64_t)job.lo;
    plan->found[FOUND_BITS] = bits;
    *ret_bytes = narrow_bytes(plan->elements, bits);
    return MESA_OK;
}

static void widen_elements(void *context, size_t begin, size_t end) {
    const struct narrow *job = context;
    char *elements = job->elements + begin * job->element_bytes;
    if (job->bits >= 8) {
        unsigned bytes = job->bits / 8;
        mesa_kernels.integer_widen[job->index](job->held + begin * bytes, end - begin, job->lo,
                                               bytes, elements);
        return;
    }
    uint8_t codes[CODES_AT_ONCE];
    for (size_t at = begin; at < end; at += CODES_AT_ONCE) {
        size_t count = mesa_smaller(end - at, CODES_AT_ONCE);
        mesa_kernels.unpack_bits(job->held + at / 8 * job->bits, count, job->bits, codes);
        mesa_kernels.integer_widen[job->index](codes, count, job->lo, 1, elements);
        elements += count * job->element_bytes;
    }
}

static void narrow_decode(const struct mesa_plan *plan, const void *held,
                          mesa_parallel_for *parallel, void *ret_elements) {
    struct narrow job = {
        .element_bytes = mesa_dtype_bytes(plan->dtype),
        .bits = (unsigned)plan->found[FOUND_BITS],
        .lo = (int64_t)plan->found[FOUND_LO],
        .held = held,
        .elements = ret_elements,
    };
    job.index = mesa_log2_bytes(job.element_bytes);
    mesa_walk_result(plan->elements, job.element_bytes, parallel, widen_elements, &job);
}

const struct mesa_codec mesa_codec_narrow = {
    .name = "narrow",
    .exact = true,
    .bound_bytes = narrow_bound_bytes,
    .encode = narrow_encode,
    .decode = narrow_decode,
};
