/* What the AVX2 files share: eight elements of a real dtype as float32 and back, and 32 byte codes
 * to and from fewer bits. There are no masked loads of small elements here, so tails go through
 * buffers of a whole vector.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_AVX2_H
#define MESA_CODEC_KERNELS_AVX2_H

#include "codec/kernels/element.h"

#include <immintrin.h>

/* f32, bf16 and f16 only: float64 stays with the scalar entries. */
MESA_ALWAYS_INLINE __m256 load8(enum mesa_dtype dtype, const void *src) {
    if (dtype == MESA_F32)
        return _mm256_loadu_ps(src);
    __m128i halves = _mm_loadu_si128(src);
    if (dtype == MESA_F16)
        return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* The n < 8 elements at src, n >= 1, and the first of them again in the other lanes: nothing new
 * for a range. */
MESA_ALWAYS_INLINE __m256 load8_tail(enum mesa_dtype dtype, const void *src, size_t n) {
    size_t bytes = element_bytes(dtype);
    char buffer[32];
    for (size_t i = 0; i < 8; i++)
        memcpy(buffer + i * bytes, (const char *)src + (i < n ? i : 0) * bytes, bytes);
    return load8(dtype, buffer);
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
MESA_ALWAYS_INLINE void store_vector(void *dst, __m256i values, bool stream) {
    if (stream)
        _mm256_stream_si256(dst, values);
    else
        _mm256_storeu_si256(dst, values);
}

/* element_store() of eight finite elements. `stream`: dst is aligned to the bytes written. */
MESA_ALWAYS_INLINE void store8(enum mesa_dtype dtype, void *dst, __m256 values, bool stream) {
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

MESA_ALWAYS_INLINE size_t packed_size(size_t n, unsigned bits) {
    return (n * bits + 7) / 8;
}

/* Writes the packed form of n <= 32 codes (0 beyond the n-th): exactly packed_size() bytes. `stream`
 * may do so past the caches, for 8 and 4 bits where `to` is aligned. Neighbours are joined in 16, 32
 * and 64 bits (each time low + high * 2^width), then the used bytes of every 64 bits are put next to
 * each other. */
MESA_ALWAYS_INLINE void store_packed(uint8_t *to, __m256i codes, size_t n, unsigned bits,
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
        memcpy(to, buffer, packed_size(n, bits));
        return;
    }
    if (n < 32)
        memcpy(to, buffer, packed_size(n, bits));
}

/* How to cut codes of other widths than 8 and 4 bits out of eight at a time: each lies in the 16 bits
 * that start at its byte, and is shifted up there so that its upper end is known, then down. */
struct cutter {
    __m128i pairs; /* bytes of those 16 bits */
    __m128i up;    /* factors for the shift up */
};

MESA_ALWAYS_INLINE struct cutter cutter_of(unsigned bits) {
    uint8_t pairs[16];
    uint16_t up[8];
    for (unsigned i = 0; i < 8; i++) {
        pairs[2 * i] = (uint8_t)(i * bits / 8);
        pairs[2 * i + 1] = (uint8_t)(i * bits / 8 + 1);
        up[i] = (uint16_t)(1u << (8 - i * bits % 8));
    }
    return (struct cutter){_mm_loadu_si128((const __m128i *)pairs),
                           _mm_loadu_si128((const __m128i *)up)};
}

MESA_ALWAYS_INLINE __m256i cut32(const uint8_t *from, unsigned bits, struct cutter cutter) {
    const __m256i pairs = _mm256_broadcastsi128_si256(cutter.pairs);
    const __m256i up = _mm256_broadcastsi128_si256(cutter.up);
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

/* n <= 32 codes; the lanes beyond are unspecified. `readable`: bytes at `from` that may be touched. */
MESA_ALWAYS_INLINE __m256i load_packed(const uint8_t *from, size_t n, unsigned bits,
                                       struct cutter cutter, size_t readable) {
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
    return cut32(from, bits, cutter);
}

#endif
