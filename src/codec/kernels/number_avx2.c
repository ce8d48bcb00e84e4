/* Integers of 8 bytes in fewer bytes, short floats and finiteness with AVX2. Shorter integers stay
 * with the scalar entries. Equals number_scalar.c byte for byte.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/avx2.h"
#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"
#include "codec/kernels/number_entries.h"

/* ---- integers of 8 bytes ------------------------------------------------------------------------- */

MESA_ALWAYS_INLINE int64_t load_i64(const void *src, size_t i) {
    int64_t x;
    memcpy(&x, (const char *)src + i * sizeof x, sizeof x);
    return x;
}

MESA_ALWAYS_INLINE __m256i load4(const void *src, size_t i) {
    return _mm256_loadu_si256((const __m256i *)((const char *)src + i * 8));
}

MESA_ALWAYS_INLINE void integer_range(size_t bytes, const void *src, size_t n, int64_t *ret_lo,
                                      int64_t *ret_hi) {
    (void)bytes;
    __m256i lo[4], hi[4]; /* independent: a comparison and a choice take several cycles */
    for (size_t k = 0; k < 4; k++) {
        lo[k] = _mm256_set1_epi64x(INT64_MAX);
        hi[k] = _mm256_set1_epi64x(INT64_MIN);
    }
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (size_t k = 0; k < 4; k++) {
            __m256i x = load4(src, i + 4 * k);
            lo[k] = _mm256_blendv_epi8(lo[k], x, _mm256_cmpgt_epi64(lo[k], x));
            hi[k] = _mm256_blendv_epi8(hi[k], x, _mm256_cmpgt_epi64(x, hi[k]));
        }
    }
    int64_t least[16], most[16];
    for (size_t k = 0; k < 4; k++) {
        _mm256_storeu_si256((__m256i *)(least + 4 * k), lo[k]);
        _mm256_storeu_si256((__m256i *)(most + 4 * k), hi[k]);
    }
    for (size_t j = 1; j < 16; j++) {
        least[0] = least[j] < least[0] ? least[j] : least[0];
        most[0] = most[j] > most[0] ? most[j] : most[0];
    }
    for (; i < n; i++) {
        int64_t x = load_i64(src, i);
        least[0] = x < least[0] ? x : least[0];
        most[0] = x > most[0] ? x : most[0];
    }
    *ret_lo = least[0];
    *ret_hi = most[0];
}

/* The low halves of eight integers, in order. */
MESA_ALWAYS_INLINE __m256i low_halves(__m256i a, __m256i b) {
    __m256 even = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88);
    return _mm256_permute4x64_epi64(_mm256_castps_si256(even), 0xd8);
}

/* The low `to` bytes of each of eight 32-bit integers. */
MESA_ALWAYS_INLINE void store_low(size_t to, char *dst, __m256i x) {
    if (to == 4) {
        _mm256_storeu_si256((__m256i *)dst, x);
        return;
    }
    x = _mm256_and_si256(x, _mm256_set1_epi32(to == 2 ? 0xffff : 0xff));
    __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    if (to == 2)
        _mm_storeu_si128((__m128i *)dst, halves);
    else
        _mm_storel_epi64((__m128i *)dst, _mm_packus_epi16(halves, halves));
}

MESA_ALWAYS_INLINE void narrow_to(size_t to, const void *src, size_t n, int64_t lo, char *ret_dst) {
    const __m256i offset = _mm256_set1_epi64x(lo);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i a = _mm256_sub_epi64(load4(src, i), offset);
        __m256i b = _mm256_sub_epi64(load4(src, i + 4), offset);
        store_low(to, ret_dst + i * to, low_halves(a, b));
    }
    for (; i < n; i++) {
        uint64_t x = (uint64_t)load_i64(src, i) - (uint64_t)lo; /* little endian */
        memcpy(ret_dst + i * to, &x, to);
    }
}

MESA_ALWAYS_INLINE void widen_from(size_t from, const char *src, size_t n, int64_t lo,
                                   char *ret_dst) {
    const __m256i offset = _mm256_set1_epi64x(lo);
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        int32_t four;
        __m256i x;
        if (from == 4) {
            x = _mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i *)(src + i * 4)));
        } else if (from == 2) {
            x = _mm256_cvtepu16_epi64(_mm_loadl_epi64((const __m128i *)(src + i * 2)));
        } else {
            memcpy(&four, src + i, sizeof four);
            x = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
        }
        _mm256_storeu_si256((__m256i *)(ret_dst + i * 8), _mm256_add_epi64(x, offset));
    }
    for (; i < n; i++) {
        uint64_t x = 0;
        memcpy(&x, src + i * from, from);
        x += (uint64_t)lo;
        memcpy(ret_dst + i * 8, &x, sizeof x);
    }
}

