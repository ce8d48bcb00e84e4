/* Masks, signs and sparse runs with AVX-512, whose comparisons give bits at once.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/avx512.h"

#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"
#include "codec/kernels/mask_tmpl.h"

/* ---- predicates of float64 --------------------------------------------------------------------- */

MESA_ALWAYS_INLINE __mmask8 holds8(enum mesa_predicate predicate, __m512d x, __m512d lo,
                                   __m512d hi) {
    switch (predicate) {
    case MESA_ABOVE:
        return _mm512_cmp_pd_mask(x, lo, _CMP_NLE_UQ);
    case MESA_GREATER:
        return _mm512_cmp_pd_mask(x, lo, _CMP_GT_OQ);
    case MESA_BETWEEN:
        return _mm512_cmp_pd_mask(x, lo, _CMP_GT_OQ) & _mm512_cmp_pd_mask(x, hi, _CMP_LT_OQ);
    case MESA_WITHIN:
        return _mm512_cmp_pd_mask(x, lo, _CMP_GE_OQ) & _mm512_cmp_pd_mask(x, hi, _CMP_LE_OQ);
    case MESA_NONZERO:
    case MESA_PREDICATE_COUNT:
        break;
    }
    return _mm512_cmp_pd_mask(x, _mm512_setzero_pd(), _CMP_NEQ_UQ);
}

static void pack_predicate_f64(const void *src, size_t n, enum mesa_predicate predicate, double lo,
                               double hi, uint8_t *ret_mask) {
    const __m512d lower = _mm512_set1_pd(lo), upper = _mm512_set1_pd(hi);
    for (size_t i = 0; i < n; i += 8) {
        __mmask8 lanes = first8(n - i);
        __m512d x = _mm512_maskz_loadu_pd(lanes, element_at(MESA_F64, src, i));
        ret_mask[i / 8] = lanes & holds8(predicate, x, lower, upper);
    }
}

/* ---- sparse ------------------------------------------------------------------------------------ */

/* Compresses to a register, then stores all of it: the form with a memory operand is slow on some
 * processors, and the caller has the slack. */
MESA_ALWAYS_INLINE __m512i compress_lanes(size_t bytes, uint64_t lanes, __m512i x) {
    return bytes == 1   ? _mm512_maskz_compress_epi8(lanes, x)
           : bytes == 2 ? _mm512_maskz_compress_epi16((__mmask32)lanes, x)
           : bytes == 4 ? _mm512_maskz_compress_epi32((__mmask16)lanes, x)
                        : _mm512_maskz_compress_epi64((__mmask8)lanes, x);
}

MESA_ALWAYS_INLINE __m512i expand_lanes(size_t bytes, uint64_t lanes, __m512i x) {
    return bytes == 1   ? _mm512_maskz_expand_epi8(lanes, x)
           : bytes == 2 ? _mm512_maskz_expand_epi16((__mmask32)lanes, x)
           : bytes == 4 ? _mm512_maskz_expand_epi32((__mmask16)lanes, x)
                        : _mm512_maskz_expand_epi64((__mmask8)lanes, x);
}

/* The first n of a vector's elements; false if they do not fit. */
MESA_ALWAYS_INLINE bool compress_block(size_t bytes, const char *from, size_t n, size_t most,
                                       uint8_t *mask, char *elements, size_t *count) {
    __m512i x = bytes_load(from, n * bytes);
    uint64_t present = ~e_equal(bytes, x, _mm512_setzero_si512()) & first_bits(64 / bytes);
    size_t more = (size_t)__builtin_popcountll(present);
    if (more > most - *count)
        return false;
    store_mask(mask, present, n);
    _mm512_storeu_si512(elements + *count * bytes, compress_lanes(bytes, present, x));
    *count += more;
    return true;
}

MESA_ALWAYS_INLINE size_t compress(size_t bytes, const void *src, size_t n, size_t most,
                                   uint8_t *ret_mask, void *ret_elements) {
    const size_t lanes = 64 / bytes;
    const char *from = src;
    size_t count = 0, i = 0;
    for (; i + lanes <= n; i += lanes)
        if (!compress_block(bytes, from + i * bytes, lanes, most, ret_mask + i / 8, ret_elements,
                            &count))
            return SIZE_MAX;
    if (i < n && !compress_block(bytes, from + i * bytes, n - i, most, ret_mask + i / 8,
                                 ret_elements, &count))
        return SIZE_MAX;
    return count;
}

