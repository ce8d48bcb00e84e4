/* Affine codes with AVX-512. A batch of groups is ranged, then all its words are found at once (a
 * lane for each group, since a division and its dependants take longer than the rest of a group),
 * then it is coded out of the first cache. Equals affine_scalar.c byte for byte.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/affine.h"
#include "codec/kernels/affine_entries.h"
#include "codec/kernels/avx512.h"
#include "codec/kernels/batch.h"
#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"

#define TO_NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define DOWN       (_MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)

/* The four vectors of a block stay in registers also where gcc would keep the loop. */
#define UNROLL_4 _Pragma("GCC unroll 4")

/* ---- range ----------------------------------------------------------------------------------- */

/* Least and most of what went in; `doubt` has bits set where an element was not finite (x - x is NaN
 * then, else +0), since minima and maxima alone would lose a NaN. */
struct extent {
    __m512 lo, hi, doubt;
};

MESA_ALWAYS_INLINE struct extent extent_start(void) {
    return (struct extent){_mm512_set1_ps(INFINITY), _mm512_set1_ps(-INFINITY),
                           _mm512_setzero_ps()};
}

MESA_ALWAYS_INLINE void extent_add(struct extent *extent, __m512 x, __mmask16 lanes) {
    extent->lo = _mm512_mask_min_ps(extent->lo, lanes, x, extent->lo);
    extent->hi = _mm512_mask_max_ps(extent->hi, lanes, x, extent->hi);
    extent->doubt = _mm512_or_ps(extent->doubt, _mm512_sub_ps(x, x));
}

MESA_ALWAYS_INLINE struct extent extent_join(struct extent a, struct extent b) {
    return (struct extent){_mm512_min_ps(a.lo, b.lo), _mm512_max_ps(a.hi, b.hi),
                           _mm512_or_ps(a.doubt, b.doubt)};
}

