/* Vectors of AVX2 under the names that the kernels' templates use (affine_tmpl.h tells what each means).
 * There are no masked loads of small elements here, so tails go through buffers of a whole vector.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_AVX2_H
#define MESA_CODEC_KERNELS_AVX2_H

#include "codec/kernels/element.h"

#include <immintrin.h>

typedef __m256 vfloat;
typedef __m256i vint;
typedef __m256 vmask; /* lanes of ones or zeros */
typedef __m256i vcodes;

#define LANES   8
#define BLOCK   32
#define VECTORS 4

/* ---- arithmetic -------------------------------------------------------------------------------- */

#define TO_NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define DOWN       (_MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)

#define v_set(x)   _mm256_set1_ps(x)
#define v_load(at) _mm256_loadu_ps(at)
#define v_store    _mm256_storeu_ps
#define v_add      _mm256_add_ps
#define v_sub      _mm256_sub_ps
#define v_mul      _mm256_mul_ps
#define v_div      _mm256_div_ps
#define v_min      _mm256_min_ps
#define v_max      _mm256_max_ps
#define v_or       _mm256_or_ps
#define v_round(x) _mm256_round_ps(x, TO_NEAREST)
#define v_floor(x) _mm256_round_ps(x, DOWN)
#define v_bits     _mm256_castsi256_ps
#define v_of_i     _mm256_cvtepi32_ps

#define i_set(x)        _mm256_set1_epi32((int)(x))
#define i_load(at)      _mm256_loadu_si256((const __m256i *)(at))
#define i_store(at, x)  _mm256_storeu_si256((__m256i *)(at), x)
#define i_places()      _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)
#define i_add           _mm256_add_epi32
#define i_sub           _mm256_sub_epi32
#define i_mul           _mm256_mullo_epi32
#define i_and           _mm256_and_si256
#define i_or            _mm256_or_si256
#define i_xor           _mm256_xor_si256
#define i_up            _mm256_slli_epi32
#define i_down          _mm256_srli_epi32
#define i_down_signed   _mm256_srai_epi32
#define i_up_by(x, n)   _mm256_sll_epi32(x, _mm_cvtsi32_si128((int)(n)))
#define i_down_by(x, n) _mm256_srl_epi32(x, _mm_cvtsi32_si128((int)(n)))
#define i_bits          _mm256_castps_si256
#define i_of_v          _mm256_cvtps_epi32
#define i_is_zero(x)    _mm256_castsi256_ps(_mm256_cmpeq_epi32(x, _mm256_setzero_si256()))

#define h_set(x)            _mm256_set1_epi16(x)
#define h_min               _mm256_min_epi16
#define h_max               _mm256_max_epi16
#define h_sign(x)           _mm256_srai_epi16(x, 15)
#define h_odd_of(odd, even) _mm256_blend_epi16(even, odd, 0xaa)

#define m_less(a, b)         _mm256_cmp_ps(a, b, _CMP_LT_OQ)
#define m_equal(a, b)        _mm256_cmp_ps(a, b, _CMP_EQ_OQ)
#define m_at_least(a, b)     _mm256_cmp_ps(a, b, _CMP_GE_OQ)
#define m_differ(a, b)       _mm256_cmp_ps(a, b, _CMP_NEQ_UQ)
#define m_not_at_most(a, b)  _mm256_cmp_ps(a, b, _CMP_NLE_UQ)
#define m_and                _mm256_and_ps
#define m_or                 _mm256_or_ps
#define m_and_not(a, b)      _mm256_andnot_ps(b, a)
#define m_bits(m)            ((unsigned)_mm256_movemask_ps(m))
#define m_all(m)             (_mm256_movemask_ps(m) == 0xff)
#define m_choose(m, yes, no) _mm256_blendv_ps(no, yes, m)

MESA_ALWAYS_INLINE uint64_t m_bits_of_4(const vmask m[4]) {
    return m_bits(m[0]) | m_bits(m[1]) << 8 | m_bits(m[2]) << 16 | m_bits(m[3]) << 24;
}

MESA_ALWAYS_INLINE vfloat v_clip(vfloat x, vfloat least, vfloat most) {
    return _mm256_max_ps(_mm256_min_ps(x, most), least);
}

MESA_ALWAYS_INLINE vfloat v_first(vfloat a, vfloat b, int level) {
    return level == 0 ? _mm256_unpacklo_ps(a, b)
           : level == 1
               ? _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)))
               : _mm256_permute2f128_ps(a, b, 0x20);
}

MESA_ALWAYS_INLINE vfloat v_second(vfloat a, vfloat b, int level) {
    return level == 0 ? _mm256_unpackhi_ps(a, b)
           : level == 1
               ? _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)))
               : _mm256_permute2f128_ps(a, b, 0x31);
}

