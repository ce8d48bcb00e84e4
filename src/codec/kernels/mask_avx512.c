/* Masks, signs and sparse runs with AVX-512, whose comparisons give bits at once. Equals
 * mask_scalar.c byte for byte.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/avx512.h"
#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"
#include "codec/kernels/mask_entries.h"
#include "codec/kernels/predicate.h"

/* Bits of n <= 64 elements, spare ones 0, to their (n + 7) / 8 bytes of the mask. */
MESA_ALWAYS_INLINE void store_mask(uint8_t *mask, uint64_t bits, size_t n) {
    if (n >= 64)
        memcpy(mask, &bits, sizeof bits);
    else
        memcpy(mask, &bits, (n + 7) / 8);
}

MESA_ALWAYS_INLINE uint64_t load_mask(const uint8_t *mask, size_t n) {
    uint64_t bits = 0;
    if (n >= 64)
        memcpy(&bits, mask, sizeof bits);
    else
        memcpy(&bits, mask, (n + 7) / 8);
    return bits & first64(n);
}

/* ---- bool ------------------------------------------------------------------------------------ */

static void pack_bool(const uint8_t *src, size_t n, uint8_t *ret_mask) {
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        __m512i x = _mm512_loadu_si512(src + i);
        store_mask(ret_mask + i / 8, _mm512_test_epi8_mask(x, x), 64);
    }
    if (i < n) {
        __m512i x = _mm512_maskz_loadu_epi8(first64(n - i), src + i);
        store_mask(ret_mask + i / 8, _mm512_test_epi8_mask(x, x), n - i);
    }
}

static void unpack_bool(const uint8_t *mask, size_t n, uint8_t *ret_dst) {
    size_t i = 0;
    for (; i + 64 <= n; i += 64)
        _mm512_storeu_si512(ret_dst + i, _mm512_maskz_set1_epi8(load_mask(mask + i / 8, 64), 1));
    if (i < n)
        _mm512_mask_storeu_epi8(ret_dst + i, first64(n - i),
                                _mm512_maskz_set1_epi8(load_mask(mask + i / 8, n - i), 1));
}

/* ---- predicates of reals ----------------------------------------------------------------------- */

/* Bounds in both widths: float32 ones answer as the float64 ones do (predicate.h). */
struct bounds {
    __m512d lo, hi;
    __m512 lo_below, lo_above, hi_below, hi_above;
};

MESA_ALWAYS_INLINE struct bounds bounds_of(double lo, double hi) {
    return (struct bounds){
        .lo = _mm512_set1_pd(lo),
        .hi = _mm512_set1_pd(hi),
        .lo_below = _mm512_set1_ps(float_below(lo)),
        .lo_above = _mm512_set1_ps(float_above(lo)),
        .hi_below = _mm512_set1_ps(float_below(hi)),
        .hi_above = _mm512_set1_ps(float_above(hi)),
    };
}

MESA_ALWAYS_INLINE __mmask16 holds16(enum mesa_predicate predicate, __m512 x, struct bounds b) {
    switch (predicate) {
    case MESA_ABOVE:
        return _mm512_cmp_ps_mask(x, b.lo_below, _CMP_NLE_UQ);
    case MESA_GREATER:
        return _mm512_cmp_ps_mask(x, b.lo_below, _CMP_GT_OQ);
    case MESA_BETWEEN:
        return _mm512_cmp_ps_mask(x, b.lo_below, _CMP_GT_OQ) &
               _mm512_cmp_ps_mask(x, b.hi_above, _CMP_LT_OQ);
    case MESA_WITHIN:
        return _mm512_cmp_ps_mask(x, b.lo_above, _CMP_GE_OQ) &
               _mm512_cmp_ps_mask(x, b.hi_below, _CMP_LE_OQ);
    case MESA_NONZERO:
    case MESA_PREDICATE_COUNT:
        break;
    }
    return _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NEQ_UQ);
}

MESA_ALWAYS_INLINE __mmask8 holds8(enum mesa_predicate predicate, __m512d x, struct bounds b) {
    switch (predicate) {
    case MESA_ABOVE:
        return _mm512_cmp_pd_mask(x, b.lo, _CMP_NLE_UQ);
    case MESA_GREATER:
        return _mm512_cmp_pd_mask(x, b.lo, _CMP_GT_OQ);
    case MESA_BETWEEN:
        return _mm512_cmp_pd_mask(x, b.lo, _CMP_GT_OQ) & _mm512_cmp_pd_mask(x, b.hi, _CMP_LT_OQ);
    case MESA_WITHIN:
        return _mm512_cmp_pd_mask(x, b.lo, _CMP_GE_OQ) & _mm512_cmp_pd_mask(x, b.hi, _CMP_LE_OQ);
    case MESA_NONZERO:
    case MESA_PREDICATE_COUNT:
        break;
    }
    return _mm512_cmp_pd_mask(x, _mm512_setzero_pd(), _CMP_NEQ_UQ);
}