/* The 32 elements of bfloat16 of a vector: even ones, odd ones. */
MESA_ALWAYS_INLINE __m512 even_bf16(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

MESA_ALWAYS_INLINE __m512 odd_bf16(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

/* bfloat16 to integers of the same order, NaN outside infinity, and back: negative ones have their
 * lower bits flipped. */
MESA_ALWAYS_INLINE __m512i bf16_order(__m512i x) {
    __m512i flip = _mm512_and_si512(_mm512_srai_epi16(x, 15), _mm512_set1_epi16(0x7fff));
    return _mm512_xor_si512(x, flip);
}

/* The first n elements of bfloat16, n a multiple of 64: compared as integers, which takes a vector of
 * 32. */
MESA_ALWAYS_INLINE void extent_add_bf16(struct extent *extent, const void *src, size_t n) {
    __m512i lo[2] = {_mm512_set1_epi16(INT16_MAX), _mm512_set1_epi16(INT16_MAX)};
    __m512i hi[2] = {_mm512_set1_epi16(INT16_MIN), _mm512_set1_epi16(INT16_MIN)};
    for (size_t i = 0; i < n; i += 64) {
        for (size_t k = 0; k < 2; k++) {
            __m512i x = bf16_order(_mm512_loadu_si512(element_at(MESA_BF16, src, i + 32 * k)));
            lo[k] = _mm512_min_epi16(lo[k], x);
            hi[k] = _mm512_max_epi16(hi[k], x);
        }
    }
    if (n == 0)
        return;
    __m512i least = bf16_order(_mm512_min_epi16(lo[0], lo[1]));
    __m512i most = bf16_order(_mm512_max_epi16(hi[0], hi[1]));
    extent_add(extent, even_bf16(least), 0xffff);
    extent_add(extent, odd_bf16(least), 0xffff);
    extent_add(extent, even_bf16(most), 0xffff);
    extent_add(extent, odd_bf16(most), 0xffff);
}

/* Four independent accumulators, for the latency of the operations. */
MESA_ALWAYS_INLINE struct extent extent_of(enum mesa_dtype dtype, const void *src, size_t n) {
    struct extent parts[4] = {extent_start(), extent_start(), extent_start(), extent_start()};
    size_t i = 0;
    if (dtype == MESA_BF16) {
        i = n / 64 * 64;
        extent_add_bf16(&parts[0], src, i);
    }
    for (; i + 64 <= n; i += 64) {
        UNROLL_4
        for (size_t j = 0; j < 4; j++)
            extent_add(&parts[j], load16(dtype, element_at(dtype, src, i + j * 16), 0xffff),
                       0xffff);
    }
    for (; i < n; i += 16) {
        __mmask16 lanes = first16(n - i);
        extent_add(&parts[0], load16(dtype, element_at(dtype, src, i), lanes), lanes);
    }
    return extent_join(extent_join(parts[0], parts[1]), extent_join(parts[2], parts[3]));
}

MESA_ALWAYS_INLINE __mmask16 finite_lanes(__m512 doubt) {
    __m512i bits = _mm512_castps_si512(doubt);
    return _mm512_testn_epi32_mask(bits, bits);
}

MESA_ALWAYS_INLINE bool range(enum mesa_dtype dtype, const void *src, size_t n, float *lo,
                              float *hi) {
    struct extent extent = extent_of(dtype, src, n);
    extent.lo = _mm512_min_ps(extent.lo, _mm512_set1_ps(*lo));
    extent.hi = _mm512_max_ps(extent.hi, _mm512_set1_ps(*hi));
    *lo = _mm512_reduce_min_ps(extent.lo) + 0.0f;
    *hi = _mm512_reduce_max_ps(extent.hi) + 0.0f;
    return finite_lanes(extent.doubt) == 0xffff;
}

/* Sixteen vectors to one, whose lane g is the least (most) of vector g's: halves are joined with
 * neighbours level by level, a third of the steps of sixteen reductions. */
#define DEFINE_REDUCE16(name, least_of)                                                            \
    MESA_ALWAYS_INLINE __m512 name(const __m512 vectors[16]) {                                     \
        __m512 fours[4];                                                                           \
        for (int k = 0; k < 4; k++) {                                                              \
            const __m512 *v = vectors + 4 * k;                                                     \
            __m512 ab = least_of(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));  \
            __m512 cd = least_of(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));  \
            __m512d abd = _mm512_castps_pd(ab), cdd = _mm512_castps_pd(cd);                        \
            fours[k] = least_of(_mm512_castpd_ps(_mm512_unpacklo_pd(abd, cdd)),                    \
                                _mm512_castpd_ps(_mm512_unpackhi_pd(abd, cdd)));                   \
        }                                                                                          \
        __m512 low = least_of(_mm512_shuffle_f32x4(fours[0], fours[1], 0x88),                      \
                              _mm512_shuffle_f32x4(fours[0], fours[1], 0xdd));                     \
        __m512 high = least_of(_mm512_shuffle_f32x4(fours[2], fours[3], 0x88),                     \
                               _mm512_shuffle_f32x4(fours[2], fours[3], 0xdd));                    \
        return least_of(_mm512_shuffle_f32x4(low, high, 0x88),                                     \
                        _mm512_shuffle_f32x4(low, high, 0xdd));                                    \
    }

DEFINE_REDUCE16(least_of_each, _mm512_min_ps)
DEFINE_REDUCE16(most_of_each, _mm512_max_ps)
DEFINE_REDUCE16(union_of_each, _mm512_or_ps)

/* ---- words: mesa_affine_word() in sixteen lanes, step by step ---------------------------------- */

struct words {
    __m512i words, zero_points;
    __m512 inverse; /* of the scales */
};

