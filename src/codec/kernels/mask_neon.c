/* Masks with NEON: lanes of ones are narrowed to bytes, of which each keeps its own bit, and the sum
 * of eight is a byte of the mask. Equals mask_scalar.c byte for byte.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"
#include "codec/kernels/mask_entries.h"
#include "codec/kernels/neon.h"
#include "codec/kernels/predicate.h"

MESA_ALWAYS_INLINE void mask_append(uint8_t *mask, size_t i, bool bit) {
    if (i % 8 == 0)
        mask[i / 8] = 0;
    mask[i / 8] = (uint8_t)(mask[i / 8] | (unsigned)bit << (i % 8));
}

static bool mask_bit(const uint8_t *mask, size_t i) {
    return mask[i / 8] >> (i % 8) & 1;
}

/* A byte of the mask to eight bytes of ones or zeros. */
MESA_ALWAYS_INLINE uint8x8_t bytes_of_bits(uint8_t bits) {
    const uint8_t places[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    return vtst_u8(vdup_n_u8(bits), vld1_u8(places));
}

static void pack_bool(const uint8_t *src, size_t n, uint8_t *ret_mask) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint8x8_t x = vld1_u8(src + i);
        ret_mask[i / 8] = bits_of_bytes(vtst_u8(x, x));
    }
    for (; i < n; i++)
        mask_append(ret_mask, i, src[i] != 0);
}

static void unpack_bool(const uint8_t *mask, size_t n, uint8_t *ret_dst) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        vst1_u8(ret_dst + i, vand_u8(bytes_of_bits(mask[i / 8]), vdup_n_u8(1)));
    for (; i < n; i++)
        ret_dst[i] = mask_bit(mask, i);
}

MESA_ALWAYS_INLINE uint32x4_t holds4(enum mesa_predicate predicate, float32x4_t x, double lo,
                                     double hi) {
    switch (predicate) {
    case MESA_ABOVE:
        return vmvnq_u32(vcleq_f32(x, vdupq_n_f32(float_below(lo))));
    case MESA_GREATER:
        return vcgtq_f32(x, vdupq_n_f32(float_below(lo)));
    case MESA_BETWEEN:
        return vandq_u32(vcgtq_f32(x, vdupq_n_f32(float_below(lo))),
                         vcltq_f32(x, vdupq_n_f32(float_above(hi))));
    case MESA_WITHIN:
        return vandq_u32(vcgeq_f32(x, vdupq_n_f32(float_above(lo))),
                         vcleq_f32(x, vdupq_n_f32(float_below(hi))));
    case MESA_NONZERO:
    case MESA_PREDICATE_COUNT:
        break;
    }
    return vmvnq_u32(vceqzq_f32(x));
}

MESA_ALWAYS_INLINE void pack_one_predicate(enum mesa_dtype dtype, enum mesa_predicate predicate,
                                           const void *src, size_t n, double lo, double hi,
                                           uint8_t *ret_mask) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        float32x4_t low = load_floats(dtype, element_at(dtype, src, i));
        float32x4_t high = load_floats(dtype, element_at(dtype, src, i + 4));
        ret_mask[i / 8] =
            bits_of_words(holds4(predicate, low, lo, hi), holds4(predicate, high, lo, hi));
    }
    for (; i < n; i++)
        mask_append(ret_mask, i,
                    predicate_holds(predicate, element_load_double(dtype, src, i), lo, hi));
}

MESA_ALWAYS_INLINE void pack_predicate(enum mesa_dtype dtype, const void *src, size_t n,
                                       enum mesa_predicate predicate, double lo, double hi,
                                       uint8_t *ret_mask) {
    if (predicate == MESA_ABOVE)
        pack_one_predicate(dtype, MESA_ABOVE, src, n, lo, hi, ret_mask);
    else if (predicate == MESA_GREATER)
        pack_one_predicate(dtype, MESA_GREATER, src, n, lo, hi, ret_mask);
    else if (predicate == MESA_BETWEEN)
        pack_one_predicate(dtype, MESA_BETWEEN, src, n, lo, hi, ret_mask);
    else if (predicate == MESA_WITHIN)
        pack_one_predicate(dtype, MESA_WITHIN, src, n, lo, hi, ret_mask);
    else
        pack_one_predicate(dtype, MESA_NONZERO, src, n, lo, hi, ret_mask);
}

/* Elements of 4 bytes. */
static bool pack_two_words(const void *src, size_t n, const void *zero, const void *one,
                           uint8_t *ret_mask) {
    uint32_t zero_bits, one_bits;
    memcpy(&zero_bits, zero, sizeof zero_bits);
    memcpy(&one_bits, one, sizeof one_bits);
    const uint32x4_t zeros = vdupq_n_u32(zero_bits), ones = vdupq_n_u32(one_bits);
    const uint8_t *from = src;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint32x4_t is_one[2], known = vdupq_n_u32(UINT32_MAX);
        for (size_t j = 0; j < 2; j++) {
            uint32x4_t x = vreinterpretq_u32_u8(vld1q_u8(from + (i + j * 4) * 4));
            is_one[j] = vceqq_u32(x, ones);
            known = vandq_u32(known, vorrq_u32(is_one[j], vceqq_u32(x, zeros)));
        }
        if (vminvq_u32(known) == 0)
            return false;
        ret_mask[i / 8] = bits_of_words(is_one[0], is_one[1]);
    }
    for (; i < n; i++) {
        bool is_one = memcmp(from + i * 4, one, 4) == 0;
        if (!is_one && memcmp(from + i * 4, zero, 4) != 0)
            return false;
        mask_append(ret_mask, i, is_one);
    }
    return true;
}

static void unpack_two_words(const uint8_t *mask, size_t n, const void *zero, const void *one,
                             bool stream, void *ret_dst) {
    (void)stream;
    uint32_t zero_bits, one_bits;
    memcpy(&zero_bits, zero, sizeof zero_bits);
    memcpy(&one_bits, one, sizeof one_bits);
    const uint32x4_t zeros = vdupq_n_u32(zero_bits), ones = vdupq_n_u32(one_bits);
    uint8_t *to = ret_dst;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        int16x8_t lanes = vmovl_s8(vreinterpret_s8_u8(bytes_of_bits(mask[i / 8])));
        uint32x4_t low = vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(lanes)));
        uint32x4_t high = vreinterpretq_u32_s32(vmovl_s16(vget_high_s16(lanes)));
        vst1q_u8(to + i * 4, vreinterpretq_u8_u32(vbslq_u32(low, ones, zeros)));
        vst1q_u8(to + i * 4 + 16, vreinterpretq_u8_u32(vbslq_u32(high, ones, zeros)));
    }
    for (; i < n; i++)
        memcpy(to + i * 4, mask_bit(mask, i) ? one : zero, 4);
}

DEFINE_PREDICATE_ENTRY(f32, MESA_F32)
DEFINE_PREDICATE_ENTRY(bf16, MESA_BF16)

void mesa_kernels_fill_mask_neon(struct mesa_kernels *table) {
    table->mask_pack_bool = pack_bool;
    table->mask_unpack_bool = unpack_bool;
    table->mask_pack[MESA_F32] = pack_predicate_f32;
    table->mask_pack[MESA_BF16] = pack_predicate_bf16;
    table->mask_pack_two[1] = pack_two_words;
    table->mask_unpack_two[1] = unpack_two_words;
}