MESA_ALWAYS_INLINE float v_least(vfloat x) {
    __m128 four = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_min_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_min_ss(four, _mm_movehdup_ps(four)));
}

MESA_ALWAYS_INLINE float v_most(vfloat x) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

/* ---- elements ---------------------------------------------------------------------------------- */

/* f32, bf16 and f16 only: float64 stays with the scalar entries. */
MESA_ALWAYS_INLINE vfloat load_floats(enum mesa_dtype dtype, const void *src) {
    if (dtype == MESA_F32)
        return _mm256_loadu_ps(src);
    __m128i halves = _mm_loadu_si128(src);
    if (dtype == MESA_F16)
        return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* bf16_round() of eight. */
MESA_ALWAYS_INLINE __m128i bf16_round8(__m256 values) {
    __m256i bits = _mm256_castps_si256(values);
    __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), even);
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256 nan = _mm256_cmp_ps(values, values, _CMP_UNORD_Q);
    rounded = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
    rounded = _mm256_srli_epi32(rounded, 16);
    rounded = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
    return _mm256_castsi256_si128(rounded);
}

/* `stream`: dst is aligned. */
MESA_ALWAYS_INLINE void store_vector(void *dst, vint values, bool stream) {
    if (stream)
        _mm256_stream_si256(dst, values);
    else
        _mm256_storeu_si256(dst, values);
}

MESA_ALWAYS_INLINE void store_floats(enum mesa_dtype dtype, void *dst, vfloat values, bool stream) {
    if (dtype == MESA_F32) {
        if (stream)
            _mm256_stream_ps(dst, values);
        else
            _mm256_storeu_ps(dst, values);
        return;
    }
    __m128i halves;
    if (dtype == MESA_F16) {
        values = _mm256_min_ps(_mm256_set1_ps(MESA_F16_MAX), values);
        values = _mm256_max_ps(_mm256_set1_ps(-MESA_F16_MAX), values);
        halves = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
    } else {
        halves = bf16_round8(values);
    }
    if (stream)
        _mm_stream_si128(dst, halves);
    else
        _mm_storeu_si128(dst, halves);
}

MESA_ALWAYS_INLINE void store_f16_some(void *dst, vfloat values, size_t n) {
    __m128i halves = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
    if (n >= LANES)
        _mm_storeu_si128(dst, halves);
    else
        memcpy(dst, &halves, n * 2);
}

MESA_ALWAYS_INLINE void stores_done(void) {
    _mm_sfence();
}

/* ---- codes ------------------------------------------------------------------------------------- */

/* To a byte each, in groups of four: codes 4k..4k+3 of all four vectors in the 128-bit lane k.
 * Saturation clips below 0 and above 255 on the way. */
MESA_ALWAYS_INLINE __m256i narrow_lanes(const vint codes[VECTORS], unsigned bits) {
    __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(codes[0], codes[1]),
                                        _mm256_packs_epi32(codes[2], codes[3]));
    return bits == 8 ? bytes : _mm256_min_epu8(bytes, _mm256_set1_epi8((char)((1u << bits) - 1)));
}

MESA_ALWAYS_INLINE vcodes narrow_codes(const vint codes[VECTORS], unsigned bits) {
    return _mm256_permutevar8x32_epi32(narrow_lanes(codes, bits),
                                       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Even and odd elements alternate first within the lanes. */
MESA_ALWAYS_INLINE vcodes narrow_code_pairs(const vint codes[VECTORS], unsigned bits) {
    const __m128i alternate = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    __m256i bytes =
        _mm256_shuffle_epi8(narrow_lanes(codes, bits), _mm256_broadcastsi128_si256(alternate));
    return _mm256_permute4x64_epi64(bytes, 0xd8);
}

MESA_ALWAYS_INLINE vint widen_codes(vcodes codes, size_t k) {
    __m128i half = k < 2 ? _mm256_castsi256_si128(codes) : _mm256_extracti128_si256(codes, 1);
    return _mm256_cvtepu8_epi32(k % 2 == 0 ? half : _mm_srli_si128(half, 8));
}

MESA_ALWAYS_INLINE vint widen_half_codes(vcodes codes, size_t k) {
    return _mm256_cvtepu8_epi16(k == 0 ? _mm256_castsi256_si128(codes)
                                       : _mm256_extracti128_si256(codes, 1));
}

MESA_ALWAYS_INLINE vcodes codes_first(vcodes codes, size_t n) {
    const __m256i places =
        _mm256_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,
                         21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
    return _mm256_and_si256(codes, _mm256_cmpgt_epi8(_mm256_set1_epi8((char)n), places));
}

MESA_ALWAYS_INLINE vcodes block_load(const void *src, size_t n) {
    if (n >= BLOCK)
        return i_load(src);
    uint8_t buffer[BLOCK] = {0};
    memcpy(buffer, src, n);
    return i_load(buffer);
}

MESA_ALWAYS_INLINE void block_store(void *dst, vcodes codes, size_t n) {
    uint8_t buffer[BLOCK];
    i_store(n >= BLOCK ? dst : (void *)buffer, codes);
    if (n < BLOCK)
        memcpy(dst, buffer, n);
}

MESA_ALWAYS_INLINE uint64_t codes_nonzero(vcodes codes) {
    return ~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(codes, _mm256_setzero_si256()));
}

/* 32 bits to 32 bytes of all ones or zeros. */
MESA_ALWAYS_INLINE __m256i spread32(uint32_t bits) {
    const __m256i place =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), place);
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
}

