/* Integers in fewer bytes, short floats and finiteness with AVX-512. Integers of 1 and 2 bytes stay
 * with the scalar entries: nothing that is worth narrowing comes in them. Equals number_scalar.c
 * byte for byte.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/avx512.h"

#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"
#include "codec/kernels/number_tmpl.h"

/* ---- integers of 4 and 8 bytes ----------------------------------------------------------------- */

MESA_ALWAYS_INLINE __m512i load_integers(size_t bytes, const void *src, __mmask16 lanes) {
    return bytes == 4 ? _mm512_maskz_loadu_epi32(lanes, src)
                      : _mm512_maskz_loadu_epi64((__mmask8)lanes, src);
}

MESA_ALWAYS_INLINE void store_integers(size_t bytes, void *dst, __mmask16 lanes, __m512i values) {
    if (bytes == 4)
        _mm512_mask_storeu_epi32(dst, lanes, values);
    else
        _mm512_mask_storeu_epi64(dst, (__mmask8)lanes, values);
}

MESA_ALWAYS_INLINE __m512i broadcast_integer(size_t bytes, int64_t value) {
    return bytes == 4 ? _mm512_set1_epi32((int32_t)value) : _mm512_set1_epi64(value);
}

MESA_ALWAYS_INLINE __mmask16 integer_lanes(size_t bytes, size_t n) {
    return bytes == 4 ? first16(n) : first8(n);
}

MESA_ALWAYS_INLINE void integer_range(size_t bytes, const void *src, size_t n, int64_t *ret_lo,
                                      int64_t *ret_hi) {
    __m512i lo = broadcast_integer(bytes, bytes == 4 ? INT32_MAX : INT64_MAX);
    __m512i hi = broadcast_integer(bytes, bytes == 4 ? INT32_MIN : INT64_MIN);
    for (size_t i = 0; i < n; i += 64 / bytes) {
        __mmask16 lanes = integer_lanes(bytes, n - i);
        __m512i x = load_integers(bytes, (const char *)src + i * bytes, lanes);
        if (bytes == 4) {
            lo = _mm512_mask_min_epi32(lo, lanes, lo, x);
            hi = _mm512_mask_max_epi32(hi, lanes, hi, x);
        } else {
            lo = _mm512_mask_min_epi64(lo, (__mmask8)lanes, lo, x);
            hi = _mm512_mask_max_epi64(hi, (__mmask8)lanes, hi, x);
        }
    }
    *ret_lo = bytes == 4 ? _mm512_reduce_min_epi32(lo) : _mm512_reduce_min_epi64(lo);
    *ret_hi = bytes == 4 ? _mm512_reduce_max_epi32(hi) : _mm512_reduce_max_epi64(hi);
}

/* The low `to` bytes of each integer, one after the other. */
MESA_ALWAYS_INLINE void store_narrow(size_t from, size_t to, void *dst, __mmask16 lanes,
                                     __m512i x) {
    if (from == to)
        store_integers(from, dst, lanes, x);
    else if (from == 4 && to == 2)
        _mm256_mask_storeu_epi16(dst, lanes, _mm512_cvtepi32_epi16(x));
    else if (from == 4)
        _mm_mask_storeu_epi8(dst, lanes, _mm512_cvtepi32_epi8(x));
    else if (to == 4)
        _mm256_mask_storeu_epi32(dst, (__mmask8)lanes, _mm512_cvtepi64_epi32(x));
    else if (to == 2)
        _mm_mask_storeu_epi16(dst, (__mmask8)lanes, _mm512_cvtepi64_epi16(x));
    else
        _mm_mask_storeu_epi8(dst, lanes, _mm512_cvtepi64_epi8(x));
}

MESA_ALWAYS_INLINE __m512i load_wide(size_t from, size_t to, const void *src, __mmask16 lanes) {
    if (from == to)
        return load_integers(from, src, lanes);
    if (to == 4)
        return from == 2 ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, src))
                         : _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes, src));
    if (from == 4)
        return _mm512_cvtepu32_epi64(_mm256_maskz_loadu_epi32((__mmask8)lanes, src));
    return from == 2 ? _mm512_cvtepu16_epi64(_mm_maskz_loadu_epi16((__mmask8)lanes, src))
                     : _mm512_cvtepu8_epi64(_mm_maskz_loadu_epi8(lanes, src));
}

MESA_ALWAYS_INLINE void narrow_to(size_t from, size_t to, const void *src, size_t n, int64_t lo,
                                  void *ret_dst) {
    __m512i offset = broadcast_integer(from, lo);
    for (size_t i = 0; i < n; i += 64 / from) {
        __mmask16 lanes = integer_lanes(from, n - i);
        __m512i x = load_integers(from, (const char *)src + i * from, lanes);
        x = from == 4 ? _mm512_sub_epi32(x, offset) : _mm512_sub_epi64(x, offset);
        store_narrow(from, to, (char *)ret_dst + i * to, lanes, x);
    }
}

MESA_ALWAYS_INLINE void widen_from(size_t from, size_t to, const void *src, size_t n, int64_t lo,
                                   void *ret_dst) {
    __m512i offset = broadcast_integer(to, lo);
    for (size_t i = 0; i < n; i += 64 / to) {
        __mmask16 lanes = integer_lanes(to, n - i);
        __m512i x = load_wide(from, to, (const char *)src + i * from, lanes);
        x = to == 4 ? _mm512_add_epi32(x, offset) : _mm512_add_epi64(x, offset);
        store_integers(to, (char *)ret_dst + i * to, lanes, x);
    }
}

/* ---- the entries ------------------------------------------------------------------------------- */

DEFINE_INTEGER_ENTRIES(4)
DEFINE_INTEGER_ENTRIES(8)

void mesa_kernels_fill_number_avx512(struct mesa_kernels *table) {
    fill_common_entries(table);
    SET_INTEGER_ENTRIES(table, 2, 4);
    SET_INTEGER_ENTRIES(table, 3, 8);
}
