/* One element at a time: loading any real dtype as float32, storing it back, and the two short
 * floats. The rules for rounding, NaN and overflow of single values are here and nowhere else.
 *
 * Everything is static inline: of an external function the linker could keep the copy that was
 * compiled for a processor that is not this one.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_ELEMENT_H
#define MESA_CODEC_KERNELS_ELEMENT_H

#include "dtype.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MESA_ALWAYS_INLINE static inline __attribute__((always_inline))

#define MESA_F16_MAX 65504.0f

MESA_ALWAYS_INLINE uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

MESA_ALWAYS_INLINE float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

MESA_ALWAYS_INLINE float bf16_widen(uint16_t half) {
    return float_of_bits((uint32_t)half << 16);
}

/* To nearest, ties to even: adding 0x7fff and the lowest kept bit carries exactly where it should.
 * A NaN keeps its sign and upper payload and becomes quiet (a payload in the lower half alone would
 * turn into infinity). */
MESA_ALWAYS_INLINE uint16_t bf16_round(float value) {
    uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* NaN becomes quiet, as the conversion instructions of x86 and ARM have it. */
MESA_ALWAYS_INLINE float f16_widen(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t magnitude = half & 0x7fffu;
    if (magnitude > 0x7c00u)
        return float_of_bits(sign | 0x7fc00000u | magnitude << 13);
    if (magnitude == 0x7c00u)
        return float_of_bits(sign | 0x7f800000u);
    if (magnitude >= 0x0400u)
        return float_of_bits(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
    /* subnormal: magnitude units of 2^-24, exact in float32 */
    return float_of_bits(sign | float_bits((float)magnitude * 0x1p-24f));
}

/* To nearest, ties to even, infinity from 65520 up. */
MESA_ALWAYS_INLINE uint16_t f16_round(float value) {
    uint32_t bits = float_bits(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* 65520 */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude >= 0x38800000u) { /* 2^-14: a normal number, its exponent gets the new bias */
        uint32_t even = magnitude >> 13 & 1u;
        return (uint16_t)(sign | ((magnitude + 0xfffu + even - ((127u - 15u) << 23)) >> 13));
    }
    /* subnormal: an integer number of 2^-24, rounded by the float unit */
    return (uint16_t)(sign | (uint32_t)rintf(float_of_bits(magnitude) * 0x1p24f));
}

/* A nonzero float64 must not become zero on its way: signs depend on it. */
MESA_ALWAYS_INLINE float f64_narrow(double value) {
    float narrow = (float)value;
    if (narrow == 0 && value != 0)
        return value < 0 ? -FLT_TRUE_MIN : FLT_TRUE_MIN;
    return narrow;
}

MESA_ALWAYS_INLINE size_t element_bytes(enum mesa_dtype dtype) {
    return dtype == MESA_F64 ? 8 : dtype == MESA_F32 ? 4 : 2;
}

MESA_ALWAYS_INLINE const void *element_at(enum mesa_dtype dtype, const void *src, size_t i) {
    return (const char *)src + i * element_bytes(dtype);
}

/* Element i of an array of a real dtype as float32. */
MESA_ALWAYS_INLINE float element_load(enum mesa_dtype dtype, const void *src, size_t i) {
    const void *at = element_at(dtype, src, i);
    if (dtype == MESA_F64) {
        double value;
        memcpy(&value, at, sizeof value);
        return f64_narrow(value);
    }
    if (dtype == MESA_F32) {
        float value;
        memcpy(&value, at, sizeof value);
        return value;
    }
    uint16_t half;
    memcpy(&half, at, sizeof half);
    return dtype == MESA_BF16 ? bf16_widen(half) : f16_widen(half);
}

/* The same without a loss, for comparisons. */
MESA_ALWAYS_INLINE double element_load_double(enum mesa_dtype dtype, const void *src, size_t i) {
    if (dtype != MESA_F64)
        return (double)element_load(dtype, src, i);
    double value;
    memcpy(&value, element_at(dtype, src, i), sizeof value);
    return value;
}

/* Stores a finite decoded value, or NaN. What rounding would carry past the largest float16 (a code
 * lies up to half a step beyond its source) becomes the largest: finite stays finite. */
MESA_ALWAYS_INLINE void element_store(enum mesa_dtype dtype, void *dst, size_t i, float value) {
    char *at = (char *)dst + i * element_bytes(dtype);
    if (dtype == MESA_F64) {
        double wide = (double)value;
        memcpy(at, &wide, sizeof wide);
    } else if (dtype == MESA_F32) {
        memcpy(at, &value, sizeof value);
    } else {
        if (dtype == MESA_F16 && value > MESA_F16_MAX)
            value = MESA_F16_MAX;
        if (dtype == MESA_F16 && value < -MESA_F16_MAX)
            value = -MESA_F16_MAX;
        uint16_t half = dtype == MESA_BF16 ? bf16_round(value) : f16_round(value);
        memcpy(at, &half, sizeof half);
    }
}

#endif