/* Returns how many elements it took. */
MESA_ALWAYS_INLINE size_t expand_block(size_t bytes, const uint8_t *mask, size_t n,
                                       const char *elements, char *to) {
    uint64_t present = load_mask(mask, n);
    size_t count = (size_t)__builtin_popcountll(present);
    __m512i x = _mm512_maskz_loadu_epi8(first64(count * bytes), elements);
    bytes_store(to, expand_lanes(bytes, present, x), n * bytes, false);
    return count;
}

MESA_ALWAYS_INLINE size_t expand(size_t bytes, const uint8_t *mask, size_t n, const void *elements,
                                 void *ret_dst) {
    const size_t lanes = 64 / bytes;
    const char *from = elements;
    char *to = ret_dst;
    size_t count = 0, i = 0;
    for (; i + lanes <= n; i += lanes)
        count += expand_block(bytes, mask + i / 8, lanes, from + count * bytes, to + i * bytes);
    if (i < n)
        count += expand_block(bytes, mask + i / 8, n - i, from + count * bytes, to + i * bytes);
    return count;
}

/* ---- signs ------------------------------------------------------------------------------------- */

/* Sign codes of `lanes` of sixteen elements, a byte each: bit 0 "positive or NaN", bit 1 "negative
 * or NaN". A float64 is narrowed in a way that keeps its sign. */
MESA_ALWAYS_INLINE __m128i sign16(enum mesa_dtype dtype, const void *src, __mmask16 lanes) {
    __m512 x = load16(dtype, src, lanes);
    __mmask16 up = lanes & _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NLE_UQ);
    __mmask16 down = lanes & _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NGE_UQ);
    return _mm_or_si128(_mm_maskz_set1_epi8(up, 1), _mm_maskz_set1_epi8(down, 2));
}

MESA_ALWAYS_INLINE void pack_sign(enum mesa_dtype dtype, const void *src, size_t n,
                                  uint8_t *ret_codes) {
    for (size_t i = 0; i < n; i += 64) {
        size_t count = n - i < 64 ? n - i : 64;
        __m128i signs[4];
        for (size_t j = 0; j < 4; j++) {
            __mmask16 lanes = first16(count > j * 16 ? count - j * 16 : 0);
            signs[j] = sign16(dtype, element_at(dtype, src, i + j * 16), lanes);
        }
        __m512i codes = _mm512_inserti32x4(_mm512_castsi128_si512(signs[0]), signs[1], 1);
        codes = _mm512_inserti32x4(codes, signs[2], 2);
        codes = _mm512_inserti32x4(codes, signs[3], 3);
        store_packed(ret_codes + i / 4, codes, count, 2, false);
    }
}

MESA_ALWAYS_INLINE void unpack_sign(enum mesa_dtype dtype, const uint8_t *codes, size_t n,
                                    void *ret_dst) {
    const __m512 values = _mm512_broadcast_f32x4(_mm_setr_ps(0, 1, -1, NAN));
    for (size_t i = 0; i < n; i += 64) {
        size_t count = n - i < 64 ? n - i : 64;
        uint8_t bytes[64];
        _mm512_storeu_si512(bytes, load_packed(codes + i / 4, count, 2, 0));
        for (size_t j = 0; j < count; j += 16) {
            __m512i four = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(bytes + j)));
            store16(dtype, (char *)ret_dst + (i + j) * element_bytes(dtype), first16(count - j),
                    _mm512_permutexvar_ps(four, values), false);
        }
    }
}

/* ---- the entries ----------------------------------------------------------------------------- */

MASK_REALS(DEFINE_SIGN_ENTRIES)
MASK_SIZES(DEFINE_SPARSE_ENTRIES)

void mesa_kernels_fill_mask_avx512(struct mesa_kernels *table) {
    fill_common_entries(table);
    SET_PREDICATE_ENTRY(f64, MESA_F64)
    MASK_REALS(SET_SIGN_ENTRIES)
    MASK_SIZES(SET_SPARSE_ENTRIES)
}
