/* Integers of 8 bytes in fewer bytes, short floats and finiteness with AVX2. Shorter integers stay
 * with the scalar entries. Equals number_scalar.c byte for byte.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/avx2.h"

#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"
#include "codec/kernels/number_tmpl.h"

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

MESA_ALWAYS_INLINE void narrow_to(size_t from, size_t to, const void *src, size_t n, int64_t lo,
                                  void *ret_dst) {
    (void)from;
    const __m256i offset = _mm256_set1_epi64x(lo);
    char *dst = ret_dst;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i a = _mm256_sub_epi64(load4(src, i), offset);
        __m256i b = _mm256_sub_epi64(load4(src, i + 4), offset);
        store_low(to, dst + i * to, low_halves(a, b));
    }
    for (; i < n; i++) {
        uint64_t x = (uint64_t)load_i64(src, i) - (uint64_t)lo; /* little endian */
        memcpy(dst + i * to, &x, to);
    }
}

MESA_ALWAYS_INLINE void widen_from(size_t from, size_t to, const void *src, size_t n, int64_t lo,
                                   void *ret_dst) {
    (void)to;
    const char *at = src;
    char *dst = ret_dst;
    const __m256i offset = _mm256_set1_epi64x(lo);
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        int32_t four;
        __m256i x;
        if (from == 4) {
            x = _mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i *)(at + i * 4)));
        } else if (from == 2) {
            x = _mm256_cvtepu16_epi64(_mm_loadl_epi64((const __m128i *)(at + i * 2)));
        } else {
            memcpy(&four, at + i, sizeof four);
            x = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
        }
        _mm256_storeu_si256((__m256i *)(dst + i * 8), _mm256_add_epi64(x, offset));
    }
    for (; i < n; i++) {
        uint64_t x = 0;
        memcpy(&x, at + i * from, from);
        x += (uint64_t)lo;
        memcpy(dst + i * 8, &x, sizeof x);
    }
}

/* ---- the entries ------------------------------------------------------------------------------- */

DEFINE_INTEGER_ENTRIES(8)

void mesa_kernels_fill_number_avx2(struct mesa_kernels *table) {
    fill_common_entries(table);
    SET_INTEGER_ENTRIES(table, 3, 8);
}
