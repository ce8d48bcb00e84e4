/* Vectors of AVX-512 under the names that the kernels' templates use (affine_tmpl.h tells what each
 * means), and the masked forms below them. Tails go through masks, so nothing outside an array is
 * touched.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_AVX512_H
#define MESA_CODEC_KERNELS_AVX512_H

#include "codec/kernels/element.h"

#include <immintrin.h>

typedef __m512 vfloat;
typedef __m512i vint;
typedef __mmask16 vmask;
typedef __m512i vcodes;

#define LANES   16
#define BLOCK   64
#define VECTORS 4

/* ---- arithmetic -------------------------------------------------------------------------------- */

#define TO_NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define DOWN       (_MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)

#define v_set(x)   _mm512_set1_ps(x)
#define v_load(at) _mm512_loadu_ps(at)
#define v_store    _mm512_storeu_ps
#define v_add      _mm512_add_ps
#define v_sub      _mm512_sub_ps
#define v_mul      _mm512_mul_ps
#define v_div      _mm512_div_ps
#define v_min      _mm512_min_ps
#define v_max      _mm512_max_ps
#define v_or       _mm512_or_ps
#define v_round(x) _mm512_roundscale_ps(x, TO_NEAREST)
#define v_floor(x) _mm512_roundscale_ps(x, DOWN)
#define v_bits     _mm512_castsi512_ps
#define v_of_i     _mm512_cvtepi32_ps
#define v_least    _mm512_reduce_min_ps
#define v_most     _mm512_reduce_max_ps

#define i_set(x)        _mm512_set1_epi32((int)(x))
#define i_load(at)      _mm512_loadu_si512(at)
#define i_store(at, x)  _mm512_storeu_si512(at, x)
#define i_places()      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define i_add           _mm512_add_epi32
#define i_sub           _mm512_sub_epi32
#define i_mul           _mm512_mullo_epi32
#define i_and           _mm512_and_si512
#define i_or            _mm512_or_si512
#define i_xor           _mm512_xor_si512
#define i_up            _mm512_slli_epi32
#define i_down          _mm512_srli_epi32
#define i_down_signed   _mm512_srai_epi32
#define i_up_by(x, n)   _mm512_sll_epi32(x, _mm_cvtsi32_si128((int)(n)))
#define i_down_by(x, n) _mm512_srl_epi32(x, _mm_cvtsi32_si128((int)(n)))
#define i_bits          _mm512_castps_si512
#define i_of_v          _mm512_cvtps_epi32
#define i_is_zero(x)    _mm512_testn_epi32_mask(x, x)

#define h_set(x)            _mm512_set1_epi16(x)
#define h_min               _mm512_min_epi16
#define h_max               _mm512_max_epi16
#define h_sign(x)           _mm512_srai_epi16(x, 15)
#define h_odd_of(odd, even) _mm512_mask_mov_epi16(even, 0xaaaaaaaa, odd)

#define m_less(a, b)         _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)
#define m_equal(a, b)        _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ)
#define m_at_least(a, b)     _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ)
#define m_differ(a, b)       _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ)
#define m_not_at_most(a, b)  _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ)
#define m_and(a, b)          ((vmask)((a) & (b)))
#define m_or(a, b)           ((vmask)((a) | (b)))
#define m_and_not(a, b)      ((vmask)((a) & ~(b)))
#define m_bits(m)            ((unsigned)(m))
#define m_all(m)             ((m) == 0xffff)
#define m_choose(m, yes, no) _mm512_mask_mov_ps(no, m, yes)

MESA_ALWAYS_INLINE uint64_t m_bits_of_4(const vmask m[4]) {
    return m[0] | (uint64_t)m[1] << 16 | (uint64_t)m[2] << 32 | (uint64_t)m[3] << 48;
}

MESA_ALWAYS_INLINE vfloat v_clip(vfloat x, vfloat least, vfloat most) {
    return _mm512_max_ps(_mm512_min_ps(x, most), least);
}

MESA_ALWAYS_INLINE vfloat v_first(vfloat a, vfloat b, int level) {
    return level == 0 ? _mm512_unpacklo_ps(a, b)
           : level == 1
               ? _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)))
               : _mm512_shuffle_f32x4(a, b, 0x88);
}

MESA_ALWAYS_INLINE vfloat v_second(vfloat a, vfloat b, int level) {
    return level == 0 ? _mm512_unpackhi_ps(a, b)
           : level == 1
               ? _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)))
               : _mm512_shuffle_f32x4(a, b, 0xdd);
}

