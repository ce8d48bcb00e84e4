/* Affine codes with AVX2, for float32, bfloat16 and float16. Works as affine_avx512.c does: a batch
 * of groups is ranged, their words are found in the lanes of vectors, and the batch is coded out of
 * the first cache. Equals affine_scalar.c byte for byte.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/affine.h"
#include "codec/kernels/affine_entries.h"
#include "codec/kernels/avx2.h"
#include "codec/kernels/batch.h"
#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"

#define TO_NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define DOWN       (_MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)
#define UNROLL_4   _Pragma("GCC unroll 4")

/* ---- range ----------------------------------------------------------------------------------- */

/* Least and most of what went in; `doubt` has bits set where an element was not finite (x - x is NaN
 * then, else +0). */
struct extent {
    __m256 lo, hi, doubt;
};

MESA_ALWAYS_INLINE struct extent extent_start(void) {
    return (struct extent){_mm256_set1_ps(INFINITY), _mm256_set1_ps(-INFINITY),
                           _mm256_setzero_ps()};
}

MESA_ALWAYS_INLINE void extent_add(struct extent *extent, __m256 x) {
    extent->lo = _mm256_min_ps(x, extent->lo);
    extent->hi = _mm256_max_ps(x, extent->hi);
    extent->doubt = _mm256_or_ps(extent->doubt, _mm256_sub_ps(x, x));
}

MESA_ALWAYS_INLINE struct extent extent_join(struct extent a, struct extent b) {
    return (struct extent){_mm256_min_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi),
                           _mm256_or_ps(a.doubt, b.doubt)};
}

/* The 16 elements of bfloat16 of a vector: even ones, odd ones. */
MESA_ALWAYS_INLINE __m256 even_bf16(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}

MESA_ALWAYS_INLINE __m256 odd_bf16(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000)));
}

/* bfloat16 to integers of the same order, NaN outside infinity, and back: negative ones have their
 * lower bits flipped. */
MESA_ALWAYS_INLINE __m256i bf16_order(__m256i x) {
    __m256i flip = _mm256_and_si256(_mm256_srai_epi16(x, 15), _mm256_set1_epi16(0x7fff));
    return _mm256_xor_si256(x, flip);
}

/* The first n elements of bfloat16, n a multiple of 32: compared as integers, which takes a vector of
 * 16. */
MESA_ALWAYS_INLINE void extent_add_bf16(struct extent *extent, const void *src, size_t n) {
    __m256i lo[2] = {_mm256_set1_epi16(INT16_MAX), _mm256_set1_epi16(INT16_MAX)};
    __m256i hi[2] = {_mm256_set1_epi16(INT16_MIN), _mm256_set1_epi16(INT16_MIN)};
    for (size_t i = 0; i < n; i += 32) {
        for (size_t k = 0; k < 2; k++) {
            __m256i x = bf16_order(_mm256_loadu_si256(element_at(MESA_BF16, src, i + 16 * k)));
            lo[k] = _mm256_min_epi16(lo[k], x);
            hi[k] = _mm256_max_epi16(hi[k], x);
        }
    }
    if (n == 0)
        return;
    __m256i least = bf16_order(_mm256_min_epi16(lo[0], lo[1]));
    __m256i most = bf16_order(_mm256_max_epi16(hi[0], hi[1]));
    extent_add(extent, even_bf16(least));
    extent_add(extent, odd_bf16(least));
    extent_add(extent, even_bf16(most));
    extent_add(extent, odd_bf16(most));
}

