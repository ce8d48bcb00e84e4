/* Tensors of at most two bit patterns, whatever they are (NaN and -0 too): the noise of dropout, masks
 * turned float, constants. One bit an element beside the two patterns, which are found in the data;
 * a constant takes no bits at all. Exact.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/walk.h"

#include <string.h>

/* What plan->found holds. */
enum { FOUND_ZERO, FOUND_ONE, FOUND_CONSTANT };

static size_t two_bound_bytes(const struct mesa_plan *plan) {
    size_t bytes = mesa_dtype_bytes(plan->dtype);
    return bytes >= 1 && bytes <= 8 ? mesa_divide_up(plan->elements, 8) : 0;
}

/* Elements that are looked at first: next to no tensor with more than two patterns hides them. */
#define GLANCE 64

static bool two_may_fit(const struct mesa_plan *plan, const struct mesa_source *source) {
    unsigned char scratch[GLANCE * 8];
    size_t bytes = mesa_dtype_bytes(plan->dtype), n = mesa_smaller(GLANCE, plan->elements);
    const char *first = mesa_source_window(source, 0, n, scratch);
    const char *other = first;
    for (size_t i = 1; i < n; i++) {
        const char *element = first + i * bytes;
        if (memcmp(element, first, bytes) == 0 || memcmp(element, other, bytes) == 0)
            continue;
        if (other != first)
            return false;
        other = element;
    }
    return true;
}

/* ---- single bytes, for which there is no kernel of their own: by way of booleans --------------- */

#define BYTES_AT_ONCE 1024

static bool pack_two_bytes(const uint8_t *src, size_t n, uint8_t zero, uint8_t one,
                           uint8_t *ret_mask) {
    uint8_t is_one[BYTES_AT_ONCE];
    for (size_t at = 0; at < n; at += BYTES_AT_ONCE) {
        size_t count = mesa_smaller(n - at, BYTES_AT_ONCE);
        bool neither = false;
        for (size_t i = 0; i < count; i++) {
            is_one[i] = src[at + i] == one;
            neither |= src[at + i] != one && src[at + i] != zero;
        }
        if (neither)
            return false;
        mesa_kernels.mask_pack_bool(is_one, count, ret_mask + at / 8);
    }
    return true;
}

static void unpack_two_bytes(const uint8_t *mask, size_t n, uint8_t zero, uint8_t one,
                             uint8_t *ret_dst) {
    mesa_kernels.mask_unpack_bool(mask, n, ret_dst);
    for (size_t i = 0; i < n; i++)
        ret_dst[i] = ret_dst[i] != 0 ? one : zero;
}

/* ---- the codec --------------------------------------------------------------------------------- */

struct two {
    size_t element_bytes;
    unsigned char zero[8], one[8];
    uint8_t *bits;       /* encode */
    const uint8_t *held; /* decode, as the rest; NULL for a constant */
    char *elements;
    bool stream;
};

/* Looks for the first element that differs from two->zero; false (stop) when it is found. */
static bool find_one(void *context, const void *elements, size_t first, size_t n) {
    (void)first;
    struct two *two = context;
    const char *at = elements;
    size_t bytes = two->element_bytes;
    /* All are alike if the first is as expected and each byte is that of one element before. */
    if (memcmp(at, two->zero, bytes) == 0 && memcmp(at, at + bytes, (n - 1) * bytes) == 0)
        return true;
    while (memcmp(at, two->zero, bytes) == 0)
        at += bytes;
    memcpy(two->one, at, bytes);
    return false;
}

static bool pack_window(void *context, const void *elements, size_t first, size_t n) {
    const struct two *two = context;
    uint8_t *bits = two->bits + first / 8;
    if (two->element_bytes == 1)
        return pack_two_bytes(elements, n, two->zero[0], two->one[0], bits);
    return mesa_kernels.mask_pack_two[mesa_log2_bytes(two->element_bytes) - 1](
        elements, n, two->zero, two->one, bits);
}

static enum mesa_status two_encode(struct mesa_plan *plan, const struct mesa_source *source,
                                   mesa_parallel_for *parallel, void *held, size_t *ret_bytes) {
    struct two two = {.element_bytes = mesa_dtype_bytes(plan->dtype), .bits = held};
    memcpy(two.zero, source->data, two.element_bytes);
    /* Serial: the first different element is wanted, and it comes early unless there is none. */
    bool constant = mesa_walk_source(source, NULL, find_one, &two);
    if (!constant && !mesa_walk_source(source, parallel, pack_window, &two))
        return MESA_DECLINED;
    if (constant)
        two.bits[0] = 0;
    memcpy(&plan->found[FOUND_ZERO], two.zero, sizeof two.zero);
    memcpy(&plan->found[FOUND_ONE], two.one, sizeof two.one);
    plan->found[FOUND_CONSTANT] = constant;
    *ret_bytes = constant ? 1 : mesa_divide_up(plan->elements, 8);
    return MESA_OK;
}

static void unpack_bits(const struct two *two, const uint8_t *bits, size_t n, char *elements) {
    if (two->element_bytes == 1)
        unpack_two_bytes(bits, n, two->zero[0], two->one[0], (uint8_t *)elements);
    else
        mesa_kernels.mask_unpack_two[mesa_log2_bytes(two->element_bytes) - 1](
            bits, n, two->zero, two->one, two->stream, elements);
}

static void unpack_elements(void *context, size_t begin, size_t end) {
    static const uint8_t no_bits[512];
    const struct two *two = context;
    char *elements = two->elements + begin * two->element_bytes;
    if (two->held != NULL) {
        unpack_bits(two, two->held + begin / 8, end - begin, elements);
        return;
    }
    for (size_t at = begin; at < end;) {
        size_t n = mesa_smaller(end - at, sizeof no_bits * 8);
        unpack_bits(two, no_bits, n, elements);
        elements += n * two->element_bytes;
        at += n;
    }
}

static void two_decode(const struct mesa_plan *plan, const void *held, mesa_parallel_for *parallel,
                       void *ret_elements) {
    struct two two = {
        .element_bytes = mesa_dtype_bytes(plan->dtype),
        .held = plan->found[FOUND_CONSTANT] != 0 ? NULL : held,
        .elements = ret_elements,
    };
    memcpy(two.zero, &plan->found[FOUND_ZERO], sizeof two.zero);
    memcpy(two.one, &plan->found[FOUND_ONE], sizeof two.one);
    two.stream = plan->elements * two.element_bytes > mesa_cache_bytes();
    mesa_walk_result(plan->elements, two.element_bytes, parallel, unpack_elements, &two);
}

const struct mesa_codec mesa_codec_two = {
    .name = "two",
    .exact = true,
    .bound_bytes = two_bound_bytes,
    .may_fit = two_may_fit,
    .encode = two_encode,
    .decode = two_decode,
};