static struct words words16(__m512 lo, __m512 hi, __mmask16 finite, unsigned bits, bool strict_sign,
                            enum mesa_rounding rounding) {
    const __m512 zero = _mm512_setzero_ps(), one = _mm512_set1_ps(1);
    const float last_code = (float)((1u << bits) - 1);
    bool one_bit = bits == 1, stochastic = rounding == MESA_ROUND_STOCHASTIC;

    __m512 magnitude = _mm512_max_ps(_mm512_sub_ps(zero, lo), hi);
    __mmask16 nothing = _mm512_mask_cmp_ps_mask(finite, magnitude, zero, _CMP_EQ_OQ);
    __mmask16 below = _mm512_cmp_ps_mask(lo, zero, _CMP_LT_OQ);
    __mmask16 above = _mm512_cmp_ps_mask(hi, zero, _CMP_GT_OQ);
    __mmask16 one_end_zero =
        _mm512_cmp_ps_mask(lo, zero, _CMP_EQ_OQ) | _mm512_cmp_ps_mask(hi, zero, _CMP_EQ_OQ);
    __mmask16 one_less = stochastic ? (__mmask16)~one_end_zero : strict_sign ? below & above : 0;

    __m512 steps = _mm512_set1_ps(last_code);
    if (!one_bit)
        steps = _mm512_mask_sub_ps(steps, one_less, steps, one);
    __m512 step = _mm512_div_ps(_mm512_sub_ps(hi, lo), steps);
    __m512 reach = _mm512_div_ps(magnitude, _mm512_set1_ps(MESA_AFFINE_REACH));
    __m512i scale_bits = _mm512_castps_si512(_mm512_max_ps(step, reach));
    scale_bits = _mm512_add_epi32(scale_bits, _mm512_set1_epi32(0xffff));
    scale_bits = _mm512_and_si512(scale_bits, _mm512_set1_epi32((int)0xffff0000));
    __m512 scale = _mm512_castsi512_ps(scale_bits);

    __mmask16 good =
        _mm512_mask_cmp_ps_mask(finite, magnitude, _mm512_set1_ps(MESA_AFFINE_MOST), _CMP_LT_OQ);
    good = _mm512_mask_cmp_ps_mask(good, scale, _mm512_set1_ps(MESA_AFFINE_LEAST), _CMP_GE_OQ);
    if (strict_sign && one_bit)
        good &= (__mmask16) ~(below & above);

    __m512 inverse = _mm512_div_ps(one, scale);
    __m512 first = _mm512_mul_ps(lo, inverse);
    first = stochastic && !one_bit ? _mm512_roundscale_ps(first, DOWN)
                                   : _mm512_roundscale_ps(first, TO_NEAREST);
    __m512 least = _mm512_set1_ps(-last_code);
    if (strict_sign)
        least = _mm512_mask_add_ps(least, above, least, one);
    __mmask16 up_to_zero = _mm512_cmp_ps_mask(hi, zero, _CMP_GE_OQ);
    first = _mm512_mask_max_ps(first, up_to_zero, first, least);
    if (strict_sign)
        first = _mm512_mask_min_ps(first, below, first, _mm512_set1_ps(-1));

    __m512i zero_points = _mm512_cvtps_epi32(first);
    __m512i words =
        _mm512_or_si512(scale_bits, _mm512_and_si512(zero_points, _mm512_set1_epi32(0xffff)));
    words = _mm512_mask_mov_epi32(_mm512_set1_epi32(MESA_GROUP_RAW), good, words);
    words = _mm512_mask_mov_epi32(words, nothing, _mm512_setzero_si512());
    return (struct words){words, zero_points, inverse};
}

/* ---- codes ----------------------------------------------------------------------------------- */

MESA_ALWAYS_INLINE __m512 keep_sign16(__m512 index, __m512 x) {
    __mmask16 above = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
    __mmask16 below = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    index = _mm512_mask_max_ps(index, above, index, _mm512_set1_ps(1));
    return _mm512_mask_min_ps(index, below, index, _mm512_set1_ps(-1));
}