MESA_ALWAYS_INLINE vcodes codes_of_bits(uint64_t bits) {
    return _mm256_and_si256(spread32((uint32_t)bits), _mm256_set1_epi8(1));
}

MESA_ALWAYS_INLINE vint codes_load(const uint8_t *src, size_t n) {
    if (n >= LANES)
        return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)src));
    uint8_t buffer[LANES] = {0};
    memcpy(buffer, src, n);
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)buffer));
}

MESA_ALWAYS_INLINE void codes_store(uint8_t *dst, vint codes, size_t n) {
    __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
    uint64_t bytes = (uint64_t)_mm_cvtsi128_si64(_mm_packus_epi16(words, words));
    memcpy(dst, &bytes, n >= LANES ? LANES : n);
}

MESA_ALWAYS_INLINE size_t packed_size(size_t n, unsigned bits) {
    return (n * bits + 7) / 8;
}

/* `words` < 8 of 4 bytes, without a call. */
MESA_ALWAYS_INLINE void copy_words(uint8_t *to, const uint8_t *from, unsigned words) {
    if (words & 4)
        memcpy(to, from, 16);
    to += (words & 4) * 4;
    from += (words & 4) * 4;
    if (words & 2)
        memcpy(to, from, 8);
    to += (words & 2) * 4;
    from += (words & 2) * 4;
    if (words & 1)
        memcpy(to, from, 4);
}

/* Streams for 8 and 4 bits where `to` is aligned. Neighbours are joined in 16, 32 and 64 bits (each
 * time low + high * 2^width), then the used bytes of every 64 bits are put next to each other. */
MESA_ALWAYS_INLINE void store_packed(uint8_t *to, vcodes codes, size_t n, unsigned bits,
                                     bool stream) {
    uint8_t buffer[64];
    __m256i joined = codes;
    stream = stream && n == 32 && (uintptr_t)to % (4 * bits) == 0;
    if (bits < 8)
        joined = _mm256_maddubs_epi16(_mm256_set1_epi16((short)(1 | 1 << bits << 8)), codes);
    if (bits == 8) {
        if (stream)
            _mm256_stream_si256((__m256i *)to, joined);
        else
            _mm256_storeu_si256((__m256i *)(n == 32 ? to : buffer), joined);
    } else if (bits == 4) {
        joined = _mm256_permute4x64_epi64(_mm256_packus_epi16(joined, joined), 0x08);
        if (stream)
            _mm_stream_si128((__m128i *)to, _mm256_castsi256_si128(joined));
        else
            _mm_storeu_si128((__m128i *)(n == 32 ? to : buffer), _mm256_castsi256_si128(joined));
    } else {
        joined = _mm256_madd_epi16(joined, _mm256_set1_epi32(1 | 1 << (2 * bits) << 16));
        __m128i shift = _mm_cvtsi32_si128((int)(4 * bits));
        __m256i low = _mm256_and_si256(joined, _mm256_set1_epi64x(0xffffffff));
        joined = _mm256_or_si256(low, _mm256_sll_epi64(_mm256_srli_epi64(joined, 32), shift));
        uint64_t lanes[4];
        _mm256_storeu_si256((__m256i *)lanes, joined);
        for (unsigned k = 0; k < 4; k++) /* each covers the unused bytes of the one before */
            memcpy(buffer + k * bits, &lanes[k], 8);
        if (n == 32)
            copy_words(to, buffer, bits);
        else
            memcpy(to, buffer, packed_size(n, bits));
        return;
    }
    if (n < 32)
        memcpy(to, buffer, packed_size(n, bits));
}

/* How to cut codes of other widths than 8 and 4 bits out of eight at a time: each lies in the 16 bits
 * that start at its byte (`pairs`), and is multiplied up there so that its upper end is known, then
 * shifted down. */
