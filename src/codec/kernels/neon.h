/* What the NEON files share: four elements of float32 or bfloat16 as float32 and back. Memory is
 * loaded and stored as bytes, which asks for no alignment (little endian only).
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_NEON_H
#define MESA_CODEC_KERNELS_NEON_H

#include "codec/kernels/element.h"

#include <arm_neon.h>

MESA_ALWAYS_INLINE float32x4_t load4(enum mesa_dtype dtype, const void *src) {
    if (dtype == MESA_F32)
        return vreinterpretq_f32_u8(vld1q_u8(src));
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(src)), 16));
}

/* bf16_round() of four. */
MESA_ALWAYS_INLINE uint16x4_t bf16_round4(float32x4_t values) {
    uint32x4_t bits = vreinterpretq_u32_f32(values);
    uint32x4_t even = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), even);
    uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    rounded = vbslq_u32(vceqq_f32(values, values), rounded, quiet);
    return vshrn_n_u32(rounded, 16);
}

MESA_ALWAYS_INLINE void store4(enum mesa_dtype dtype, void *dst, float32x4_t values) {
    if (dtype == MESA_F32)
        vst1q_u8(dst, vreinterpretq_u8_f32(values));
    else
        vst1_u8(dst, vreinterpret_u8_u16(bf16_round4(values)));
}

/* Eight bytes of ones or zeros to the bits of one. */
MESA_ALWAYS_INLINE uint8_t bits_of_bytes(uint8x8_t ones) {
    const uint8_t places[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    return vaddv_u8(vand_u8(ones, vld1_u8(places)));
}

/* The bits of eight lanes of 32 bits, each all ones or zeros. */
MESA_ALWAYS_INLINE uint8_t bits_of_words(uint32x4_t low, uint32x4_t high) {
    return bits_of_bytes(vmovn_u16(vcombine_u16(vmovn_u32(low), vmovn_u32(high))));
}

#endif