/* affine_uniform() of sixteen elements from `element` on. */
MESA_ALWAYS_INLINE __m512 uniform16(uint64_t seed, uint64_t element) {
    if ((uint32_t)element > UINT32_MAX - 15) { /* the key changes on the way */
        float uniforms[16];
        for (unsigned i = 0; i < 16; i++)
            uniforms[i] = affine_uniform(affine_key_of(seed, element + i), (uint32_t)(element + i));
        return _mm512_loadu_ps(uniforms);
    }
    struct affine_key key = affine_key_of(seed, element);
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512i x = _mm512_add_epi32(_mm512_set1_epi32((int)((uint32_t)element + key.add)), lane);
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
    x = _mm512_mullo_epi32(x, _mm512_set1_epi32(AFFINE_MULTIPLY_1));
    x = _mm512_xor_si512(x, _mm512_set1_epi32((int)key.flip));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 15));
    x = _mm512_mullo_epi32(x, _mm512_set1_epi32(AFFINE_MULTIPLY_2));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 15));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(x, 8)), _mm512_set1_ps(0x1p-24f));
}

struct coder {
    __m512 inverse; /* 1 / scale */
    __m512i zero_point;
    unsigned bits;
    bool strict_sign, stochastic, stream;
    uint64_t seed;
};

/* Codes of sixteen elements in 32 bits, not clipped yet. */
MESA_ALWAYS_INLINE __m512i code16(struct coder coder, __m512 x, uint64_t element) {
    __m512 position = _mm512_mul_ps(x, coder.inverse);
    if (!coder.stochastic && !coder.strict_sign) /* the conversion rounds to nearest even */
        return _mm512_sub_epi32(_mm512_cvtps_epi32(position), coder.zero_point);
    __m512 index = _mm512_roundscale_ps(position, TO_NEAREST);
    if (coder.stochastic) {
        index = _mm512_roundscale_ps(position, DOWN);
        __mmask16 up = _mm512_cmp_ps_mask(uniform16(coder.seed, element),
                                          _mm512_sub_ps(position, index), _CMP_LT_OQ);
        index = _mm512_mask_add_ps(index, up, index, _mm512_set1_ps(1));
    }
    if (coder.strict_sign)
        index = keep_sign16(index, x);
    return _mm512_sub_epi32(_mm512_cvtps_epi32(index), coder.zero_point);
}

/* To a byte each, in groups of four: codes 4k..4k+3 of all four vectors in the 128-bit lane k.
 * Saturation clips below 0 and above 255 on the way. */
MESA_ALWAYS_INLINE __m512i narrow64(const __m512i codes[4], unsigned bits) {
    __m512i bytes = _mm512_packus_epi16(_mm512_packs_epi32(codes[0], codes[1]),
                                        _mm512_packs_epi32(codes[2], codes[3]));
    return bits == 8 ? bytes : _mm512_min_epu8(bytes, _mm512_set1_epi8((char)((1u << bits) - 1)));
}

MESA_ALWAYS_INLINE __m512i in_order(__m512i bytes) {
    return _mm512_permutexvar_epi32(
        _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), bytes);
}

/* The same for even and odd elements of 32, twice: they alternate first within the lanes. */
MESA_ALWAYS_INLINE __m512i in_order_of_pairs(__m512i bytes) {
    const __m128i alternate = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    bytes = _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(alternate));
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), bytes);
}

MESA_ALWAYS_INLINE __m512i code64(enum mesa_dtype dtype, struct coder coder, const char *src,
                                  uint64_t element) {
    __m512i codes[4];
    if (dtype == MESA_BF16 && !coder.stochastic) { /* else order matters to the uniforms */
        for (size_t k = 0; k < 2; k++) {
            __m512i pairs = _mm512_loadu_si512(src + k * 64);
            codes[2 * k] = code16(coder, even_bf16(pairs), element);
            codes[2 * k + 1] = code16(coder, odd_bf16(pairs), element);
        }
        return in_order_of_pairs(narrow64(codes, coder.bits));
    }
    UNROLL_4
    for (size_t j = 0; j < 4; j++)
        codes[j] =
            code16(coder, load16(dtype, element_at(dtype, src, j * 16), 0xffff), element + j * 16);
    return in_order(narrow64(codes, coder.bits));
}

