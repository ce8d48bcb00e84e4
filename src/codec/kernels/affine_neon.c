/* Affine codes with NEON, for float32 and bfloat16. A group is ranged, its word comes from
 * mesa_affine_word(), and it is coded out of the first cache. Equals affine_scalar.c byte for byte.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/affine.h"
#include "codec/kernels/affine_entries.h"
#include "codec/kernels/batch.h"
#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"
#include "codec/kernels/neon.h"

/* Elements that are coded together: a group is a multiple of it, but for the end of a row. */
#define BLOCK MESA_GROUP_UNIT

/* ---- range ----------------------------------------------------------------------------------- */

MESA_ALWAYS_INLINE bool range(enum mesa_dtype dtype, const void *src, size_t n, float *lo,
                              float *hi) {
    float32x4_t least[2] = {vdupq_n_f32(*lo), vdupq_n_f32(*lo)};
    float32x4_t most[2] = {vdupq_n_f32(*hi), vdupq_n_f32(*hi)};
    uint32x4_t finite = vdupq_n_u32(UINT32_MAX);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (size_t j = 0; j < 2; j++) {
            float32x4_t x = load4(dtype, element_at(dtype, src, i + j * 4));
            least[j] = vminq_f32(least[j], x);
            most[j] = vmaxq_f32(most[j], x);
            finite = vandq_u32(finite, vcleq_f32(vabsq_f32(x), vdupq_n_f32(FLT_MAX)));
        }
    }
    bool all_finite = vminvq_u32(finite) != 0;
    *lo = vminvq_f32(vminq_f32(least[0], least[1]));
    *hi = vmaxvq_f32(vmaxq_f32(most[0], most[1]));
    for (; i < n; i++) {
        float x = element_load(dtype, src, i);
        all_finite = all_finite && isfinite(x);
        *lo = x < *lo ? x : *lo;
        *hi = x > *hi ? x : *hi;
    }
    *lo += 0.0f;
    *hi += 0.0f;
    return all_finite;
}

/* ---- packing: eight bytes at a time in a 64-bit word --------------------------------------------- */

/* Neighbours are joined in 16, 32 and 64 bits: low + high * 2^width. */
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

/* n <= BLOCK codes, 0 beyond the n-th, to exactly their packed bytes. */
MESA_ALWAYS_INLINE void pack_block(const uint8_t codes[BLOCK], size_t n, unsigned bits,
                                   uint8_t *to) {
    uint8_t packed[BLOCK + 8];
    if (bits == 8) {
        memcpy(to, codes, n);
        return;
    }
    if (bits == 4 && n == BLOCK) {
        uint8x16x2_t pairs = vld2q_u8(codes);
        vst1q_u8(to, vsliq_n_u8(pairs.val[0], pairs.val[1], 4));
        return;
    }
    for (size_t i = 0; i < BLOCK; i += 8) { /* each covers the unused bytes of the one before */
        uint64_t word;
        memcpy(&word, codes + i, sizeof word);
        word = pack8(word, bits);
        memcpy(packed + i * bits / 8, &word, sizeof word);
    }
    memcpy(to, packed, mesa_code_row_bytes(n, bits));
}

MESA_ALWAYS_INLINE void unpack_block(const uint8_t *from, size_t n, unsigned bits,
                                     uint8_t ret_codes[BLOCK]) {
    if (bits == 8) {
        memcpy(ret_codes, from, n);
        return;
    }
    if (bits == 4 && n == BLOCK) {
        uint8x16_t packed = vld1q_u8(from);
        uint8x16x2_t pairs = {{vandq_u8(packed, vdupq_n_u8(15)), vshrq_n_u8(packed, 4)}};
        vst2q_u8(ret_codes, pairs);
        return;
    }
    uint8_t packed[BLOCK + 8] = {0};
    memcpy(packed, from, mesa_code_row_bytes(n, bits));
    for (size_t i = 0; i < BLOCK; i += 8) {
        uint64_t word;
        memcpy(&word, packed + i * bits / 8, sizeof word);
        word = unpack8(word & (((uint64_t)1 << 8 * bits) - 1), bits);
        memcpy(ret_codes + i, &word, sizeof word);
    }
}

static void pack_bits(const uint8_t *codes, size_t n, unsigned bits, uint8_t *ret_packed) {
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        pack_block(codes + i, BLOCK, bits, ret_packed + i * bits / 8);
    if (i == n)
        return;
    uint8_t rest[BLOCK] = {0};
    memcpy(rest, codes + i, n - i);
    pack_block(rest, n - i, bits, ret_packed + i * bits / 8);
}

static void unpack_bits(const uint8_t *packed, size_t n, unsigned bits, uint8_t *ret_codes) {
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        unpack_block(packed + i * bits / 8, BLOCK, bits, ret_codes + i);
    if (i == n)
        return;
    uint8_t rest[BLOCK];
    unpack_block(packed + i * bits / 8, n - i, bits, rest);
    memcpy(ret_codes + i, rest, n - i);
}