MESA_ALWAYS_INLINE struct extent extent_of(enum mesa_dtype dtype, const void *src, size_t n) {
    struct extent parts[4] = {extent_start(), extent_start(), extent_start(), extent_start()};
    size_t i = 0;
    if (dtype == MESA_BF16) {
        i = n / 32 * 32;
        extent_add_bf16(&parts[0], src, i);
    }
    for (; i + 32 <= n; i += 32) {
        UNROLL_4
        for (size_t j = 0; j < 4; j++)
            extent_add(&parts[j], load8(dtype, element_at(dtype, src, i + j * 8)));
    }
    for (; i + 8 <= n; i += 8)
        extent_add(&parts[0], load8(dtype, element_at(dtype, src, i)));
    if (i < n)
        extent_add(&parts[1], load8_tail(dtype, element_at(dtype, src, i), n - i));
    return extent_join(extent_join(parts[0], parts[1]), extent_join(parts[2], parts[3]));
}

/* Lanes without a bit set. */
MESA_ALWAYS_INLINE __m256 finite_lanes(__m256 doubt) {
    return _mm256_castsi256_ps(
        _mm256_cmpeq_epi32(_mm256_castps_si256(doubt), _mm256_setzero_si256()));
}

/* Eight vectors to one, whose lane g is the least (most, union) of vector g's. */
#define DEFINE_REDUCE8(name, least_of)                                                             \
    MESA_ALWAYS_INLINE __m256 name(const __m256 vectors[8]) {                                      \
        __m256 fours[2];                                                                           \
        for (int k = 0; k < 2; k++) {                                                              \
            const __m256 *v = vectors + 4 * k;                                                     \
            __m256 ab = least_of(_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]));  \
            __m256 cd = least_of(_mm256_unpacklo_ps(v[2], v[3]), _mm256_unpackhi_ps(v[2], v[3]));  \
            __m256d abd = _mm256_castps_pd(ab), cdd = _mm256_castps_pd(cd);                        \
            fours[k] = least_of(_mm256_castpd_ps(_mm256_unpacklo_pd(abd, cdd)),                    \
                                _mm256_castpd_ps(_mm256_unpackhi_pd(abd, cdd)));                   \
        }                                                                                          \
        return least_of(_mm256_permute2f128_ps(fours[0], fours[1], 0x20),                          \
                        _mm256_permute2f128_ps(fours[0], fours[1], 0x31));                         \
    }

DEFINE_REDUCE8(least_of_each, _mm256_min_ps)
DEFINE_REDUCE8(most_of_each, _mm256_max_ps)
DEFINE_REDUCE8(union_of_each, _mm256_or_ps)

MESA_ALWAYS_INLINE bool range(enum mesa_dtype dtype, const void *src, size_t n, float *lo,
                              float *hi) {
    struct extent extent = extent_of(dtype, src, n);
    float least[8], most[8];
    _mm256_storeu_ps(least, extent.lo);
    _mm256_storeu_ps(most, extent.hi);
    for (int i = 0; i < 8; i++) {
        *lo = least[i] < *lo ? least[i] : *lo;
        *hi = most[i] > *hi ? most[i] : *hi;
    }
    *lo += 0.0f;
    *hi += 0.0f;
    return _mm256_movemask_ps(finite_lanes(extent.doubt)) == 0xff;
}

/* ---- words: mesa_affine_word() in eight lanes, step by step -------------------------------------- */

struct words {
    __m256i words, zero_points;
    __m256 inverse; /* of the scales */
};

MESA_ALWAYS_INLINE __m256 choose(__m256 mask, __m256 yes, __m256 no) {
    return _mm256_blendv_ps(no, yes, mask);
}