/* ---- elements ---------------------------------------------------------------------------------- */

/* Lanes for the first n elements of a vector, all of them from the vector's length up. */
MESA_ALWAYS_INLINE __mmask64 first64(size_t n) {
    return n >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << n) - 1;
}

MESA_ALWAYS_INLINE __mmask32 first32(size_t n) {
    return n >= 32 ? ~(__mmask32)0 : ((__mmask32)1 << n) - 1;
}

MESA_ALWAYS_INLINE __mmask16 first16(size_t n) {
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1);
}

MESA_ALWAYS_INLINE __mmask8 first8(size_t n) {
    return (__mmask8)(n >= 8 ? 0xffu : (1u << n) - 1);
}

/* float64 to float32 as f64_narrow() does: +-0 from something else becomes the least number. */
MESA_ALWAYS_INLINE __m256 narrow8(__m512d wide) {
    __m256 narrow = _mm512_cvtpd_ps(wide);
    __mmask8 lost = _mm512_cmp_pd_mask(wide, _mm512_setzero_pd(), _CMP_NEQ_OQ) &
                    _mm256_cmp_ps_mask(narrow, _mm256_setzero_ps(), _CMP_EQ_OQ);
    __m256i bits = _mm256_castps_si256(narrow);
    return _mm256_castsi256_ps(_mm256_mask_or_epi32(bits, lost, bits, _mm256_set1_epi32(1)));
}

/* Elements `lanes` of the sixteen at src; 0 in the others. */
MESA_ALWAYS_INLINE __m512 load16(enum mesa_dtype dtype, const void *src, __mmask16 lanes) {
    if (dtype == MESA_F32)
        return _mm512_maskz_loadu_ps(lanes, src);
    if (dtype == MESA_F64) {
        const double *from = src;
        __m256 low = narrow8(_mm512_maskz_loadu_pd((__mmask8)lanes, from));
        __m256 high = narrow8(_mm512_maskz_loadu_pd((__mmask8)(lanes >> 8), from + 8));
        return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
    }
    __m256i halves = _mm256_maskz_loadu_epi16(lanes, src);
    if (dtype == MESA_F16)
        return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

MESA_ALWAYS_INLINE vfloat load_floats(enum mesa_dtype dtype, const void *src) {
    return load16(dtype, src, 0xffff);
}

MESA_ALWAYS_INLINE vfloat load_some(enum mesa_dtype dtype, const void *src, size_t n) {
    if (n >= LANES)
        return load_floats(dtype, src);
    vfloat x = load16(dtype, src, first16(n));
    return _mm512_mask_mov_ps(_mm512_broadcastss_ps(_mm512_castps512_ps128(x)), first16(n), x);
}

/* bf16_round() of sixteen. */
MESA_ALWAYS_INLINE __m256i bf16_round16(__m512 values) {
    __m512i bits = _mm512_castps_si512(values);
    __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), even);
    __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

/* `stream`: dst is aligned. */
MESA_ALWAYS_INLINE void store_vector(void *dst, vint values, bool stream) {
    if (stream)
        _mm512_stream_si512(dst, values);
    else
        _mm512_storeu_si512(dst, values);
}

/* element_store() for `lanes` of sixteen elements. `stream`: all lanes, and dst is aligned to the
 * bytes written. */
MESA_ALWAYS_INLINE void store16(enum mesa_dtype dtype, void *dst, __mmask16 lanes, __m512 values,
                                bool stream) {
    if (dtype == MESA_F32) {
        if (stream)
            _mm512_stream_ps(dst, values);
        else
            _mm512_mask_storeu_ps(dst, lanes, values);
        return;
    }
    if (dtype == MESA_F64) {
        double *to = dst;
        __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(values));
        __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(values, 1));
        if (stream) {
            _mm512_stream_pd(to, low);
            _mm512_stream_pd(to + 8, high);
        } else {
            _mm512_mask_storeu_pd(to, (__mmask8)lanes, low);
            _mm512_mask_storeu_pd(to + 8, (__mmask8)(lanes >> 8), high);
        }
        return;
    }
    __m256i halves;
    if (dtype == MESA_F16) { /* operands of min and max in this order let NaN through */
        values = _mm512_min_ps(_mm512_set1_ps(MESA_F16_MAX), values);
        values = _mm512_max_ps(_mm512_set1_ps(-MESA_F16_MAX), values);
        halves = _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    } else {
        halves = bf16_round16(values);
    }
    if (stream)
        _mm256_stream_si256(dst, halves);
    else
        _mm256_mask_storeu_epi16(dst, lanes, halves);
}

