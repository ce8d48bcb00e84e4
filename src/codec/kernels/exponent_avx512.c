/* Exponents of floats apart from their other bits, with AVX-512: 64 exponents fold at once. Equals
 * exponent_scalar.c byte for byte.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/avx512.h"
#include "codec/kernels/exponent.h"
#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"

/* Compresses in a register and stores whole vectors: compressing stores are slow on some processors,
 * and ret_far has the room. */
static size_t fold(const uint8_t *exponents, size_t n, uint8_t top, uint8_t escape,
                   uint8_t *ret_codes, uint8_t *ret_far) {
    const __m512i highest = _mm512_set1_epi8((char)top), most = _mm512_set1_epi8((char)escape);
    size_t far = 0;
    for (size_t i = 0; i < n; i += 64) {
        __mmask64 lanes = first64(n - i);
        __m512i x = _mm512_maskz_loadu_epi8(lanes, exponents + i);
        __m512i below = _mm512_sub_epi8(highest, x);
        __mmask64 is_far = _mm512_mask_cmpge_epu8_mask(lanes, below, most);
        _mm512_mask_storeu_epi8(ret_codes + i, lanes, _mm512_min_epu8(below, most));
        _mm512_storeu_si512(ret_far + far, _mm512_maskz_compress_epi8(is_far, x));
        far += (size_t)__builtin_popcountll(is_far);
    }
    return far;
}

static void unfold(const uint8_t *codes, size_t n, uint8_t top, uint8_t escape, const uint8_t *far,
                   size_t count, uint8_t *ret_exponents) {
    const __m512i highest = _mm512_set1_epi8((char)top), most = _mm512_set1_epi8((char)escape);
    size_t taken = 0;
    for (size_t i = 0; i < n; i += 64) {
        __mmask64 lanes = first64(n - i);
        __m512i x = _mm512_maskz_loadu_epi8(lanes, codes + i);
        __mmask64 is_far = _mm512_mask_cmpeq_epi8_mask(lanes, x, most);
        __m512i next = _mm512_maskz_loadu_epi8(first64(count - taken), far + taken);
        x = _mm512_mask_expand_epi8(_mm512_sub_epi8(highest, x), is_far, next);
        _mm512_mask_storeu_epi8(ret_exponents + i, lanes, x);
        taken += (size_t)__builtin_popcountll(is_far);
    }
}

EXPONENT_DTYPES(DEFINE_EXPONENT_ENTRIES)

void mesa_kernels_fill_exponent_avx512(struct mesa_kernels *table) {
    EXPONENT_DTYPES(SET_EXPONENT_ENTRIES)
    table->exponent_fold = fold;
    table->exponent_unfold = unfold;
}