/* ---- codes ----------------------------------------------------------------------------------- */

/* affine_nearest() of four elements in 32 bits, not clipped yet. The conversion rounds to nearest
 * even and saturates. */
MESA_ALWAYS_INLINE int32x4_t code4(float32x4_t x, float32x4_t inverse, int32x4_t zero_point,
                                   bool strict_sign) {
    int32x4_t index = vcvtnq_s32_f32(vmulq_f32(x, inverse));
    if (strict_sign) {
        int32x4_t up = vmaxq_s32(index, vdupq_n_s32(1));
        int32x4_t down = vminq_s32(index, vdupq_n_s32(-1));
        index = vbslq_s32(vcgtzq_f32(x), up, index);
        index = vbslq_s32(vcltzq_f32(x), down, index);
    }
    return vqsubq_s32(index, zero_point);
}

/* Codes of BLOCK elements of a group, a byte each, clipped on the way. */
MESA_ALWAYS_INLINE void quantize_block(enum mesa_dtype dtype, const void *src,
                                       struct affine_grid grid, unsigned bits, bool strict_sign,
                                       uint8_t ret_codes[BLOCK]) {
    float32x4_t inverse = vdupq_n_f32(grid.inverse);
    int32x4_t zero_point = vdupq_n_s32((int32_t)grid.least);
    for (size_t i = 0; i < BLOCK; i += 16) {
        int32x4_t codes[4];
        for (size_t j = 0; j < 4; j++)
            codes[j] = code4(load4(dtype, element_at(dtype, src, i + j * 4)), inverse, zero_point,
                             strict_sign);
        int16x8_t low = vcombine_s16(vqmovn_s32(codes[0]), vqmovn_s32(codes[1]));
        int16x8_t high = vcombine_s16(vqmovn_s32(codes[2]), vqmovn_s32(codes[3]));
        uint8x16_t bytes = vcombine_u8(vqmovun_s16(low), vqmovun_s16(high));
        vst1q_u8(ret_codes + i, vminq_u8(bytes, vdupq_n_u8((uint8_t)((1u << bits) - 1))));
    }
}

/* Elements may lie outside the word's range here, or be NaN, so they are clipped as float32, in the
 * manner of affine_code(). */
MESA_ALWAYS_INLINE void quantize(enum mesa_dtype dtype, const void *src, size_t n, uint32_t word,
                                 unsigned bits, bool strict_sign, uint8_t *ret_codes) {
    if (word == 0) {
        memset(ret_codes, 0, n);
        return;
    }
    const struct affine_grid grid = affine_grid_of(word, bits);
    const float32x4_t least = vdupq_n_f32(grid.least), most = vdupq_n_f32(grid.most);
    const float32x4_t one = vdupq_n_f32(1);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint16x4_t codes[2];
        for (size_t j = 0; j < 2; j++) {
            float32x4_t x = load4(dtype, element_at(dtype, src, i + j * 4));
            float32x4_t index = vrndnq_f32(vmulq_n_f32(x, grid.inverse));
            if (strict_sign) {
                index = vbslq_f32(vcgtzq_f32(x), vmaxq_f32(index, one), index);
                index = vbslq_f32(vcltzq_f32(x), vminq_f32(index, vnegq_f32(one)), index);
            }
            index = vbslq_f32(vcltq_f32(index, most), index, most);
            index = vbslq_f32(vcgtq_f32(index, least), index, least);
            codes[j] = vmovn_u32(vcvtq_u32_f32(vsubq_f32(index, least)));
        }
        vst1_u8(ret_codes + i, vmovn_u16(vcombine_u16(codes[0], codes[1])));
    }
    for (; i < n; i++)
        ret_codes[i] = affine_nearest(element_load(dtype, src, i), grid, strict_sign);
}

/* Codes of a group that has an ordinary word. */
MESA_ALWAYS_INLINE void encode_group(enum mesa_dtype dtype, unsigned bits, bool strict_sign,
                                     enum mesa_rounding rounding, uint64_t seed, const char *src,
                                     size_t n, uint64_t element, uint32_t word,
                                     uint8_t *ret_codes) {
    struct affine_grid grid = affine_grid_of(word, bits);
    for (size_t i = 0; i < n; i += BLOCK) {
        const void *at = element_at(dtype, src, i);
        size_t count = n - i < BLOCK ? n - i : BLOCK;
        uint8_t codes[BLOCK] = {0};
        if (rounding == MESA_ROUND_NEAREST && count == BLOCK) {
            quantize_block(dtype, at, grid, bits, strict_sign, codes);
        } else {
            for (size_t j = 0; j < count; j++) {
                float x = element_load(dtype, at, j);
                uint64_t here = element + i + j;
                codes[j] = rounding == MESA_ROUND_NEAREST
                               ? affine_nearest(x, grid, strict_sign)
                               : affine_stochastic(
                                     x, grid, strict_sign,
                                     affine_uniform(affine_key_of(seed, here), (uint32_t)here));
            }
        }
        pack_block(codes, count, bits, ret_codes + i * bits / 8);
    }
}