static struct words words8(__m256 lo, __m256 hi, __m256 finite, unsigned bits, bool strict_sign,
                           enum mesa_rounding rounding) {
    const __m256 zero = _mm256_setzero_ps(), one = _mm256_set1_ps(1);
    const float last_code = (float)((1u << bits) - 1);
    bool one_bit = bits == 1, stochastic = rounding == MESA_ROUND_STOCHASTIC;

    __m256 magnitude = _mm256_max_ps(_mm256_sub_ps(zero, lo), hi);
    __m256 nothing = _mm256_and_ps(finite, _mm256_cmp_ps(magnitude, zero, _CMP_EQ_OQ));
    __m256 below = _mm256_cmp_ps(lo, zero, _CMP_LT_OQ);
    __m256 above = _mm256_cmp_ps(hi, zero, _CMP_GT_OQ);
    __m256 both_signs = _mm256_and_ps(below, above);
    __m256 one_end_zero =
        _mm256_or_ps(_mm256_cmp_ps(lo, zero, _CMP_EQ_OQ), _mm256_cmp_ps(hi, zero, _CMP_EQ_OQ));

    __m256 steps = _mm256_set1_ps(last_code), fewer = _mm256_set1_ps(last_code - 1);
    if (stochastic && !one_bit)
        steps = choose(one_end_zero, steps, fewer);
    else if (strict_sign && !one_bit)
        steps = choose(both_signs, fewer, steps);
    __m256 step = _mm256_div_ps(_mm256_sub_ps(hi, lo), steps);
    __m256 reach = _mm256_div_ps(magnitude, _mm256_set1_ps(MESA_AFFINE_REACH));
    __m256i scale_bits = _mm256_castps_si256(_mm256_max_ps(step, reach));
    scale_bits = _mm256_add_epi32(scale_bits, _mm256_set1_epi32(0xffff));
    scale_bits = _mm256_and_si256(scale_bits, _mm256_set1_epi32((int)0xffff0000));
    __m256 scale = _mm256_castsi256_ps(scale_bits);

    __m256 good = _mm256_and_ps(
        finite, _mm256_cmp_ps(magnitude, _mm256_set1_ps(MESA_AFFINE_MOST), _CMP_LT_OQ));
    good = _mm256_and_ps(good, _mm256_cmp_ps(scale, _mm256_set1_ps(MESA_AFFINE_LEAST), _CMP_GE_OQ));
    if (strict_sign && one_bit)
        good = _mm256_andnot_ps(both_signs, good);

    __m256 inverse = _mm256_div_ps(one, scale);
    __m256 first = _mm256_mul_ps(lo, inverse);
    first =
        stochastic && !one_bit ? _mm256_round_ps(first, DOWN) : _mm256_round_ps(first, TO_NEAREST);
    __m256 least = _mm256_set1_ps(-last_code);
    if (strict_sign)
        least = _mm256_add_ps(least, _mm256_and_ps(above, one));
    __m256 up_to_zero = _mm256_cmp_ps(hi, zero, _CMP_GE_OQ);
    first = choose(up_to_zero, _mm256_max_ps(first, least), first);
    if (strict_sign)
        first = choose(below, _mm256_min_ps(first, _mm256_set1_ps(-1)), first);

    __m256i zero_points = _mm256_cvtps_epi32(first);
    __m256i words =
        _mm256_or_si256(scale_bits, _mm256_and_si256(zero_points, _mm256_set1_epi32(0xffff)));
    words = _mm256_blendv_epi8(_mm256_set1_epi32(MESA_GROUP_RAW), words, _mm256_castps_si256(good));
    words = _mm256_andnot_si256(_mm256_castps_si256(nothing), words);
    return (struct words){words, zero_points, inverse};
}

/* ---- codes ----------------------------------------------------------------------------------- */

MESA_ALWAYS_INLINE __m256 keep_sign8(__m256 index, __m256 x) {
    __m256 above = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ);
    __m256 below = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ);
    index = choose(above, _mm256_max_ps(index, _mm256_set1_ps(1)), index);
    return choose(below, _mm256_min_ps(index, _mm256_set1_ps(-1)), index);
}

