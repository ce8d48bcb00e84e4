/* Masks and sparse runs one element at a time. mask_scalar.c loops over these, the vector files end with
 * them.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_MASK_H
#define MESA_CODEC_KERNELS_MASK_H

#include "codec/kernels/element.h"
#include "codec/kernels/kernels.h"

MESA_ALWAYS_INLINE bool mask_bit(const uint8_t *mask, size_t i) {
    return mask[i / 8] >> (i % 8) & 1;
}

/* Bits come in order: the first of a byte clears the rest of it. */
MESA_ALWAYS_INLINE void mask_append(uint8_t *mask, size_t i, bool bit) {
    if (i % 8 == 0)
        mask[i / 8] = 0;
    mask[i / 8] = (uint8_t)(mask[i / 8] | (unsigned)bit << (i % 8));
}

MESA_ALWAYS_INLINE bool predicate_holds(enum mesa_predicate predicate, double x, double lo,
                                        double hi) {
    switch (predicate) {
    case MESA_ABOVE:
        return !(x <= lo);
    case MESA_GREATER:
        return x > lo;
    case MESA_BETWEEN:
        return lo < x && x < hi;
    case MESA_WITHIN:
        return lo <= x && x <= hi;
    case MESA_NONZERO:
    case MESA_PREDICATE_COUNT:
        break;
    }
    return x != 0;
}

/* The largest float32 not above a bound, the smallest not below it. For every float32 x, x <= bound
 * equals x <= float_below(bound), and x >= bound equals x >= float_above(bound), so a comparison
 * in float32 answers as one in float64 does. NaN stays NaN. */
MESA_ALWAYS_INLINE float float_below(double bound) {
    float near = (float)bound;
    return (double)near > bound ? nextafterf(near, -INFINITY) : near;
}

MESA_ALWAYS_INLINE float float_above(double bound) {
    float near = (float)bound;
    return (double)near < bound ? nextafterf(near, INFINITY) : near;
}

/* Elements i to n of a sparse run, of which *count are written; false once `most` do not suffice. */
MESA_ALWAYS_INLINE bool compress_elements(size_t bytes, const void *src, size_t i, size_t n,
                                          size_t most, uint8_t *mask, void *elements,
                                          size_t *count) {
    static const char zero[8];
    for (; i < n; i++) {
        const char *element = (const char *)src + i * bytes;
        bool present = memcmp(element, zero, bytes) != 0;
        mask_append(mask, i, present);
        if (!present)
            continue;
        if (*count == most)
            return false;
        memcpy((char *)elements + *count * bytes, element, bytes);
        ++*count;
    }
    return true;
}

/* Elements i to n; the next one is number `count`. Returns the number behind the last. */
MESA_ALWAYS_INLINE size_t expand_elements(size_t bytes, const uint8_t *mask, size_t i, size_t n,
                                          const void *elements, size_t count, void *dst) {
    for (; i < n; i++) {
        char *to = (char *)dst + i * bytes;
        if (mask_bit(mask, i))
            memcpy(to, (const char *)elements + count++ * bytes, bytes);
        else
            memset(to, 0, bytes);
    }
    return count;
}

#endif