MESA_ALWAYS_INLINE void store_floats(enum mesa_dtype dtype, void *dst, vfloat values, bool stream) {
    store16(dtype, dst, 0xffff, values, stream);
}

MESA_ALWAYS_INLINE void store_some(enum mesa_dtype dtype, void *dst, vfloat values, size_t n) {
    store16(dtype, dst, first16(n), values, false);
}

MESA_ALWAYS_INLINE void store_f16_some(void *dst, vfloat values, size_t n) {
    _mm256_mask_storeu_epi16(
        dst, first16(n), _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

MESA_ALWAYS_INLINE void stores_done(void) {
    _mm_sfence();
}

/* ---- codes ------------------------------------------------------------------------------------- */

/* To a byte each, in groups of four: codes 4k..4k+3 of all four vectors in the 128-bit lane k.
 * Saturation clips below 0 and above 255 on the way. */
MESA_ALWAYS_INLINE __m512i narrow_lanes(const vint codes[VECTORS], unsigned bits) {
    __m512i bytes = _mm512_packus_epi16(_mm512_packs_epi32(codes[0], codes[1]),
                                        _mm512_packs_epi32(codes[2], codes[3]));
    return bits == 8 ? bytes : _mm512_min_epu8(bytes, _mm512_set1_epi8((char)((1u << bits) - 1)));
}

MESA_ALWAYS_INLINE vcodes narrow_codes(const vint codes[VECTORS], unsigned bits) {
    return _mm512_permutexvar_epi32(
        _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0),
        narrow_lanes(codes, bits));
}

/* Even and odd elements alternate first within the lanes. */
MESA_ALWAYS_INLINE vcodes narrow_code_pairs(const vint codes[VECTORS], unsigned bits) {
    const __m128i alternate = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    __m512i bytes =
        _mm512_shuffle_epi8(narrow_lanes(codes, bits), _mm512_broadcast_i32x4(alternate));
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), bytes);
}

MESA_ALWAYS_INLINE vint widen_codes(vcodes codes, size_t k) {
    return _mm512_cvtepu8_epi32(k == 0   ? _mm512_castsi512_si128(codes)
                                : k == 1 ? _mm512_extracti32x4_epi32(codes, 1)
                                : k == 2 ? _mm512_extracti32x4_epi32(codes, 2)
                                         : _mm512_extracti32x4_epi32(codes, 3));
}

MESA_ALWAYS_INLINE vint widen_half_codes(vcodes codes, size_t k) {
    return _mm512_cvtepu8_epi16(k == 0 ? _mm512_castsi512_si256(codes)
                                       : _mm512_extracti64x4_epi64(codes, 1));
}

MESA_ALWAYS_INLINE vcodes codes_first(vcodes codes, size_t n) {
    return _mm512_maskz_mov_epi8(first64(n), codes);
}

MESA_ALWAYS_INLINE vcodes block_load(const void *src, size_t n) {
    if (n >= BLOCK)
        return _mm512_loadu_si512(src);
    return _mm512_maskz_loadu_epi8(first64(n), src);
}

MESA_ALWAYS_INLINE void block_store(void *dst, vcodes codes, size_t n) {
    if (n >= BLOCK)
        _mm512_storeu_si512(dst, codes);
    else
        _mm512_mask_storeu_epi8(dst, first64(n), codes);
}

MESA_ALWAYS_INLINE uint64_t codes_nonzero(vcodes codes) {
    return _mm512_test_epi8_mask(codes, codes);
}

MESA_ALWAYS_INLINE vcodes codes_of_bits(uint64_t bits) {
    return _mm512_maskz_set1_epi8(bits, 1);
}

MESA_ALWAYS_INLINE vint codes_load(const uint8_t *src, size_t n) {
    if (n >= LANES)
        return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)src));
    return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first16(n), src));
}

MESA_ALWAYS_INLINE void codes_store(uint8_t *dst, vint codes, size_t n) {
    _mm_mask_storeu_epi8(dst, first16(n), _mm512_cvtepi32_epi8(codes));
}

/* The low `bits` bytes of each 8. */
MESA_ALWAYS_INLINE __mmask64 packed_bytes(unsigned bits) {
    return 0x0101010101010101u * (((uint64_t)1 << bits) - 1);
}