MESA_ALWAYS_INLINE void encode_group(enum mesa_dtype dtype, struct coder coder, const char *src,
                                     size_t n, uint64_t element, uint8_t *ret_codes) {
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        const char *at = element_at(dtype, src, i);
        __m512i packed = pack64(code64(dtype, coder, at, element + i), coder.bits);
        store_packed(ret_codes + i * coder.bits / 8, packed, 64, coder.bits, coder.stream);
    }
    if (i == n)
        return;
    __m512i codes[4];
    for (size_t j = 0; j < 4; j++) {
        __mmask16 lanes = first16(n - i > j * 16 ? n - i - j * 16 : 0);
        codes[j] = code16(coder, load16(dtype, element_at(dtype, src, i + j * 16), lanes),
                          element + i + j * 16);
    }
    __m512i bytes = in_order(narrow64(codes, coder.bits));
    bytes = _mm512_maskz_mov_epi8(first64(n - i), bytes);
    store_packed(ret_codes + i * coder.bits / 8, pack64(bytes, coder.bits), n - i, coder.bits,
                 false);
}

MESA_ALWAYS_INLINE size_t encode(enum mesa_dtype dtype, unsigned bits, bool strict_sign,
                                 enum mesa_rounding rounding, const struct mesa_affine_rows *rows,
                                 const void *src, uint32_t *ret_words, uint8_t *ret_codes) {
    const size_t bytes = element_bytes(dtype);
    struct coder coder = {
        .bits = bits,
        .strict_sign = strict_sign,
        .stochastic = rounding == MESA_ROUND_STOCHASTIC,
        .stream = rows->stream,
        .seed = rows->seed,
    };
    size_t raw_groups = 0, count;
    struct group_cursor cursor = group_cursor_begin(rows);
    struct group groups[BATCH_GROUPS];
    __m512 lo[BATCH_GROUPS] = {0}, hi[BATCH_GROUPS] = {0}, doubt[BATCH_GROUPS] = {0};
    while ((count = group_cursor_take(&cursor, bytes, groups)) > 0) {
        for (size_t g = 0; g < count; g++) {
            struct extent extent =
                extent_of(dtype, group_source(rows, groups[g], src, bytes), groups[g].n);
            lo[g] = extent.lo;
            hi[g] = extent.hi;
            doubt[g] = extent.doubt;
        }
        __m512 least = _mm512_add_ps(least_of_each(lo), _mm512_setzero_ps());
        __m512 most = _mm512_add_ps(most_of_each(hi), _mm512_setzero_ps());
        __mmask16 finite = finite_lanes(union_of_each(doubt));
        struct words words = words16(least, most, finite, bits, strict_sign, rounding);
        unsigned one_value = _mm512_cmp_ps_mask(least, most, _CMP_EQ_OQ) | ~(unsigned)finite;

        uint32_t batch_words[BATCH_GROUPS];
        int32_t zero_points[BATCH_GROUPS];
        float inverse[BATCH_GROUPS];
        _mm512_storeu_si512(batch_words, words.words);
        _mm512_storeu_si512(zero_points, words.zero_points);
        _mm512_storeu_ps(inverse, words.inverse);
        for (size_t g = 0; g < count; g++) {
            const char *from = group_source(rows, groups[g], src, bytes);
            uint8_t *codes = ret_codes + group_code_offset(rows, groups[g]);
            uint32_t word = batch_words[g];
            if (word == 0 || word == MESA_GROUP_RAW || (one_value >> g & 1))
                word = group_hold_special(from, groups[g].n, bytes, bits, one_value >> g & 1, word,
                                          codes);
            if (word != 0 && !word_is_mark(word)) {
                coder.inverse = _mm512_set1_ps(inverse[g]);
                coder.zero_point = _mm512_set1_epi32(zero_points[g]);
                encode_group(dtype, coder, from, groups[g].n, group_first_element(rows, groups[g]),
                             codes);
            }
            raw_groups += word == MESA_GROUP_RAW;
            *ret_words++ = word;
        }
    }
    if (rows->stream)
        _mm_sfence();
    return raw_groups;
}

