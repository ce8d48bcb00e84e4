/* Comparisons of masks, brought to one form: an element passes if it lies between two bounds of its
 * own type, or if it lies outside or is NaN.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_PREDICATE_H
#define MESA_CODEC_KERNELS_PREDICATE_H

#include "codec/kernels/element.h"
#include "codec/kernels/kernels.h"

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
