/* Exponents of floats apart from their other bits, with AVX2: 32 exponents fold at once, and the few
 * that are far are picked out one by one. Equals exponent_scalar.c byte for byte.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/avx2.h"

#include "codec/kernels/exponent.h"
#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"

MESA_ALWAYS_INLINE uint32_t escaped(vcodes codes, size_t n, uint8_t escape) {
    uint32_t bits = (uint32_t)e_equal(1, codes, e_set(1, escape));
    return n >= BLOCK ? bits : bits & ((1u << n) - 1);
}

static size_t fold(const uint8_t *exponents, size_t n, uint8_t top, uint8_t escape,
                   uint8_t *ret_codes, uint8_t *ret_far) {
    size_t far = 0;
    for (size_t i = 0; i < n; i += BLOCK) {
        size_t count = n - i < BLOCK ? n - i : BLOCK;
        vcodes below = _mm256_sub_epi8(e_set(1, top), block_load(exponents + i, count));
        vcodes codes = _mm256_min_epu8(below, e_set(1, escape));
        block_store(ret_codes + i, codes, count);
        for (uint32_t bits = escaped(codes, count, escape); bits != 0; bits &= bits - 1)
            ret_far[far++] = exponents[i + (size_t)__builtin_ctz(bits)];
    }
    return far;
}

static void unfold(const uint8_t *codes, size_t n, uint8_t top, uint8_t escape, const uint8_t *far,
                   size_t count, uint8_t *ret_exponents) {
    size_t taken = 0;
    for (size_t i = 0; i < n; i += BLOCK) {
        size_t some = n - i < BLOCK ? n - i : BLOCK;
        vcodes x = block_load(codes + i, some);
        block_store(ret_exponents + i, _mm256_sub_epi8(e_set(1, top), x), some);
        if (taken == count)
            continue;
        for (uint32_t bits = escaped(x, some, escape); bits != 0; bits &= bits - 1)
            ret_exponents[i + (size_t)__builtin_ctz(bits)] = far[taken++];
    }
}

EXPONENT_DTYPES(DEFINE_EXPONENT_ENTRIES)

void mesa_kernels_fill_exponent_avx2(struct mesa_kernels *table) {
    EXPONENT_DTYPES(SET_EXPONENT_ENTRIES)
    table->exponent_fold = fold;
    table->exponent_unfold = unfold;
}
