/* Floats taken apart, in plain loops that every instruction set's file compiles for itself: the
 * compiler makes vectors of them. The format is told in kernels.h.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_EXPONENT_H
#define MESA_CODEC_KERNELS_EXPONENT_H

#include "codec/kernels/element.h"

MESA_ALWAYS_INLINE uint32_t load_bits(enum mesa_dtype dtype, const uint8_t *src) {
    uint32_t wide;
    uint16_t half;
    if (dtype == MESA_F32) {
        memcpy(&wide, src, sizeof wide);
        return wide;
    }
    memcpy(&half, src, sizeof half);
    return half;
}

MESA_ALWAYS_INLINE uint8_t exponent_of(enum mesa_dtype dtype, uint32_t bits) {
    return dtype == MESA_F32    ? (uint8_t)(bits >> 23)
           : dtype == MESA_BF16 ? (uint8_t)(bits >> 7)
                                : (uint8_t)(bits >> 10 & 0x1f);
}

MESA_ALWAYS_INLINE void split(enum mesa_dtype dtype, const void *src, size_t n,
                              uint8_t *restrict ret_exponents, uint8_t *restrict ret_rest,
                              uint8_t *restrict ret_extra) {
    const uint8_t *restrict from = src;
    uint8_t *restrict upper = ret_rest + 2 * n;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = load_bits(dtype, from + i * element_bytes(dtype));
        ret_exponents[i] = exponent_of(dtype, bits);
        if (dtype == MESA_F32) {
            uint16_t low = (uint16_t)bits;
            memcpy(ret_rest + 2 * i, &low, sizeof low);
            upper[i] = (uint8_t)((bits >> 16 & 0x7f) | (bits >> 24 & 0x80));
        } else if (dtype == MESA_BF16) {
            ret_rest[i] = (uint8_t)((bits & 0x7f) | (bits >> 8 & 0x80));
        } else {
            ret_rest[i] = (uint8_t)bits;
            ret_extra[i] = (uint8_t)((bits >> 8 & 3) | (bits >> 13 & 4));
        }
    }
}

MESA_ALWAYS_INLINE void join(enum mesa_dtype dtype, const uint8_t *restrict exponents,
                             const uint8_t *restrict rest, const uint8_t *restrict extra, size_t n,
                             void *ret_dst) {
    uint8_t *restrict to = ret_dst;
    const uint8_t *restrict upper = rest + 2 * n;
    for (size_t i = 0; i < n; i++) {
        if (dtype == MESA_F32) {
            uint16_t low;
            memcpy(&low, rest + 2 * i, sizeof low);
            uint32_t bits = low | (upper[i] & 0x7fu) << 16 | (upper[i] & 0x80u) << 24 |
                            (uint32_t)exponents[i] << 23;
            memcpy(to + 4 * i, &bits, sizeof bits);
            continue;
        }
        uint16_t half = dtype == MESA_BF16
                            ? (uint16_t)((rest[i] & 0x7fu) | (rest[i] & 0x80u) << 8 |
                                         (unsigned)exponents[i] << 7)
                            : (uint16_t)(rest[i] | (extra[i] & 3u) << 8 | (extra[i] & 4u) << 13 |
                                         (unsigned)exponents[i] << 10);
        memcpy(to + 2 * i, &half, sizeof half);
    }
}

MESA_ALWAYS_INLINE size_t count_far(enum mesa_dtype dtype, const void *src, size_t n, uint8_t top,
                                    uint8_t escape) {
    const uint8_t *from = src;
    uint32_t count = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = load_bits(dtype, from + i * element_bytes(dtype));
        count += (uint8_t)(top - exponent_of(dtype, bits)) >= escape;
    }
    return count;
}

#define EXPONENT_DTYPES(entries)                                                                   \
    entries(f32, MESA_F32) entries(bf16, MESA_BF16) entries(f16, MESA_F16)

#define DEFINE_EXPONENT_ENTRIES(name, dtype)                                                       \
    static void split_##name(const void *src, size_t n, uint8_t *ret_exponents, uint8_t *ret_rest, \
                             uint8_t *ret_extra) {                                                 \
        split(dtype, src, n, ret_exponents, ret_rest, ret_extra);                                  \
    }                                                                                              \
    static void join_##name(const uint8_t *exponents, const uint8_t *rest, const uint8_t *extra,   \
                            size_t n, void *ret_dst) {                                             \
        join(dtype, exponents, rest, extra, n, ret_dst);                                           \
    }                                                                                              \
    static size_t count_far_##name(const void *src, size_t n, uint8_t top, uint8_t escape) {       \
        return count_far(dtype, src, n, top, escape);                                              \
    }

#define SET_EXPONENT_ENTRIES(name, dtype)                                                          \
    table->exponent_split[dtype] = split_##name;                                                   \
    table->exponent_join[dtype] = join_##name;                                                     \
    table->exponent_count_far[dtype] = count_far_##name;

#endif