MESA_ALWAYS_INLINE uint64_t predicate16(enum mesa_dtype dtype, enum mesa_predicate predicate,
                                        const void *src, __mmask16 lanes, struct bounds bounds) {
    if (dtype != MESA_F64)
        return lanes & holds16(predicate, load16(dtype, src, lanes), bounds);
    const double *from = src;
    __m512d low = _mm512_maskz_loadu_pd((__mmask8)lanes, from);
    __m512d high = _mm512_maskz_loadu_pd((__mmask8)(lanes >> 8), from + 8);
    return lanes &
           (holds8(predicate, low, bounds) | (unsigned)holds8(predicate, high, bounds) << 8);
}

MESA_ALWAYS_INLINE void pack_one_predicate(enum mesa_dtype dtype, enum mesa_predicate predicate,
                                           const void *src, size_t n, struct bounds bounds,
                                           uint8_t *ret_mask) {
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        uint64_t bits = 0;
        for (size_t j = 0; j < 64; j += 16)
            bits |= predicate16(dtype, predicate, element_at(dtype, src, i + j), 0xffff, bounds)
                    << j;
        store_mask(ret_mask + i / 8, bits, 64);
    }
    for (; i < n; i += 16) {
        __mmask16 lanes = first16(n - i);
        uint64_t bits = predicate16(dtype, predicate, element_at(dtype, src, i), lanes, bounds);
        store_mask(ret_mask + i / 8, bits, n - i < 16 ? n - i : 16);
    }
}

MESA_ALWAYS_INLINE void pack_predicate(enum mesa_dtype dtype, const void *src, size_t n,
                                       enum mesa_predicate predicate, double lo, double hi,
                                       uint8_t *ret_mask) {
    struct bounds bounds = bounds_of(lo, hi);
    if (predicate == MESA_ABOVE)
        pack_one_predicate(dtype, MESA_ABOVE, src, n, bounds, ret_mask);
    else if (predicate == MESA_GREATER)
        pack_one_predicate(dtype, MESA_GREATER, src, n, bounds, ret_mask);
    else if (predicate == MESA_BETWEEN)
        pack_one_predicate(dtype, MESA_BETWEEN, src, n, bounds, ret_mask);
    else if (predicate == MESA_WITHIN)
        pack_one_predicate(dtype, MESA_WITHIN, src, n, bounds, ret_mask);
    else
        pack_one_predicate(dtype, MESA_NONZERO, src, n, bounds, ret_mask);
}

/* ---- elements of 1, 2, 4 and 8 bytes as bits ---------------------------------------------------- */

MESA_ALWAYS_INLINE __m512i load_lanes(size_t bytes, const void *src, size_t n) {
    if (n >= 64 / bytes)
        return _mm512_loadu_si512(src);
    return _mm512_maskz_loadu_epi8(first64(n * bytes), src);
}

/* The first 64 / bytes elements at dst, or the first n if that is less. */
MESA_ALWAYS_INLINE void store_lanes(size_t bytes, void *dst, size_t n, __m512i values,
                                    bool stream) {
    if (n < 64 / bytes)
        _mm512_mask_storeu_epi8(dst, first64(n * bytes), values);
    else if (stream)
        _mm512_stream_si512(dst, values);
    else
        _mm512_storeu_si512(dst, values);
}

MESA_ALWAYS_INLINE __m512i broadcast(size_t bytes, const void *element) {
    int16_t half;
    int32_t word;
    int64_t longer;
    if (bytes == 2) {
        memcpy(&half, element, sizeof half);
        return _mm512_set1_epi16(half);
    }
    if (bytes == 4) {
        memcpy(&word, element, sizeof word);
        return _mm512_set1_epi32(word);
    }
    memcpy(&longer, element, sizeof longer);
    return _mm512_set1_epi64(longer);
}

MESA_ALWAYS_INLINE uint64_t equal_lanes(size_t bytes, __m512i a, __m512i b) {
    return bytes == 2   ? _mm512_cmpeq_epi16_mask(a, b)
           : bytes == 4 ? _mm512_cmpeq_epi32_mask(a, b)
                        : _mm512_cmpeq_epi64_mask(a, b);
}

MESA_ALWAYS_INLINE uint64_t nonzero_lanes(size_t bytes, __m512i a) {
    return bytes == 1   ? _mm512_test_epi8_mask(a, a)
           : bytes == 2 ? _mm512_test_epi16_mask(a, a)
           : bytes == 4 ? _mm512_test_epi32_mask(a, a)
                        : _mm512_test_epi64_mask(a, a);
}