/* affine_uniform() of eight elements from `element` on. */
MESA_ALWAYS_INLINE __m256 uniform8(uint64_t seed, uint64_t element) {
    if ((uint32_t)element > UINT32_MAX - 7) { /* the key changes on the way */
        float uniforms[8];
        for (unsigned i = 0; i < 8; i++)
            uniforms[i] = affine_uniform(affine_key_of(seed, element + i), (uint32_t)(element + i));
        return _mm256_loadu_ps(uniforms);
    }
    struct affine_key key = affine_key_of(seed, element);
    __m256i x = _mm256_add_epi32(_mm256_set1_epi32((int)((uint32_t)element + key.add)),
                                 _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
    x = _mm256_mullo_epi32(x, _mm256_set1_epi32(AFFINE_MULTIPLY_1));
    x = _mm256_xor_si256(x, _mm256_set1_epi32((int)key.flip));
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
    x = _mm256_mullo_epi32(x, _mm256_set1_epi32(AFFINE_MULTIPLY_2));
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(x, 8)), _mm256_set1_ps(0x1p-24f));
}

struct coder {
    __m256 inverse; /* 1 / scale */
    __m256i zero_point;
    unsigned bits;
    bool strict_sign, stochastic, stream;
    uint64_t seed;
};

/* Codes of eight elements in 32 bits, not clipped yet. */
MESA_ALWAYS_INLINE __m256i code8(struct coder coder, __m256 x, uint64_t element) {
    __m256 position = _mm256_mul_ps(x, coder.inverse);
    if (!coder.stochastic && !coder.strict_sign) /* the conversion rounds to nearest even */
        return _mm256_sub_epi32(_mm256_cvtps_epi32(position), coder.zero_point);
    __m256 index = _mm256_round_ps(position, TO_NEAREST);
    if (coder.stochastic) {
        index = _mm256_round_ps(position, DOWN);
        __m256 up = _mm256_cmp_ps(uniform8(coder.seed, element), _mm256_sub_ps(position, index),
                                  _CMP_LT_OQ);
        index = _mm256_add_ps(index, _mm256_and_ps(up, _mm256_set1_ps(1)));
    }
    if (coder.strict_sign)
        index = keep_sign8(index, x);
    return _mm256_sub_epi32(_mm256_cvtps_epi32(index), coder.zero_point);
}

/* To a byte each, in groups of four: codes 4k..4k+3 of all four vectors in the 128-bit lane k.
 * Saturation clips below 0 and above 255 on the way. */
MESA_ALWAYS_INLINE __m256i narrow32(const __m256i codes[4], unsigned bits) {
    __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(codes[0], codes[1]),
                                        _mm256_packs_epi32(codes[2], codes[3]));
    return bits == 8 ? bytes : _mm256_min_epu8(bytes, _mm256_set1_epi8((char)((1u << bits) - 1)));
}

MESA_ALWAYS_INLINE __m256i in_order(__m256i bytes) {
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* The same for even and odd elements of 16, twice: they alternate first within the lanes. */
MESA_ALWAYS_INLINE __m256i in_order_of_pairs(__m256i bytes) {
    const __m128i alternate = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    bytes = _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(alternate));
    return _mm256_permute4x64_epi64(bytes, 0xd8);
}

MESA_ALWAYS_INLINE __m256i code32(enum mesa_dtype dtype, struct coder coder, const char *src,
                                  uint64_t element) {
    __m256i codes[4];
    if (dtype == MESA_BF16 && !coder.stochastic) { /* else order matters to the uniforms */
        for (size_t k = 0; k < 2; k++) {
            __m256i pairs = _mm256_loadu_si256((const __m256i *)(src + k * 32));
            codes[2 * k] = code8(coder, even_bf16(pairs), element);
            codes[2 * k + 1] = code8(coder, odd_bf16(pairs), element);
        }
        return in_order_of_pairs(narrow32(codes, coder.bits));
    }
    UNROLL_4
    for (size_t j = 0; j < 4; j++)
        codes[j] = code8(coder, load8(dtype, element_at(dtype, src, j * 8)), element + j * 8);
    return in_order(narrow32(codes, coder.bits));
}

/* The first n of 32 bytes, 0 in the others. */
MESA_ALWAYS_INLINE __m256i keep_first(__m256i bytes, size_t n) {
    const __m256i places =
        _mm256_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,
                         21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
    return _mm256_and_si256(bytes, _mm256_cmpgt_epi8(_mm256_set1_epi8((char)n), places));
}