/* 64 codes of `bits` bits to 8 * bits bytes: neighbours are joined in 16, 32 and 64 bits (each time
 * low + high * 2^width), then the used bytes of the 64-bit lanes move together. */
MESA_ALWAYS_INLINE __m512i pack64(__m512i codes, unsigned bits) {
    if (bits == 8)
        return codes;
    __m512i join2 = _mm512_set1_epi16((short)(1 | 1 << bits << 8));
    __m512i joined = _mm512_maddubs_epi16(join2, codes);
    if (bits == 4)
        return _mm512_castsi256_si512(_mm512_cvtepi16_epi8(joined));
    joined = _mm512_madd_epi16(joined, _mm512_set1_epi32(1 | 1 << (2 * bits) << 16));
    __m512i high =
        _mm512_sll_epi64(_mm512_srli_epi64(joined, 32), _mm_cvtsi32_si128((int)(4 * bits)));
    joined = _mm512_ternarylogic_epi64(joined, _mm512_set1_epi64(0xffffffff), high, 0xea);
    return _mm512_maskz_compress_epi8(packed_bytes(bits), joined);
}

/* Inverse: every 64-bit lane gets its `bits` bytes, every byte its own shift. */
MESA_ALWAYS_INLINE __m512i unpack64(__m512i packed, unsigned bits) {
    if (bits == 8)
        return packed;
    if (bits == 4) {
        __m512i pairs = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(packed));
        return _mm512_and_si512(_mm512_or_si512(pairs, _mm512_slli_epi16(pairs, 4)),
                                _mm512_set1_epi8(15));
    }
    __m512i lanes = _mm512_maskz_expand_epi8(packed_bytes(bits), packed);
    __m512i shifts = _mm512_set1_epi64((long long)(0x0706050403020100u * bits));
    return _mm512_and_si512(_mm512_multishift_epi64_epi8(shifts, lanes),
                            _mm512_set1_epi8((char)((1u << bits) - 1)));
}

MESA_ALWAYS_INLINE size_t packed_size(size_t n, unsigned bits) {
    return (n * bits + 7) / 8;
}

/* Streams for 8 and 4 bits where `to` is aligned. */
MESA_ALWAYS_INLINE void store_packed(uint8_t *to, vcodes codes, size_t n, unsigned bits,
                                     bool stream) {
    __m512i packed = pack64(codes, bits);
    __m256i half = _mm512_castsi512_si256(packed);
    stream = stream && (uintptr_t)to % (8 * bits) == 0;
    if (n == 64 && bits == 8)
        store_vector(to, packed, stream);
    else if (n == 64 && bits == 4 && stream)
        _mm256_stream_si256((__m256i *)to, half);
    else if (n == 64 && bits == 4)
        _mm256_storeu_si256((__m256i *)to, half);
    else
        _mm512_mask_storeu_epi8(to, first64(packed_size(n, bits)), packed);
}

MESA_ALWAYS_INLINE vcodes load_packed(const uint8_t *from, size_t n, unsigned bits,
                                      size_t readable) {
    (void)readable; /* a mask touches nothing else */
    if (n == 64 && bits == 8)
        return _mm512_loadu_si512(from);
    if (n == 64 && bits == 4)
        return unpack64(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)from)), 4);
    return unpack64(_mm512_maskz_loadu_epi8(first64(packed_size(n, bits)), from), bits);
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
    return bytes == 1   ? _mm512_set1_epi8((char)element)
           : bytes == 2 ? _mm512_set1_epi16((short)element)
           : bytes == 4 ? _mm512_set1_epi32((int)element)
                        : _mm512_set1_epi64((long long)element);
}

MESA_ALWAYS_INLINE uint64_t e_equal(size_t bytes, vint a, vint b) {
    return bytes == 1   ? _mm512_cmpeq_epi8_mask(a, b)
           : bytes == 2 ? _mm512_cmpeq_epi16_mask(a, b)
           : bytes == 4 ? _mm512_cmpeq_epi32_mask(a, b)
                        : _mm512_cmpeq_epi64_mask(a, b);
}

MESA_ALWAYS_INLINE vint e_choose(size_t bytes, uint64_t bits, vint yes, vint no) {
    return bytes == 1   ? _mm512_mask_mov_epi8(no, bits, yes)
           : bytes == 2 ? _mm512_mask_mov_epi16(no, (__mmask32)bits, yes)
           : bytes == 4 ? _mm512_mask_mov_epi32(no, (__mmask16)bits, yes)
                        : _mm512_mask_mov_epi64(no, (__mmask8)bits, yes);
}

#endif
