/* From the range of a group to its word: where the grid of an affine code lies. The one idea: the
 * grid is s * integers, so 0 is always a grid point and rounding, being monotone, keeps signs; only
 * the window of 2^bits grid points that have a code is chosen, by its first index z.
 *
 * Vector files repeat these steps in lanes; every operation here is one of IEEE's basic ones.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/affine.h"

/* Steps of s that the range is divided into, given L = codes - 1.
 *
 * To nearest, a range of L steps spans at most L + 1 grid points wherever it lies: rint(a + L) is
 * rint(a) + L but for ties. Stochastic rounding reaches out to the grid points around both ends, one
 * more than that unless one end is 0. Strict signs want -1 and +1 within the window if both
 * signs occur, even where that end is nearer to 0. One bit leaves no step to give away: codes are
 * clipped then, towards 0 where there is one. */
static unsigned count_steps(float lo, float hi, unsigned last_code, bool strict_sign,
                            enum mesa_rounding rounding) {
    bool both_signs = lo < 0 && hi > 0;
    bool one_end_zero = lo == 0 || hi == 0;
    bool one_less = rounding == MESA_ROUND_STOCHASTIC ? !one_end_zero : strict_sign && both_signs;
    return one_less && last_code > 1 ? last_code - 1 : last_code;
}

uint32_t mesa_affine_word(float lo, float hi, unsigned bits, bool strict_sign,
                          enum mesa_rounding rounding) {
    unsigned last_code = (1u << bits) - 1;
    float magnitude = -lo > hi ? -lo : hi;
    if (magnitude == 0)
        return 0;
    if (strict_sign && last_code == 1 && lo < 0 && hi > 0)
        return MESA_GROUP_RAW; /* three signs do not fit two codes */

    float steps = (float)count_steps(lo, hi, last_code, strict_sign, rounding);
    float step = (hi - lo) / steps;
    float reach = magnitude / MESA_AFFINE_REACH;
    float scale = float_of_bits((float_bits(step > reach ? step : reach) + 0xffffu) & 0xffff0000u);
    if (!(magnitude < MESA_AFFINE_MOST) || !(scale >= MESA_AFFINE_LEAST))
        return MESA_GROUP_RAW;

    float first = lo * (1.0f / scale);
    first = rounding == MESA_ROUND_STOCHASTIC && last_code > 1 ? floorf(first) : rintf(first);
    /* The window must reach what has to have a code above (0, or +1) and below (-1), also where the
     * two roundings of the line above went a hair too far. */
    float above = strict_sign && hi > 0 ? 1.0f : 0.0f;
    if (hi >= 0 && first < above - (float)last_code)
        first = above - (float)last_code;
    if (strict_sign && lo < 0 && first > -1)
        first = -1;
    return float_bits(scale) | (uint16_t)(int16_t)first;
}