MESA_ALWAYS_INLINE void encode_group(enum mesa_dtype dtype, struct coder coder, const char *src,
                                     size_t n, uint64_t element, uint8_t *ret_codes) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32)
        store_packed(ret_codes + i * coder.bits / 8,
                     code32(dtype, coder, element_at(dtype, src, i), element + i), 32, coder.bits,
                     coder.stream);
    if (i == n)
        return;
    __m256i codes[4];
    for (size_t j = 0; j < 4; j++) {
        size_t first = i + j * 8;
        __m256 x = first + 8 <= n ? load8(dtype, element_at(dtype, src, first))
                   : first < n    ? load8_tail(dtype, element_at(dtype, src, first), n - first)
                                  : _mm256_setzero_ps();
        codes[j] = code8(coder, x, element + first);
    }
    __m256i bytes = keep_first(in_order(narrow32(codes, coder.bits)), n - i);
    store_packed(ret_codes + i * coder.bits / 8, bytes, n - i, coder.bits, false);
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
    __m256 lo[BATCH_GROUPS] = {0}, hi[BATCH_GROUPS] = {0}, doubt[BATCH_GROUPS] = {0};
    while ((count = group_cursor_take(&cursor, bytes, groups)) > 0) {
        for (size_t g = 0; g < count; g++) {
            struct extent extent =
                extent_of(dtype, group_source(rows, groups[g], src, bytes), groups[g].n);
            lo[g] = extent.lo;
            hi[g] = extent.hi;
            doubt[g] = extent.doubt;
        }
        uint32_t batch_words[BATCH_GROUPS];
        int32_t zero_points[BATCH_GROUPS];
        float inverse[BATCH_GROUPS];
        unsigned one_value = 0;
        for (size_t g = 0; g < count; g += 8) {
            __m256 least = _mm256_add_ps(least_of_each(lo + g), _mm256_setzero_ps());
            __m256 most = _mm256_add_ps(most_of_each(hi + g), _mm256_setzero_ps());
            __m256 finite = finite_lanes(union_of_each(doubt + g));
            struct words words = words8(least, most, finite, bits, strict_sign, rounding);
            _mm256_storeu_si256((__m256i *)(batch_words + g), words.words);
            _mm256_storeu_si256((__m256i *)(zero_points + g), words.zero_points);
            _mm256_storeu_ps(inverse + g, words.inverse);
            __m256 same = _mm256_cmp_ps(least, most, _CMP_EQ_OQ);
            unsigned differ = (unsigned)_mm256_movemask_ps(_mm256_andnot_ps(same, finite));
            one_value |= (~differ & 0xff) << g;
        }
        for (size_t g = 0; g < count; g++) {
            const char *from = group_source(rows, groups[g], src, bytes);
            uint8_t *codes = ret_codes + group_code_offset(rows, groups[g]);
            uint32_t word = batch_words[g];
            if (word == 0 || word == MESA_GROUP_RAW || (one_value >> g & 1))
                word = group_hold_special(from, groups[g].n, bytes, bits, one_value >> g & 1, word,
                                          codes);
            if (word != 0 && !word_is_mark(word)) {
                coder.inverse = _mm256_set1_ps(inverse[g]);
                coder.zero_point = _mm256_set1_epi32(zero_points[g]);
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

/* Grid indices of eight elements, clipped; affine_code() without its last step. */
MESA_ALWAYS_INLINE __m256 index8(__m256 x, __m256 inverse, __m256 least, __m256 most,
                                 bool strict_sign) {
    __m256 index = _mm256_round_ps(_mm256_mul_ps(x, inverse), TO_NEAREST);
    if (strict_sign)
        index = keep_sign8(index, x);
    return _mm256_max_ps(_mm256_min_ps(index, most), least);
}

/* Eight codes of 32 bits each to the low eight bytes. */
MESA_ALWAYS_INLINE __m128i bytes8(__m256i codes) {
    __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
    return _mm_packus_epi16(words, words);
}

MESA_ALWAYS_INLINE void quantize(enum mesa_dtype dtype, const void *src, size_t n, uint32_t word,
                                 unsigned bits, bool strict_sign, uint8_t *ret_codes) {
    if (word == 0) {
        memset(ret_codes, 0, n);
        return;
    }
    struct affine_grid grid = affine_grid_of(word, bits);
    __m256 inverse = _mm256_set1_ps(grid.inverse);
    __m256 least = _mm256_set1_ps(grid.least), most = _mm256_set1_ps(grid.most);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 x = load8(dtype, element_at(dtype, src, i));
        __m256 index = index8(x, inverse, least, most, strict_sign);
        _mm_storel_epi64((__m128i *)(ret_codes + i),
                         bytes8(_mm256_cvtps_epi32(_mm256_sub_ps(index, least))));
    }
    for (; i < n; i++)
        ret_codes[i] = affine_nearest(element_load(dtype, src, i), grid, strict_sign);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* The low eight codes, a byte each, of a group. */
MESA_ALWAYS_INLINE __m256 values8(__m128i codes, __m256i zero_point, __m256 scale) {
    __m256i index = _mm256_add_epi32(_mm256_cvtepu8_epi32(codes), zero_point);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(index), scale);
}

/* 16 codes in 16 bits each to bfloat16: even and odd ones are rounded apart, as bf16_round() does, and
 * meet again in the halves of 32 bits. */
MESA_ALWAYS_INLINE __m256i bf16_values16(__m256i codes, __m256i zero_point, __m256 scale) {
    __m256i rounded[2] = {_mm256_and_si256(codes, _mm256_set1_epi32(0xffff)),
                          _mm256_srli_epi32(codes, 16)};
    for (int k = 0; k < 2; k++) {
        __m256 index = _mm256_cvtepi32_ps(_mm256_add_epi32(rounded[k], zero_point));
        __m256i bits = _mm256_castps_si256(_mm256_mul_ps(index, scale));
        __m256i lowest = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        rounded[k] = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), lowest);
    }
    return _mm256_blend_epi16(_mm256_srli_epi32(rounded[0], 16), rounded[1], 0xaa);
}

