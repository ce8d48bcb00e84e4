/* Vectors of NEON under the names that the kernels' templates use (affine_tmpl.h tells what each
 * means). Memory is loaded and stored as bytes, which asks for no alignment (little endian only);
 * there are no streaming stores, as the compilers have no intrinsic for stnp.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_NEON_H
#define MESA_CODEC_KERNELS_NEON_H

#include "codec/kernels/element.h"

#include <arm_neon.h>

typedef float32x4_t vfloat;
typedef int32x4_t vint;
typedef uint32x4_t vmask; /* lanes of ones or zeros */
typedef uint8x16x2_t vcodes;

#define LANES   4
#define BLOCK   32
#define VECTORS 8

/* ---- arithmetic -------------------------------------------------------------------------------- */

#define v_set(x)              vdupq_n_f32(x)
#define v_load(at)            vld1q_f32(at)
#define v_store               vst1q_f32
#define v_add                 vaddq_f32
#define v_sub                 vsubq_f32
#define v_mul                 vmulq_f32
#define v_div                 vdivq_f32
#define v_min                 vminq_f32
#define v_max                 vmaxq_f32
#define v_round               vrndnq_f32
#define v_floor               vrndmq_f32
#define v_bits                vreinterpretq_f32_s32
#define v_of_i                vcvtq_f32_s32
#define v_least               vminvq_f32
#define v_most                vmaxvq_f32
#define v_first(a, b, level)  vuzp1q_f32(a, b)
#define v_second(a, b, level) vuzp2q_f32(a, b)

#define i_set(x)       vdupq_n_s32((int32_t)(x))
#define i_load(at)     vreinterpretq_s32_u8(vld1q_u8((const uint8_t *)(at)))
#define i_store(at, x) vst1q_u8((uint8_t *)(at), vreinterpretq_u8_s32(x))
#define i_add          vaddq_s32
#define i_sub          vsubq_s32
#define i_mul          vmulq_s32
#define i_and          vandq_s32
#define i_or           vorrq_s32
#define i_xor          veorq_s32
#define i_up           vshlq_n_s32
#define i_down(x, n)   vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x), n))
#define i_down_signed  vshrq_n_s32
#define i_up_by(x, n)  vshlq_s32(x, vdupq_n_s32((int)(n)))
#define i_down_by(x, n)                                                                            \
    vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(x), vdupq_n_s32(-(int)(n))))
#define i_bits    vreinterpretq_s32_f32
#define i_of_v    vcvtnq_s32_f32
#define i_is_zero vceqzq_s32

#define h_lanes(x)          vreinterpretq_s16_s32(x)
#define h_words(x)          vreinterpretq_s32_s16(x)
#define h_set(x)            h_words(vdupq_n_s16(x))
#define h_min(a, b)         h_words(vminq_s16(h_lanes(a), h_lanes(b)))
#define h_max(a, b)         h_words(vmaxq_s16(h_lanes(a), h_lanes(b)))
#define h_sign(x)           h_words(vshrq_n_s16(h_lanes(x), 15))
#define h_odd_of(odd, even) vbslq_s32(vdupq_n_u32(0xffff0000), odd, even)

#define m_less              vcltq_f32
#define m_equal             vceqq_f32
#define m_differ(a, b)      vmvnq_u32(vceqq_f32(a, b))
#define m_not_at_most(a, b) vmvnq_u32(vcleq_f32(a, b))
#define m_at_least          vcgeq_f32
#define m_and               vandq_u32
#define m_or                vorrq_u32
#define m_and_not           vbicq_u32
#define m_all(m)            (vminvq_u32(m) != 0)
#define m_choose            vbslq_f32

MESA_ALWAYS_INLINE vfloat v_or(vfloat a, vfloat b) {
    return v_bits(i_or(i_bits(a), i_bits(b)));
}

MESA_ALWAYS_INLINE vfloat v_clip(vfloat x, vfloat least, vfloat most) {
    x = m_choose(m_less(x, most), x, most);
    return m_choose(m_less(least, x), x, least);
}

MESA_ALWAYS_INLINE vint i_places(void) {
    const int32_t places[LANES] = {0, 1, 2, 3};
    return vld1q_s32(places);
}

MESA_ALWAYS_INLINE unsigned m_bits(vmask m) {
    const uint32_t places[LANES] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(m, vld1q_u32(places)));
}