MESA_ALWAYS_INLINE void quantize(enum mesa_dtype dtype, const void *src, size_t n, uint32_t word,
                                 unsigned bits, bool strict_sign, uint8_t *ret_codes) {
    if (word == 0) {
        memset(ret_codes, 0, n);
        return;
    }
    struct affine_grid grid = affine_grid_of(word, bits);
    __m512 inverse = _mm512_set1_ps(grid.inverse);
    __m512 least = _mm512_set1_ps(grid.least), most = _mm512_set1_ps(grid.most);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 lanes = first16(n - i);
        __m512 x = load16(dtype, element_at(dtype, src, i), lanes);
        __m512 index = _mm512_roundscale_ps(_mm512_mul_ps(x, inverse), TO_NEAREST);
        if (strict_sign)
            index = keep_sign16(index, x);
        index = _mm512_max_ps(_mm512_min_ps(index, most), least);
        __m512i codes = _mm512_cvtps_epi32(_mm512_sub_ps(index, least));
        _mm_mask_storeu_epi8(ret_codes + i, lanes, _mm512_cvtepi32_epi8(codes));
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Sixteen codes, a byte each, of a group. */
MESA_ALWAYS_INLINE __m512 values16(__m128i codes, __m512i zero_point, __m512 scale) {
    __m512i index = _mm512_add_epi32(_mm512_cvtepu8_epi32(codes), zero_point);
    return _mm512_mul_ps(_mm512_cvtepi32_ps(index), scale);
}

MESA_ALWAYS_INLINE __m128i quarter(__m512i v, size_t j) {
    return j == 0   ? _mm512_castsi512_si128(v)
           : j == 1 ? _mm512_extracti32x4_epi32(v, 1)
           : j == 2 ? _mm512_extracti32x4_epi32(v, 2)
                    : _mm512_extracti32x4_epi32(v, 3);
}

/* 32 codes in 16 bits each to bfloat16: even and odd ones are rounded apart, as bf16_round() does, and
 * meet again in the halves of 32 bits. */
MESA_ALWAYS_INLINE __m512i bf16_values32(__m512i codes, __m512i zero_point, __m512 scale) {
    __m512i even = _mm512_and_si512(codes, _mm512_set1_epi32(0xffff));
    __m512i odd = _mm512_srli_epi32(codes, 16);
    __m512i rounded[2] = {even, odd};
    for (int k = 0; k < 2; k++) {
        __m512 index = _mm512_cvtepi32_ps(_mm512_add_epi32(rounded[k], zero_point));
        __m512i bits = _mm512_castps_si512(_mm512_mul_ps(index, scale));
        __m512i lowest = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        rounded[k] = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), lowest);
    }
    return _mm512_mask_mov_epi16(_mm512_srli_epi32(rounded[0], 16), 0xaaaaaaaa, rounded[1]);
}

MESA_ALWAYS_INLINE void decode_group(enum mesa_dtype dtype, uint32_t word, const uint8_t *codes,
                                     size_t n, unsigned bits, bool stream, char *dst) {
    __m512i zero_point = _mm512_set1_epi32(word_zero_point(word));
    __m512 scale = _mm512_set1_ps(word_scale(word));
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        const uint8_t *at = codes + i * bits / 8;
        __m512i bytes = unpack64(load_packed(at, 64, bits), bits);
        if (dtype == MESA_BF16) {
            __m512i low = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(bytes));
            __m512i high = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(bytes, 1));
            store_line(dst + i * 2, bf16_values32(low, zero_point, scale), stream);
            store_line(dst + i * 2 + 64, bf16_values32(high, zero_point, scale), stream);
            continue;
        }
        UNROLL_4
        for (size_t j = 0; j < 4; j++) {
            __m128i four =
                bits == 8 ? _mm_loadu_si128((const __m128i *)(at + j * 16)) : quarter(bytes, j);
            store16(dtype, dst + (i + j * 16) * element_bytes(dtype), 0xffff,
                    values16(four, zero_point, scale), stream);
        }
    }
    if (i == n)
        return;
    __m512i bytes = unpack64(load_packed(codes + i * bits / 8, n - i, bits), bits);
    for (size_t j = 0; j < 4 && i + j * 16 < n; j++)
        store16(dtype, dst + (i + j * 16) * element_bytes(dtype), first16(n - i - j * 16),
                values16(quarter(bytes, j), zero_point, scale), false);
}

