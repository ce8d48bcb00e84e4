/* Integers in fewer bytes, short floats and finiteness with AVX-512. Integers of 1 and 2 bytes stay
 * with the scalar entries: nothing that is worth narrowing comes in them. Equals number_scalar.c
 * byte for byte.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/avx512.h"
#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"
#include "codec/kernels/number_entries.h"

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

MESA_ALWAYS_INLINE void narrow(size_t from, const void *src, size_t n, int64_t lo, unsigned bytes,
                               void *ret_dst) {
    if (bytes == 1)
        narrow_to(from, 1, src, n, lo, ret_dst);
    else if (bytes == 2)
        narrow_to(from, 2, src, n, lo, ret_dst);
    else
        narrow_to(from, 4, src, n, lo, ret_dst);
}

MESA_ALWAYS_INLINE void widen(size_t to, const void *src, size_t n, int64_t lo, unsigned bytes,
                              void *ret_dst) {
    if (bytes == 1)
        widen_from(1, to, src, n, lo, ret_dst);
    else if (bytes == 2)
        widen_from(2, to, src, n, lo, ret_dst);
    else
        widen_from(4, to, src, n, lo, ret_dst);
}

/* ---- short floats ------------------------------------------------------------------------------ */

static void float_to_bf16(const float *src, size_t n, uint16_t *ret_dst) {
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 lanes = first16(n - i);
        __m512 x = _mm512_maskz_loadu_ps(lanes, src + i);
        _mm256_mask_storeu_epi16(ret_dst + i, lanes, bf16_round16(x));
    }
}

MESA_ALWAYS_INLINE void widen_short(enum mesa_dtype dtype, const uint16_t *src, size_t n,
                                    bool stream, float *ret_dst) {
    bool aligned = stream && (uintptr_t)ret_dst % 64 == 0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        store16(MESA_F32, ret_dst + i, 0xffff, load16(dtype, src + i, 0xffff), aligned);
    if (i < n) {
        __mmask16 lanes = first16(n - i);
        store16(MESA_F32, ret_dst + i, lanes, load16(dtype, src + i, lanes), false);
    }
    if (stream)
        _mm_sfence();
}

static void bf16_to_float(const uint16_t *src, size_t n, bool stream, float *ret_dst) {
    widen_short(MESA_BF16, src, n, stream, ret_dst);
}

static void f16_to_float(const uint16_t *src, size_t n, bool stream, float *ret_dst) {
    widen_short(MESA_F16, src, n, stream, ret_dst);
}

/* Looks for numbers that become infinite: from 65520 up, infinity itself excluded. */
static bool float_to_f16(const float *src, size_t n, uint16_t *ret_dst) {
    __mmask16 too_large = 0;
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 lanes = first16(n - i);
        __m512 x = _mm512_maskz_loadu_ps(lanes, src + i);
        __m512 magnitude = _mm512_abs_ps(x);
        too_large |= _mm512_mask_cmp_ps_mask(
            _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(65520.0f), _CMP_GE_OQ), magnitude,
            _mm512_set1_ps(INFINITY), _CMP_LT_OQ);
        _mm256_mask_storeu_epi16(ret_dst + i, lanes,
                                 _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    return too_large == 0;
}

/* ---- finiteness: not all bits of the exponent are set -------------------------------------------- */

MESA_ALWAYS_INLINE bool all_finite(enum mesa_dtype dtype, const void *src, size_t n) {
    const size_t bytes = element_bytes(dtype);
    __m512i exponent = dtype == MESA_F32    ? _mm512_set1_epi32(0x7f800000)
                       : dtype == MESA_F64  ? _mm512_set1_epi64(0x7ff0000000000000)
                       : dtype == MESA_BF16 ? _mm512_set1_epi16(0x7f80)
                                            : _mm512_set1_epi16(0x7c00);
    uint64_t found = 0;
    for (size_t i = 0; i < n && found == 0; i += 64 / bytes) {
        size_t count = n - i;
        const void *at = element_at(dtype, src, i);
        __m512i x = count >= 64 / bytes ? _mm512_loadu_si512(at)
                                        : _mm512_maskz_loadu_epi8(first64(count * bytes), at);
        x = _mm512_and_si512(x, exponent);
        found = bytes == 4   ? _mm512_cmpeq_epi32_mask(x, exponent)
                : bytes == 8 ? _mm512_cmpeq_epi64_mask(x, exponent)
                             : _mm512_cmpeq_epi16_mask(x, exponent);
    }
    return found == 0;
}

/* ---- the entries ------------------------------------------------------------------------------- */

DEFINE_INTEGER_ENTRIES(4)
DEFINE_INTEGER_ENTRIES(8)
DEFINE_FINITE_ENTRY(f32, MESA_F32)
DEFINE_FINITE_ENTRY(bf16, MESA_BF16)
DEFINE_FINITE_ENTRY(f16, MESA_F16)
DEFINE_FINITE_ENTRY(f64, MESA_F64)

void mesa_kernels_fill_number_avx512(struct mesa_kernels *table) {
    SET_INTEGER_ENTRIES(table, 2, 4);
    SET_INTEGER_ENTRIES(table, 3, 8);
    table->float_to_bf16 = float_to_bf16;
    table->bf16_to_float = bf16_to_float;
    table->float_to_f16 = float_to_f16;
    table->f16_to_float = f16_to_float;
    table->all_finite[MESA_F32] = all_finite_f32;
    table->all_finite[MESA_BF16] = all_finite_bf16;
    table->all_finite[MESA_F16] = all_finite_f16;
    table->all_finite[MESA_F64] = all_finite_f64;
}