/* Eight bytes of ones or zeros to the bits of one, and back; the same with sixteen. */
MESA_ALWAYS_INLINE unsigned bits_of_8(uint8x8_t ones) {
    const uint8_t places[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    return vaddv_u8(vand_u8(ones, vld1_u8(places)));
}

MESA_ALWAYS_INLINE uint8x8_t ones_of_bits(uint8_t bits) {
    const uint8_t places[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    return vtst_u8(vdup_n_u8(bits), vld1_u8(places));
}

MESA_ALWAYS_INLINE unsigned bits_of_16(uint8x16_t ones) {
    return bits_of_8(vget_low_u8(ones)) | bits_of_8(vget_high_u8(ones)) << 8;
}

MESA_ALWAYS_INLINE uint64_t m_bits_of_4(const vmask m[4]) {
    uint16x8_t low = vcombine_u16(vmovn_u32(m[0]), vmovn_u32(m[1]));
    uint16x8_t high = vcombine_u16(vmovn_u32(m[2]), vmovn_u32(m[3]));
    return bits_of_16(vcombine_u8(vmovn_u16(low), vmovn_u16(high)));
}

/* ---- elements ---------------------------------------------------------------------------------- */

/* f32, bf16 and f16 only: float64 stays with the scalar entries. */
MESA_ALWAYS_INLINE vfloat load_floats(enum mesa_dtype dtype, const void *src) {
    if (dtype == MESA_F32)
        return vreinterpretq_f32_u8(vld1q_u8(src));
    uint16x4_t halves = vreinterpret_u16_u8(vld1_u8(src));
    if (dtype == MESA_F16)
        return vcvt_f32_f16(vreinterpret_f16_u16(halves));
    return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
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

MESA_ALWAYS_INLINE void store_vector(void *dst, vint values, bool stream) {
    (void)stream;
    i_store(dst, values);
}

MESA_ALWAYS_INLINE void store_floats(enum mesa_dtype dtype, void *dst, vfloat values, bool stream) {
    (void)stream;
    if (dtype == MESA_F32) {
        vst1q_u8(dst, vreinterpretq_u8_f32(values));
        return;
    }
    uint16x4_t halves;
    if (dtype == MESA_F16) {
        values = vminq_f32(vmaxq_f32(values, v_set(-MESA_F16_MAX)), v_set(MESA_F16_MAX));
        halves = vreinterpret_u16_f16(vcvt_f16_f32(values));
    } else {
        halves = bf16_round4(values);
    }
    vst1_u8(dst, vreinterpret_u8_u16(halves));
}

MESA_ALWAYS_INLINE void store_f16_some(void *dst, vfloat values, size_t n) {
    float16x4_t halves = vcvt_f16_f32(values);
    memcpy(dst, &halves, (n >= LANES ? LANES : n) * 2);
}

MESA_ALWAYS_INLINE void stores_done(void) {}

/* ---- codes ------------------------------------------------------------------------------------- */

MESA_ALWAYS_INLINE vcodes clip_codes(const int16x8_t halves[4], unsigned bits) {
    vcodes codes;
    for (size_t k = 0; k < 2; k++) {
        uint8x16_t bytes = vcombine_u8(vqmovun_s16(halves[2 * k]), vqmovun_s16(halves[2 * k + 1]));
        codes.val[k] = vminq_u8(bytes, vdupq_n_u8((uint8_t)((1u << bits) - 1)));
    }
    return codes;
}

MESA_ALWAYS_INLINE vcodes narrow_codes(const vint codes[VECTORS], unsigned bits) {
    int16x8_t halves[4];
    for (size_t k = 0; k < 4; k++)
        halves[k] = vcombine_s16(vqmovn_s32(codes[2 * k]), vqmovn_s32(codes[2 * k + 1]));
    return clip_codes(halves, bits);
}

MESA_ALWAYS_INLINE vcodes narrow_code_pairs(const vint codes[VECTORS], unsigned bits) {
    int16x8_t halves[4];
    for (size_t k = 0; k < 4; k++) {
        int16x4_t even = vqmovn_s32(codes[2 * k]), odd = vqmovn_s32(codes[2 * k + 1]);
        halves[k] = vcombine_s16(vzip1_s16(even, odd), vzip2_s16(even, odd));
    }
    return clip_codes(halves, bits);
}

MESA_ALWAYS_INLINE vint widen_half_codes(vcodes codes, size_t k) {
    uint8x16_t bytes = codes.val[k / 2];
    uint8x8_t half = k % 2 == 0 ? vget_low_u8(bytes) : vget_high_u8(bytes);
    return vreinterpretq_s32_u16(vmovl_u8(half));
}

MESA_ALWAYS_INLINE vint widen_codes(vcodes codes, size_t k) {
    uint16x8_t half = vreinterpretq_u16_s32(widen_half_codes(codes, k / 2));
    return vreinterpretq_s32_u32(vmovl_u16(k % 2 == 0 ? vget_low_u16(half) : vget_high_u16(half)));
}

MESA_ALWAYS_INLINE vcodes block_load(const void *src, size_t n) {
    uint8_t buffer[BLOCK] = {0};
    if (n < BLOCK) {
        memcpy(buffer, src, n);
        src = buffer;
    }
    const uint8_t *from = src;
    return (vcodes){{vld1q_u8(from), vld1q_u8(from + 16)}};
}

MESA_ALWAYS_INLINE void block_store(void *dst, vcodes codes, size_t n) {
    uint8_t buffer[BLOCK];
    uint8_t *to = n < BLOCK ? buffer : (uint8_t *)dst;
    vst1q_u8(to, codes.val[0]);
    vst1q_u8(to + 16, codes.val[1]);
    if (n < BLOCK)
        memcpy(dst, buffer, n);
}

MESA_ALWAYS_INLINE uint64_t codes_nonzero(vcodes codes) {
    return bits_of_16(vtstq_u8(codes.val[0], codes.val[0])) |
           (uint64_t)bits_of_16(vtstq_u8(codes.val[1], codes.val[1])) << 16;
}

MESA_ALWAYS_INLINE vcodes codes_of_bits(uint64_t bits) {
    vcodes codes;
    for (size_t k = 0; k < 2; k++) {
        uint8x8_t low = ones_of_bits((uint8_t)(bits >> 16 * k));
        uint8x8_t high = ones_of_bits((uint8_t)(bits >> (16 * k + 8)));
        codes.val[k] = vandq_u8(vcombine_u8(low, high), vdupq_n_u8(1));
    }
    return codes;
}

MESA_ALWAYS_INLINE vcodes codes_first(vcodes codes, size_t n) {
    uint8_t buffer[BLOCK];
    block_store(buffer, codes, BLOCK);
    return block_load(buffer, n);
}

MESA_ALWAYS_INLINE vint codes_load(const uint8_t *src, size_t n) {
    uint32_t bytes = 0;
    memcpy(&bytes, src, n >= LANES ? LANES : n);
    uint16x8_t halves = vmovl_u8(vcreate_u8(bytes));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(halves)));
}

MESA_ALWAYS_INLINE void codes_store(uint8_t *dst, vint codes, size_t n) {
    uint16x4_t halves = vmovn_u32(vreinterpretq_u32_s32(codes));
    uint8x8_t bytes = vmovn_u16(vcombine_u16(halves, halves));
    uint32_t four = vget_lane_u32(vreinterpret_u32_u8(bytes), 0);
    memcpy(dst, &four, n >= LANES ? LANES : n);
}

/* Eight bytes in a 64-bit word: neighbours are joined in 16, 32 and 64 bits, low + high * 2^width. */
MESA_ALWAYS_INLINE uint64_t pack8(uint64_t codes, unsigned bits) {
    codes = (codes & 0x00ff00ff00ff00ffu) | (codes >> 8 & 0x00ff00ff00ff00ffu) << bits;
    codes = (codes & 0x0000ffff0000ffffu) | (codes >> 16 & 0x0000ffff0000ffffu) << 2 * bits;
    return (codes & 0xffffffffu) | codes >> 32 << 4 * bits;
}

MESA_ALWAYS_INLINE uint64_t unpack8(uint64_t packed, unsigned bits) {
    const uint64_t four = ((uint64_t)1 << 4 * bits) - 1, two = ((uint64_t)1 << 2 * bits) - 1;
    const uint64_t one = ((uint64_t)1 << bits) - 1;
    packed = (packed & four) | (packed >> 4 * bits & four) << 32;
    packed = (packed & two * 0x100000001u) | (packed >> 2 * bits & two * 0x100000001u) << 16;
    return (packed & one * 0x0001000100010001u) | (packed >> bits & one * 0x0001000100010001u) << 8;
}

MESA_ALWAYS_INLINE size_t packed_size(size_t n, unsigned bits) {
    return (n * bits + 7) / 8;
}

MESA_ALWAYS_INLINE void store_packed(uint8_t *to, vcodes codes, size_t n, unsigned bits,
                                     bool stream) {
    (void)stream;
    if (bits == 8) {
        block_store(to, codes, n);
        return;
    }
    if (bits == 4 && n == BLOCK) {
        uint8x16_t even = vuzp1q_u8(codes.val[0], codes.val[1]);
        uint8x16_t odd = vuzp2q_u8(codes.val[0], codes.val[1]);
        vst1q_u8(to, vsliq_n_u8(even, odd, 4));
        return;
    }
    uint8_t bytes[BLOCK], packed[BLOCK + 8];
    block_store(bytes, codes, BLOCK);
    for (size_t i = 0; i < BLOCK; i += 8) { /* each covers the unused bytes of the one before */
        uint64_t word;
        memcpy(&word, bytes + i, sizeof word);
        word = pack8(word, bits);
        memcpy(packed + i * bits / 8, &word, sizeof word);
    }
    memcpy(to, packed, packed_size(n, bits));
}

MESA_ALWAYS_INLINE vcodes load_packed(const uint8_t *from, size_t n, unsigned bits,
                                      size_t readable) {
    (void)readable;
    if (bits == 8)
        return block_load(from, n);
    if (bits == 4 && n == BLOCK) {
        uint8x16_t packed = vld1q_u8(from);
        uint8x16_t even = vandq_u8(packed, vdupq_n_u8(15)), odd = vshrq_n_u8(packed, 4);
        return (vcodes){{vzip1q_u8(even, odd), vzip2q_u8(even, odd)}};
    }
    uint8_t bytes[BLOCK], packed[BLOCK + 8] = {0};
    memcpy(packed, from, packed_size(n, bits));
    for (size_t i = 0; i < BLOCK; i += 8) {
        uint64_t word;
        memcpy(&word, packed + i * bits / 8, sizeof word);
        word = unpack8(word & (((uint64_t)1 << 8 * bits) - 1), bits);
        memcpy(bytes + i, &word, sizeof word);
    }
    return block_load(bytes, BLOCK);
}

/* ---- elements as bits --------------------------------------------------------------------------- */

MESA_ALWAYS_INLINE vint bytes_load(const void *src, size_t n) {
    uint8_t buffer[16] = {0};
    if (n < sizeof buffer) {
        memcpy(buffer, src, n);
        src = buffer;
    }
    return i_load(src);
}

MESA_ALWAYS_INLINE void bytes_store(void *dst, vint x, size_t n, bool stream) {
    (void)stream;
    uint8_t buffer[16];
    i_store(n < sizeof buffer ? (void *)buffer : dst, x);
    if (n < sizeof buffer)
        memcpy(dst, buffer, n);
}

MESA_ALWAYS_INLINE vint e_set(size_t bytes, uint64_t element) {
    return bytes == 1   ? vreinterpretq_s32_u8(vdupq_n_u8((uint8_t)element))
           : bytes == 2 ? vreinterpretq_s32_u16(vdupq_n_u16((uint16_t)element))
           : bytes == 4 ? vreinterpretq_s32_u32(vdupq_n_u32((uint32_t)element))
                        : vreinterpretq_s32_u64(vdupq_n_u64(element));
}

MESA_ALWAYS_INLINE uint64_t e_equal(size_t bytes, vint a, vint b) {
    if (bytes == 1)
        return bits_of_16(vceqq_u8(vreinterpretq_u8_s32(a), vreinterpretq_u8_s32(b)));
    if (bytes == 2)
        return bits_of_8(vmovn_u16(vceqq_u16(vreinterpretq_u16_s32(a), vreinterpretq_u16_s32(b))));
    if (bytes == 4)
        return m_bits(vceqq_s32(a, b));
    uint64x2_t lanes = vceqq_u64(vreinterpretq_u64_s32(a), vreinterpretq_u64_s32(b));
    return (vgetq_lane_u64(lanes, 0) & 1) | (vgetq_lane_u64(lanes, 1) & 2);
}

MESA_ALWAYS_INLINE vint e_choose(size_t bytes, uint64_t bits, vint yes, vint no) {
    int8x8_t ones = vreinterpret_s8_u8(ones_of_bits((uint8_t)bits));
    int16x8_t halves = vmovl_s8(ones);
    int32x4_t words = vmovl_s16(vget_low_s16(halves));
    vint lanes = bytes == 1   ? vreinterpretq_s32_s8(vcombine_s8(
                                    ones, vreinterpret_s8_u8(ones_of_bits((uint8_t)(bits >> 8)))))
                 : bytes == 2 ? vreinterpretq_s32_s16(halves)
                 : bytes == 4 ? words
                              : vreinterpretq_s32_s64(vmovl_s32(vget_low_s32(words)));
    return vbslq_s32(vreinterpretq_u32_s32(lanes), yes, no);
}

#include "codec/kernels/tails_tmpl.h"

#endif