/* `readable`: bytes at `codes` that may be touched. */
MESA_ALWAYS_INLINE void decode_group(enum mesa_dtype dtype, uint32_t word, const uint8_t *codes,
                                     size_t n, unsigned bits, struct cutter cutter, size_t readable,
                                     bool stream, char *dst) {
    __m256i zero_point = _mm256_set1_epi32(word_zero_point(word));
    __m256 scale = _mm256_set1_ps(word_scale(word));
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        size_t offset = i * bits / 8;
        __m256i bytes = load_packed(codes + offset, 32, bits, cutter, readable - offset);
        __m128i halves[2] = {_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)};
        for (size_t k = 0; k < 2; k++) {
            char *to = dst + (i + k * 16) * element_bytes(dtype);
            if (dtype == MESA_BF16) {
                store_vector(to, bf16_values16(_mm256_cvtepu8_epi16(halves[k]), zero_point, scale),
                             stream);
                continue;
            }
            store8(dtype, to, values8(halves[k], zero_point, scale), stream);
            store8(dtype, to + 8 * element_bytes(dtype),
                   values8(_mm_srli_si128(halves[k], 8), zero_point, scale), stream);
        }
    }
    if (i == n)
        return;
    uint8_t unpacked[32];
    size_t offset = i * bits / 8;
    _mm256_storeu_si256((__m256i *)unpacked,
                        load_packed(codes + offset, n - i, bits, cutter, readable - offset));
    for (size_t j = 0; i + j < n; j++)
        element_store(dtype, dst, i + j, affine_value(unpacked[j], word));
}

