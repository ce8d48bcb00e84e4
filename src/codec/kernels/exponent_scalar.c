/* Exponents of floats apart from their other bits: the specification of the exponent kernels.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/exponent.h"
#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"

/* Without branches: which exponents are far is as good as random. */
static size_t fold(const uint8_t *exponents, size_t n, uint8_t top, uint8_t escape,
                   uint8_t *ret_codes, uint8_t *ret_far) {
    size_t far = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t below = (uint8_t)(top - exponents[i]);
        bool is_far = below >= escape;
        ret_far[far] = exponents[i];
        far += is_far;
        ret_codes[i] = is_far ? escape : below;
    }
    return far;
}

static void unfold(const uint8_t *codes, size_t n, uint8_t top, uint8_t escape, const uint8_t *far,
                   size_t count, uint8_t *ret_exponents) {
    for (size_t i = 0; i < n; i++)
        ret_exponents[i] = (uint8_t)(top - codes[i]);
    size_t i = 0;
    for (size_t taken = 0; taken < count; taken++) {
        while (codes[i] != escape)
            i++;
        ret_exponents[i++] = far[taken];
    }
}

EXPONENT_DTYPES(DEFINE_EXPONENT_ENTRIES)

void mesa_kernels_fill_exponent_scalar(struct mesa_kernels *table) {
    EXPONENT_DTYPES(SET_EXPONENT_ENTRIES)
    table->exponent_fold = fold;
    table->exponent_unfold = unfold;
}
