/* What the AVX-512 files share: sixteen elements of any real dtype as float32 and back, and 64 byte
 * codes to and from fewer bits. Tails go through masks, so nothing outside an array is touched.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_AVX512_H
#define MESA_CODEC_KERNELS_AVX512_H

#include "codec/kernels/element.h"

#include <immintrin.h>

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
MESA_ALWAYS_INLINE void store_line(void *dst, __m512i values, bool stream) {
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

/* The packed form of n <= 64 codes (0 beyond the n-th), exactly its bytes. `stream` may do so for 8
 * and 4 bits where `to` is aligned. */
MESA_ALWAYS_INLINE void store_packed(uint8_t *to, __m512i packed, size_t n, unsigned bits,
                                     bool stream) {
    __m256i half = _mm512_castsi512_si256(packed);
    stream = stream && (uintptr_t)to % (8 * bits) == 0;
    if (n == 64 && bits == 8)
        store_line(to, packed, stream);
    else if (n == 64 && bits == 4 && stream)
        _mm256_stream_si256((__m256i *)to, half);
    else if (n == 64 && bits == 4)
        _mm256_storeu_si256((__m256i *)to, half);
    else
        _mm512_mask_storeu_epi8(to, first64(packed_size(n, bits)), packed);
}

MESA_ALWAYS_INLINE __m512i load_packed(const uint8_t *from, size_t n, unsigned bits) {
    if (n == 64 && bits == 8)
        return _mm512_loadu_si512(from);
    if (n == 64 && bits == 4)
        return _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)from));
    return _mm512_maskz_loadu_epi8(first64(packed_size(n, bits)), from);
}

#endif