MESA_ALWAYS_INLINE void decode(enum mesa_dtype dtype, unsigned bits,
                               const struct mesa_affine_rows *rows, const uint32_t *words,
                               const uint8_t *codes, const uint8_t *raw, size_t raw_group_bytes,
                               bool stream, void *ret_dst) {
    const struct cutter cutter = cutter_of(bits);
    const size_t code_bytes = rows->rows * mesa_code_row_bytes(rows->row, bits);
    struct group_cursor cursor = group_cursor_begin(rows);
    struct group group;
    while (group_cursor_next(&cursor, &group)) {
        uint32_t word = *words++;
        size_t offset = group_code_offset(rows, group);
        const uint8_t *from = codes + offset;
        size_t readable = code_bytes - offset;
        char *to = (char *)ret_dst + (group.row * rows->row + group.begin) * element_bytes(dtype);
        if (word_is_mark(word))
            group_restore_mark(word, from, group.n, element_bytes(dtype), raw, raw_group_bytes, to);
        else if (stream && (uintptr_t)to % 32 == 0)
            decode_group(dtype, word, from, group.n, bits, cutter, readable, true, to);
        else
            decode_group(dtype, word, from, group.n, bits, cutter, readable, false, to);
    }
    if (stream)
        _mm_sfence();
}

MESA_ALWAYS_INLINE void dequantize(enum mesa_dtype dtype, const uint8_t *codes, size_t n,
                                   uint32_t word, void *ret_dst) {
    decode_group(dtype, word, codes, n, 8, cutter_of(8), n, false, ret_dst);
}

/* ---- one group for each column --------------------------------------------------------------- */

MESA_ALWAYS_INLINE bool range_columns(enum mesa_dtype dtype, const void *src, size_t rows, size_t n,
                                      float *lo, float *hi) {
    const __m256 zero = _mm256_setzero_ps();
    __m256 doubt = zero;
    bool finite = true;
    for (size_t row = 0; row < rows; row++) {
        const void *from = element_at(dtype, src, row * n);
        size_t i = 0;
        for (; i + 8 <= n; i += 8) {
            __m256 x = load8(dtype, element_at(dtype, from, i));
            __m256 least = _mm256_min_ps(x, _mm256_loadu_ps(lo + i));
            __m256 most = _mm256_max_ps(x, _mm256_loadu_ps(hi + i));
            doubt = _mm256_or_ps(doubt, _mm256_sub_ps(x, x));
            _mm256_storeu_ps(lo + i, _mm256_add_ps(least, zero));
            _mm256_storeu_ps(hi + i, _mm256_add_ps(most, zero));
        }
        for (; i < n; i++)
            finite &= range(dtype, element_at(dtype, from, i), 1, lo + i, hi + i);
    }
    return finite && _mm256_movemask_ps(finite_lanes(doubt)) == 0xff;
}

MESA_ALWAYS_INLINE __m256 scales8(__m256i words) {
    return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000)));
}

MESA_ALWAYS_INLINE __m256i zero_points8(__m256i words) {
    return _mm256_srai_epi32(_mm256_slli_epi32(words, 16), 16);
}

MESA_ALWAYS_INLINE void quantize_columns(enum mesa_dtype dtype, const void *src, size_t rows,
                                         size_t n, const uint32_t *words, unsigned bits,
                                         bool strict_sign, uint8_t *ret_codes) {
    __m256 last_code = _mm256_set1_ps((float)((1u << bits) - 1));
    for (size_t row = 0; row < rows; row++) {
        const void *from = element_at(dtype, src, row * n);
        uint8_t *to = ret_codes + row * n;
        size_t i = 0;
        for (; i + 8 <= n; i += 8) {
            __m256i group = _mm256_loadu_si256((const __m256i *)(words + i));
            __m256 inverse = _mm256_div_ps(_mm256_set1_ps(1), scales8(group));
            __m256 least = _mm256_cvtepi32_ps(zero_points8(group));
            __m256 index = index8(load8(dtype, element_at(dtype, from, i)), inverse, least,
                                  _mm256_add_ps(least, last_code), strict_sign);
            __m256i codes = _mm256_cvtps_epi32(_mm256_sub_ps(index, least));
            __m256i nothing = _mm256_cmpeq_epi32(group, _mm256_setzero_si256());
            _mm_storel_epi64((__m128i *)(to + i), bytes8(_mm256_andnot_si256(nothing, codes)));
        }
        for (; i < n; i++)
            quantize(dtype, element_at(dtype, from, i), 1, words[i], bits, strict_sign, to + i);
    }
}