/* The first n of a vector's elements; false if one is neither. */
MESA_ALWAYS_INLINE bool pack_two_block(size_t bytes, const char *from, size_t n, __m512i zeros,
                                       __m512i ones, uint8_t *to) {
    __m512i x = load_lanes(bytes, from, n);
    uint64_t is_one = equal_lanes(bytes, x, ones) & first64(n);
    uint64_t is_zero = equal_lanes(bytes, x, zeros);
    store_mask(to, is_one, n);
    return (~(is_one | is_zero) & first64(n)) == 0;
}

MESA_ALWAYS_INLINE bool pack_two(size_t bytes, const void *src, size_t n, const void *zero,
                                 const void *one, uint8_t *ret_mask) {
    const size_t lanes = 64 / bytes;
    const __m512i zeros = broadcast(bytes, zero), ones = broadcast(bytes, one);
    const char *from = src;
    size_t i = 0;
    for (; i + lanes <= n; i += lanes)
        if (!pack_two_block(bytes, from + i * bytes, lanes, zeros, ones, ret_mask + i / 8))
            return false;
    return i == n || pack_two_block(bytes, from + i * bytes, n - i, zeros, ones, ret_mask + i / 8);
}

MESA_ALWAYS_INLINE void unpack_two_block(size_t bytes, const uint8_t *mask, size_t n, __m512i zeros,
                                         __m512i ones, bool stream, char *to) {
    uint64_t bits = load_mask(mask, n);
    __m512i values = bytes == 2   ? _mm512_mask_mov_epi16(zeros, (__mmask32)bits, ones)
                     : bytes == 4 ? _mm512_mask_mov_epi32(zeros, (__mmask16)bits, ones)
                                  : _mm512_mask_mov_epi64(zeros, (__mmask8)bits, ones);
    store_lanes(bytes, to, n, values, stream);
}

MESA_ALWAYS_INLINE void unpack_two(size_t bytes, const uint8_t *mask, size_t n, const void *zero,
                                   const void *one, bool stream, void *ret_dst) {
    const size_t lanes = 64 / bytes;
    const __m512i zeros = broadcast(bytes, zero), ones = broadcast(bytes, one);
    bool aligned = stream && (uintptr_t)ret_dst % 64 == 0;
    char *to = ret_dst;
    size_t i = 0;
    for (; i + lanes <= n; i += lanes)
        unpack_two_block(bytes, mask + i / 8, lanes, zeros, ones, aligned, to + i * bytes);
    if (i < n)
        unpack_two_block(bytes, mask + i / 8, n - i, zeros, ones, false, to + i * bytes);
    if (stream)
        _mm_sfence();
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
    __m512i x = load_lanes(bytes, from, n);
    uint64_t present = nonzero_lanes(bytes, x);
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
    store_lanes(bytes, to, n, expand_lanes(bytes, present, x), false);
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

DEFINE_PREDICATE_ENTRY(f32, MESA_F32)
DEFINE_PREDICATE_ENTRY(bf16, MESA_BF16)
DEFINE_PREDICATE_ENTRY(f16, MESA_F16)
DEFINE_PREDICATE_ENTRY(f64, MESA_F64)
DEFINE_SIGN_ENTRIES(f32, MESA_F32)
DEFINE_SIGN_ENTRIES(bf16, MESA_BF16)
DEFINE_SIGN_ENTRIES(f16, MESA_F16)
DEFINE_SIGN_ENTRIES(f64, MESA_F64)
DEFINE_TWO_ENTRIES(2)
DEFINE_TWO_ENTRIES(4)
DEFINE_TWO_ENTRIES(8)
DEFINE_SPARSE_ENTRIES(1)
DEFINE_SPARSE_ENTRIES(2)
DEFINE_SPARSE_ENTRIES(4)
DEFINE_SPARSE_ENTRIES(8)

void mesa_kernels_fill_mask_avx512(struct mesa_kernels *table) {
    table->mask_pack_bool = pack_bool;
    table->mask_unpack_bool = unpack_bool;
    table->mask_pack[MESA_F32] = pack_predicate_f32;
    table->mask_pack[MESA_BF16] = pack_predicate_bf16;
    table->mask_pack[MESA_F16] = pack_predicate_f16;
    table->mask_pack[MESA_F64] = pack_predicate_f64;
    SET_SIGN_ENTRIES(table, f32, MESA_F32);
    SET_SIGN_ENTRIES(table, bf16, MESA_BF16);
    SET_SIGN_ENTRIES(table, f16, MESA_F16);
    SET_SIGN_ENTRIES(table, f64, MESA_F64);
    SET_TWO_ENTRIES(table, 0, 2);
    SET_TWO_ENTRIES(table, 1, 4);
    SET_TWO_ENTRIES(table, 2, 8);
    SET_SPARSE_ENTRIES(table, 0, 1);
    SET_SPARSE_ENTRIES(table, 1, 2);
    SET_SPARSE_ENTRIES(table, 2, 4);
    SET_SPARSE_ENTRIES(table, 3, 8);
}