#define CUT_PAIR(bits, i) (uint8_t)((i) * (bits) / 8), (uint8_t)((i) * (bits) / 8 + 1)
#define CUT_UP(bits, i)   (uint16_t)(1u << (8 - (i) * (bits) % 8))
#define CUTTER(bits)                                                                               \
    {                                                                                              \
        {CUT_PAIR(bits, 0), CUT_PAIR(bits, 1), CUT_PAIR(bits, 2), CUT_PAIR(bits, 3),               \
         CUT_PAIR(bits, 4), CUT_PAIR(bits, 5), CUT_PAIR(bits, 6), CUT_PAIR(bits, 7)},              \
            {CUT_UP(bits, 0), CUT_UP(bits, 1), CUT_UP(bits, 2), CUT_UP(bits, 3),                   \
             CUT_UP(bits, 4), CUT_UP(bits, 5), CUT_UP(bits, 6), CUT_UP(bits, 7)},                  \
    }

static const struct cutter {
    uint8_t pairs[16];
    uint16_t up[8];
} cutters[9] = {CUTTER(0u), CUTTER(1u), CUTTER(2u), CUTTER(3u), CUTTER(4u),
                CUTTER(5u), CUTTER(6u), CUTTER(7u), CUTTER(8u)};

MESA_ALWAYS_INLINE __m256i cut32(const uint8_t *from, unsigned bits) {
    const struct cutter *cutter = &cutters[bits];
    const __m256i pairs =
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)cutter->pairs));
    const __m256i up = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)cutter->up));
    __m256i halves[2];
    for (unsigned k = 0; k < 2; k++) {
        const uint8_t *at = from + (size_t)(2 * k) * bits;
        __m256i lanes =
            _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)at)),
                                    _mm_loadu_si128((const __m128i *)(at + bits)), 1);
        lanes = _mm256_mullo_epi16(_mm256_shuffle_epi8(lanes, pairs), up);
        halves[k] = _mm256_and_si256(_mm256_srli_epi16(lanes, 8),
                                     _mm256_set1_epi16((short)((1u << bits) - 1)));
    }
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(halves[0], halves[1]), 0xd8);
}

MESA_ALWAYS_INLINE vcodes load_packed(const uint8_t *from, size_t n, unsigned bits,
                                      size_t readable) {
    uint8_t buffer[64];
    if (readable < 3 * bits + 16 && (n < 32 || (bits != 8 && bits != 4))) {
        memset(buffer, 0, sizeof buffer);
        memcpy(buffer, from, packed_size(n, bits));
        from = buffer;
    }
    if (bits == 8)
        return _mm256_loadu_si256((const __m256i *)from);
    if (bits == 4) {
        __m256i pairs = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)from));
        return _mm256_and_si256(_mm256_or_si256(pairs, _mm256_slli_epi16(pairs, 4)),
                                _mm256_set1_epi8(15));
    }
    return cut32(from, bits);
}

/* ---- elements as bits --------------------------------------------------------------------------- */

#define bytes_load block_load

MESA_ALWAYS_INLINE void bytes_store(void *dst, vint x, size_t n, bool stream) {
    if (n >= sizeof x)
        store_vector(dst, x, stream);
    else
        block_store(dst, x, n);
}

MESA_ALWAYS_INLINE vint e_set(size_t bytes, uint64_t element) {
    return bytes == 1   ? _mm256_set1_epi8((char)element)
           : bytes == 2 ? _mm256_set1_epi16((short)element)
           : bytes == 4 ? _mm256_set1_epi32((int)element)
                        : _mm256_set1_epi64x((long long)element);
}

MESA_ALWAYS_INLINE uint64_t e_equal(size_t bytes, vint a, vint b) {
    if (bytes == 1)
        return (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(a, b));
    if (bytes == 4)
        return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b)));
    if (bytes == 8)
        return (uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(a, b)));
    __m256i lanes = _mm256_cmpeq_epi16(a, b);
    return (uint32_t)_mm_movemask_epi8(
        _mm_packs_epi16(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1)));
}

MESA_ALWAYS_INLINE vint e_choose(size_t bytes, uint64_t bits, vint yes, vint no) {
    __m256i ones = spread32((uint32_t)bits);
    __m128i low = _mm256_castsi256_si128(ones);
    return _mm256_blendv_epi8(no, yes,
                              bytes == 1   ? ones
                              : bytes == 2 ? _mm256_cvtepi8_epi16(low)
                              : bytes == 4 ? _mm256_cvtepi8_epi32(low)
                                           : _mm256_cvtepi8_epi64(low));
}

#include "codec/kernels/tails_tmpl.h"

#endif