MESA_ALWAYS_INLINE void decode(enum mesa_dtype dtype, unsigned bits,
                               const struct mesa_affine_rows *rows, const uint32_t *words,
                               const uint8_t *codes, const uint8_t *raw, size_t raw_group_bytes,
                               bool stream, void *ret_dst) {
    struct group_cursor cursor = group_cursor_begin(rows);
    struct group group;
    while (group_cursor_next(&cursor, &group)) {
        uint32_t word = *words++;
        const uint8_t *from = codes + group_code_offset(rows, group);
        char *to = (char *)ret_dst + (group.row * rows->row + group.begin) * element_bytes(dtype);
        if (word_is_mark(word))
            group_restore_mark(word, from, group.n, element_bytes(dtype), raw, raw_group_bytes, to);
        else if (stream && (uintptr_t)to % 64 == 0)
            decode_group(dtype, word, from, group.n, bits, true, to);
        else
            decode_group(dtype, word, from, group.n, bits, false, to);
    }
    if (stream)
        _mm_sfence();
}

MESA_ALWAYS_INLINE void dequantize(enum mesa_dtype dtype, const uint8_t *codes, size_t n,
                                   uint32_t word, void *ret_dst) {
    decode_group(dtype, word, codes, n, 8, false, ret_dst);
}

/* ---- one group for each column --------------------------------------------------------------- */

MESA_ALWAYS_INLINE bool range_columns(enum mesa_dtype dtype, const void *src, size_t rows, size_t n,
                                      float *lo, float *hi) {
    const __m512 zero = _mm512_setzero_ps();
    __m512 doubt = zero;
    for (size_t row = 0; row < rows; row++) {
        const void *from = element_at(dtype, src, row * n);
        for (size_t i = 0; i < n; i += 16) {
            __mmask16 lanes = first16(n - i);
            __m512 x = load16(dtype, element_at(dtype, from, i), lanes);
            __m512 least = _mm512_min_ps(x, _mm512_maskz_loadu_ps(lanes, lo + i));
            __m512 most = _mm512_max_ps(x, _mm512_maskz_loadu_ps(lanes, hi + i));
            doubt = _mm512_or_ps(doubt, _mm512_sub_ps(x, x));
            _mm512_mask_storeu_ps(lo + i, lanes, _mm512_add_ps(least, zero));
            _mm512_mask_storeu_ps(hi + i, lanes, _mm512_add_ps(most, zero));
        }
    }
    return finite_lanes(doubt) == 0xffff;
}

MESA_ALWAYS_INLINE __m512 scales16(__m512i words) {
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000)));
}

MESA_ALWAYS_INLINE __m512i zero_points16(__m512i words) {
    return _mm512_srai_epi32(_mm512_slli_epi32(words, 16), 16);
}

