/* Masks one element at a time: its bit, and the comparison that may have made it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_PREDICATE_H
#define MESA_CODEC_KERNELS_PREDICATE_H

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

#endif