MESA_ALWAYS_INLINE void narrow(size_t from, const void *src, size_t n, int64_t lo, unsigned bytes,
                               void *ret_dst) {
    (void)from;
    if (bytes == 1)
        narrow_to(1, src, n, lo, ret_dst);
    else if (bytes == 2)
        narrow_to(2, src, n, lo, ret_dst);
    else
        narrow_to(4, src, n, lo, ret_dst);
}

MESA_ALWAYS_INLINE void widen(size_t to, const void *src, size_t n, int64_t lo, unsigned bytes,
                              void *ret_dst) {
    (void)to;
    if (bytes == 1)
        widen_from(1, src, n, lo, ret_dst);
    else if (bytes == 2)
        widen_from(2, src, n, lo, ret_dst);
    else
        widen_from(4, src, n, lo, ret_dst);
}

/* ---- short floats ------------------------------------------------------------------------------ */

static void float_to_bf16(const float *src, size_t n, uint16_t *ret_dst) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(ret_dst + i), bf16_round8(_mm256_loadu_ps(src + i)));
    for (; i < n; i++) {
        uint16_t half = bf16_round(element_load(MESA_F32, src, i));
        memcpy((char *)ret_dst + i * sizeof half, &half, sizeof half);
    }
}

MESA_ALWAYS_INLINE void widen_short(enum mesa_dtype dtype, const uint16_t *src, size_t n,
                                    bool stream, float *ret_dst) {
    bool aligned = stream && (uintptr_t)ret_dst % 32 == 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        store_floats(MESA_F32, ret_dst + i, load_floats(dtype, src + i), aligned);
    for (; i < n; i++)
        element_store(MESA_F32, ret_dst, i, element_load(dtype, src, i));
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
    __m256 too_large = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_loadu_ps(src + i);
        __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
        too_large = _mm256_or_ps(
            too_large,
            _mm256_and_ps(_mm256_cmp_ps(magnitude, _mm256_set1_ps(65520.0f), _CMP_GE_OQ),
                          _mm256_cmp_ps(magnitude, _mm256_set1_ps(INFINITY), _CMP_LT_OQ)));
        _mm_storeu_si128((__m128i *)(ret_dst + i), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
    bool fits = _mm256_movemask_ps(too_large) == 0;
    for (; i < n; i++) {
        float x = element_load(MESA_F32, src, i);
        uint16_t half = f16_round(x);
        fits = fits && (!isfinite(x) || isfinite(f16_widen(half)));
        memcpy((char *)ret_dst + i * sizeof half, &half, sizeof half);
    }
    return fits;
}

/* ---- finiteness: not all bits of the exponent are set -------------------------------------------- */

MESA_ALWAYS_INLINE bool all_finite(enum mesa_dtype dtype, const void *src, size_t n) {
    const size_t bytes = element_bytes(dtype), lanes = 32 / bytes;
    const __m256i exponent = dtype == MESA_F32    ? _mm256_set1_epi32(0x7f800000)
                             : dtype == MESA_F64  ? _mm256_set1_epi64x(0x7ff0000000000000)
                             : dtype == MESA_BF16 ? _mm256_set1_epi16(0x7f80)
                                                  : _mm256_set1_epi16(0x7c00);
    size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        const __m256i *at = element_at(dtype, src, i);
        __m256i x = _mm256_and_si256(_mm256_loadu_si256(at), exponent);
        __m256i found = bytes == 4   ? _mm256_cmpeq_epi32(x, exponent)
                        : bytes == 8 ? _mm256_cmpeq_epi64(x, exponent)
                                     : _mm256_cmpeq_epi16(x, exponent);
        if (!_mm256_testz_si256(found, found))
            return false;
    }
    for (; i < n; i++)
        if (!isfinite(element_load_double(dtype, src, i)))
            return false;
    return true;
}

/* ---- the entries ------------------------------------------------------------------------------- */

DEFINE_INTEGER_ENTRIES(8)
DEFINE_FINITE_ENTRY(f32, MESA_F32)
DEFINE_FINITE_ENTRY(bf16, MESA_BF16)
DEFINE_FINITE_ENTRY(f16, MESA_F16)
DEFINE_FINITE_ENTRY(f64, MESA_F64)

void mesa_kernels_fill_number_avx2(struct mesa_kernels *table) {
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