MESA_ALWAYS_INLINE void dequantize_columns(enum mesa_dtype dtype, const uint8_t *codes, size_t rows,
                                           size_t n, const uint32_t *words, void *ret_dst) {
    for (size_t row = 0; row < rows; row++) {
        char *to = (char *)ret_dst + row * n * element_bytes(dtype);
        const uint8_t *from = codes + row * n;
        size_t i = 0;
        for (; i + 8 <= n; i += 8) {
            __m256i group = _mm256_loadu_si256((const __m256i *)(words + i));
            __m256 values = values8(_mm_loadl_epi64((const __m128i *)(from + i)),
                                    zero_points8(group), scales8(group));
            store8(dtype, to + i * element_bytes(dtype), values, false);
        }
        for (; i < n; i++)
            element_store(dtype, to, i, affine_value(from[i], words[i]));
    }
}

static void pack_bits(const uint8_t *codes, size_t n, unsigned bits, uint8_t *ret_packed) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32)
        store_packed(ret_packed + i * bits / 8, _mm256_loadu_si256((const __m256i *)(codes + i)),
                     32, bits, false);
    if (i == n)
        return;
    uint8_t rest[32] = {0};
    memcpy(rest, codes + i, n - i);
    store_packed(ret_packed + i * bits / 8, _mm256_loadu_si256((const __m256i *)rest), n - i, bits,
                 false);
}

static void unpack_bits(const uint8_t *packed, size_t n, unsigned bits, uint8_t *ret_codes) {
    const struct cutter cutter = cutter_of(bits);
    const size_t packed_bytes = packed_size(n, bits);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        size_t offset = i * bits / 8;
        _mm256_storeu_si256((__m256i *)(ret_codes + i),
                            load_packed(packed + offset, 32, bits, cutter, packed_bytes - offset));
    }
    if (i == n)
        return;
    size_t offset = i * bits / 8;
    uint8_t rest[32];
    _mm256_storeu_si256((__m256i *)rest,
                        load_packed(packed + offset, n - i, bits, cutter, packed_bytes - offset));
    memcpy(ret_codes + i, rest, n - i);
}

/* ---- the entries ----------------------------------------------------------------------------- */

DEFINE_AFFINE_ENTRIES(f32, MESA_F32, true)
DEFINE_AFFINE_COLUMN_ENTRIES(f32, MESA_F32)
DEFINE_AFFINE_ENTRIES(bf16, MESA_BF16, true)
DEFINE_AFFINE_COLUMN_ENTRIES(bf16, MESA_BF16)
DEFINE_AFFINE_ENTRIES(f16, MESA_F16, false)
DEFINE_AFFINE_COLUMN_ENTRIES(f16, MESA_F16)

void mesa_kernels_fill_affine_avx2(struct mesa_kernels *table) {
    SET_AFFINE_ENTRIES(table, f32, MESA_F32);
    SET_AFFINE_COLUMN_ENTRIES(table, f32, MESA_F32);
    SET_AFFINE_ENTRIES(table, bf16, MESA_BF16);
    SET_AFFINE_COLUMN_ENTRIES(table, bf16, MESA_BF16);
    SET_AFFINE_ENTRIES(table, f16, MESA_F16);
    SET_AFFINE_COLUMN_ENTRIES(table, f16, MESA_F16);
    table->pack_bits = pack_bits;
    table->unpack_bits = unpack_bits;
}