MESA_ALWAYS_INLINE size_t encode(enum mesa_dtype dtype, unsigned bits, bool strict_sign,
                                 enum mesa_rounding rounding, const struct mesa_affine_rows *rows,
                                 const void *src, uint32_t *ret_words, uint8_t *ret_codes) {
    const size_t bytes = element_bytes(dtype);
    size_t raw_groups = 0;
    struct group_cursor cursor = group_cursor_begin(rows);
    struct group group;
    while (group_cursor_next(&cursor, &group)) {
        const char *from = group_source(rows, group, src, bytes);
        uint8_t *codes = ret_codes + group_code_offset(rows, group);
        float lo = INFINITY, hi = -INFINITY;
        bool finite = range(dtype, from, group.n, &lo, &hi);
        uint32_t word =
            finite ? mesa_affine_word(lo, hi, bits, strict_sign, rounding) : MESA_GROUP_RAW;
        bool one_value = !finite || lo == hi;
        if (word == 0 || word == MESA_GROUP_RAW || one_value)
            word = group_hold_special(from, group.n, bytes, bits, one_value, word, codes);
        if (word != 0 && !word_is_mark(word))
            encode_group(dtype, bits, strict_sign, rounding, rows->seed, from, group.n,
                         group_first_element(rows, group), word, codes);
        raw_groups += word == MESA_GROUP_RAW;
        *ret_words++ = word;
    }
    return raw_groups;
}

/* ---- values ---------------------------------------------------------------------------------- */

MESA_ALWAYS_INLINE void dequantize_block(enum mesa_dtype dtype, const uint8_t codes[BLOCK],
                                         uint32_t word, char *dst) {
    int32x4_t zero_point = vdupq_n_s32(word_zero_point(word));
    float32x4_t scale = vdupq_n_f32(word_scale(word));
    for (size_t i = 0; i < BLOCK; i += 8) {
        uint16x8_t halves = vmovl_u8(vld1_u8(codes + i));
        uint32x4_t words[2] = {vmovl_u16(vget_low_u16(halves)), vmovl_u16(vget_high_u16(halves))};
        for (size_t j = 0; j < 2; j++) {
            int32x4_t index = vaddq_s32(vreinterpretq_s32_u32(words[j]), zero_point);
            store4(dtype, dst + (i + j * 4) * element_bytes(dtype),
                   vmulq_f32(vcvtq_f32_s32(index), scale));
        }
    }
}

MESA_ALWAYS_INLINE void decode_group(enum mesa_dtype dtype, uint32_t word, const uint8_t *codes,
                                     size_t n, unsigned bits, char *dst) {
    uint8_t unpacked[BLOCK];
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        unpack_block(codes + i * bits / 8, BLOCK, bits, unpacked);
        dequantize_block(dtype, unpacked, word, dst + i * element_bytes(dtype));
    }
    if (i == n)
        return;
    unpack_block(codes + i * bits / 8, n - i, bits, unpacked);
    for (size_t j = 0; i + j < n; j++)
        element_store(dtype, dst, i + j, affine_value(unpacked[j], word));
}

MESA_ALWAYS_INLINE void decode(enum mesa_dtype dtype, unsigned bits,
                               const struct mesa_affine_rows *rows, const uint32_t *words,
                               const uint8_t *codes, const uint8_t *raw, size_t raw_group_bytes,
                               bool stream, void *ret_dst) {
    (void)stream; /* the compilers have no intrinsic for stnp */
    struct group_cursor cursor = group_cursor_begin(rows);
    struct group group;
    while (group_cursor_next(&cursor, &group)) {
        uint32_t word = *words++;
        const uint8_t *from = codes + group_code_offset(rows, group);
        char *to = (char *)ret_dst + (group.row * rows->row + group.begin) * element_bytes(dtype);
        if (word_is_mark(word))
            group_restore_mark(word, from, group.n, element_bytes(dtype), raw, raw_group_bytes, to);
        else
            decode_group(dtype, word, from, group.n, bits, to);
    }
}

MESA_ALWAYS_INLINE void dequantize(enum mesa_dtype dtype, const uint8_t *codes, size_t n,
                                   uint32_t word, void *ret_dst) {
    decode_group(dtype, word, codes, n, 8, ret_dst);
}

/* ---- the entries ----------------------------------------------------------------------------- */

DEFINE_AFFINE_ENTRIES(f32, MESA_F32, true)
DEFINE_AFFINE_ENTRIES(bf16, MESA_BF16, true)

void mesa_kernels_fill_affine_neon(struct mesa_kernels *table) {
    SET_AFFINE_ENTRIES(table, f32, MESA_F32);
    SET_AFFINE_ENTRIES(table, bf16, MESA_BF16);
    table->pack_bits = pack_bits;
    table->unpack_bits = unpack_bits;
}