MESA_ALWAYS_INLINE void quantize_columns(enum mesa_dtype dtype, const void *src, size_t rows,
                                         size_t n, const uint32_t *words, unsigned bits,
                                         bool strict_sign, uint8_t *ret_codes) {
    __m512 last_code = _mm512_set1_ps((float)((1u << bits) - 1));
    for (size_t row = 0; row < rows; row++) {
        for (size_t i = 0; i < n; i += 16) {
            __mmask16 lanes = first16(n - i);
            __m512 x = load16(dtype, element_at(dtype, src, row * n + i), lanes);
            __m512i group = _mm512_maskz_loadu_epi32(lanes, words + i);
            __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1), scales16(group));
            __m512 least = _mm512_cvtepi32_ps(zero_points16(group));
            __m512 index = _mm512_roundscale_ps(_mm512_mul_ps(x, inverse), TO_NEAREST);
            if (strict_sign)
                index = keep_sign16(index, x);
            index = _mm512_max_ps(_mm512_min_ps(index, _mm512_add_ps(least, last_code)), least);
            lanes = _mm512_test_epi32_mask(group, group);
            __m512i codes = _mm512_maskz_cvtps_epi32(lanes, _mm512_sub_ps(index, least));
            _mm_mask_storeu_epi8(ret_codes + row * n + i, first16(n - i),
                                 _mm512_cvtepi32_epi8(codes));
        }
    }
}

MESA_ALWAYS_INLINE void dequantize_columns(enum mesa_dtype dtype, const uint8_t *codes, size_t rows,
                                           size_t n, const uint32_t *words, void *ret_dst) {
    for (size_t row = 0; row < rows; row++) {
        for (size_t i = 0; i < n; i += 16) {
            __mmask16 lanes = first16(n - i);
            __m512i group = _mm512_maskz_loadu_epi32(lanes, words + i);
            __m128i bytes = _mm_maskz_loadu_epi8(lanes, codes + row * n + i);
            store16(dtype, (char *)ret_dst + (row * n + i) * element_bytes(dtype), lanes,
                    values16(bytes, zero_points16(group), scales16(group)), false);
        }
    }
}

static void pack_bits(const uint8_t *codes, size_t n, unsigned bits, uint8_t *ret_packed) {
    for (size_t i = 0; i < n; i += 64) {
        size_t count = n - i < 64 ? n - i : 64;
        __m512i bytes = _mm512_maskz_loadu_epi8(first64(count), codes + i);
        store_packed(ret_packed + i * bits / 8, pack64(bytes, bits), count, bits, false);
    }
}

static void unpack_bits(const uint8_t *packed, size_t n, unsigned bits, uint8_t *ret_codes) {
    for (size_t i = 0; i < n; i += 64) {
        size_t count = n - i < 64 ? n - i : 64;
        __m512i bytes = unpack64(load_packed(packed + i * bits / 8, count, bits), bits);
        _mm512_mask_storeu_epi8(ret_codes + i, first64(count), bytes);
    }
}

/* ---- the entries ----------------------------------------------------------------------------- */

DEFINE_AFFINE_ENTRIES(f32, MESA_F32, true)
DEFINE_AFFINE_COLUMN_ENTRIES(f32, MESA_F32)
DEFINE_AFFINE_ENTRIES(bf16, MESA_BF16, true)
DEFINE_AFFINE_COLUMN_ENTRIES(bf16, MESA_BF16)
DEFINE_AFFINE_ENTRIES(f16, MESA_F16, false)
DEFINE_AFFINE_COLUMN_ENTRIES(f16, MESA_F16)
DEFINE_AFFINE_ENTRIES(f64, MESA_F64, false)
DEFINE_AFFINE_COLUMN_ENTRIES(f64, MESA_F64)

void mesa_kernels_fill_affine_avx512(struct mesa_kernels *table) {
    SET_AFFINE_ENTRIES(table, f32, MESA_F32);
    SET_AFFINE_COLUMN_ENTRIES(table, f32, MESA_F32);
    SET_AFFINE_ENTRIES(table, bf16, MESA_BF16);
    SET_AFFINE_COLUMN_ENTRIES(table, bf16, MESA_BF16);
    SET_AFFINE_ENTRIES(table, f16, MESA_F16);
    SET_AFFINE_COLUMN_ENTRIES(table, f16, MESA_F16);
    SET_AFFINE_ENTRIES(table, f64, MESA_F64);
    SET_AFFINE_COLUMN_ENTRIES(table, f64, MESA_F64);
    table->pack_bits = pack_bits;
    table->unpack_bits = unpack_bits;
}
