/* Affine codes of single elements: what the group word means, and how one element becomes a code.
 * affine_scalar.c loops over these; the vector files do the same in vector form.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_AFFINE_H
#define MESA_CODEC_KERNELS_AFFINE_H

#include "codec/kernels/element.h"
#include "codec/kernels/kernels.h"

/* Elements at or above this magnitude make a group raw: neither the range, nor 1/s, nor a decoded
 * value half a step further out can then leave the normal numbers. */
#define MESA_AFFINE_MOST 0x1p125f
/* A smaller scale makes a group raw: with it, no decoded value is subnormal. */
#define MESA_AFFINE_LEAST 0x1p-100f
/* Zero points stay within about this, whatever the offset of the group. */
#define MESA_AFFINE_REACH 32000.0f

MESA_ALWAYS_INLINE bool word_is_mark(uint32_t word) {
    return (word & 0xffffu) == 0x8000u;
}

MESA_ALWAYS_INLINE float word_scale(uint32_t word) {
    return float_of_bits(word & 0xffff0000u);
}

MESA_ALWAYS_INLINE int word_zero_point(uint32_t word) {
    return (int16_t)(word & 0xffffu);
}

/* Code q of group `word` stands for this value. The product is exact: 8 significant bits times at
 * most 16, within the group's range. */
MESA_ALWAYS_INLINE float affine_value(unsigned code, uint32_t word) {
    return (float)((int)code + word_zero_point(word)) * word_scale(word);
}

/* Code i from where it is not packed, and into there. */
MESA_ALWAYS_INLINE unsigned code_load(struct mesa_code_bytes codes, unsigned bits, size_t i) {
    unsigned lower = mesa_lower_bits(bits);
    return lower == 0 ? codes.upper[i] : (unsigned)codes.upper[i] << lower | codes.lower[i];
}

MESA_ALWAYS_INLINE void code_store(struct mesa_code_bytes codes, unsigned bits, size_t i,
                                   unsigned code) {
    unsigned lower = mesa_lower_bits(bits);
    codes.upper[i] = (uint8_t)(code >> lower);
    if (lower != 0)
        codes.lower[i] = (uint8_t)(code & ((1u << lower) - 1));
}

MESA_ALWAYS_INLINE struct mesa_code_bytes codes_from(struct mesa_code_bytes codes, unsigned bits,
                                                     size_t i) {
    bool split = mesa_lower_bits(bits) != 0;
    return (struct mesa_code_bytes){codes.upper + i, split ? codes.lower + i : NULL};
}

/* Bytes from the first run to number `i`. */
MESA_ALWAYS_INLINE ptrdiff_t run_offset(enum mesa_dtype dtype, const struct mesa_affine_runs *runs,
                                        size_t i) {
    return (ptrdiff_t)i * runs->stride * (ptrdiff_t)element_bytes(dtype);
}

MESA_ALWAYS_INLINE const void *run_at(enum mesa_dtype dtype, const struct mesa_affine_runs *runs,
                                      const void *src, size_t i) {
    return (const char *)src + run_offset(dtype, runs, i);
}

/* A group's word, unpacked for encoding. */
struct affine_grid {
    float inverse; /* 1 / s, by division */
    float least;   /* grid index of code 0: z */
    float most;    /* grid index of the last code: z + L */
};

MESA_ALWAYS_INLINE struct affine_grid affine_grid_of(uint32_t word, unsigned bits) {
    float least = (float)word_zero_point(word);
    return (struct affine_grid){
        .inverse = 1.0f / word_scale(word),
        .least = least,
        .most = least + (float)((1u << bits) - 1),
    };
}

/* With strict signs no nonzero element may fall on grid index 0. */
MESA_ALWAYS_INLINE float affine_keep_sign(float index, float x) {
    if (x > 0 && index < 1)
        return 1;
    if (x < 0 && index > -1)
        return -1;
    return index;
}

/* The clip does not act on elements within the range that the word was made for, but for ties at
 * its ends. Operands stand as minps and maxps have them: a NaN becomes the last code. */
MESA_ALWAYS_INLINE uint16_t affine_code(float index, struct affine_grid grid) {
    index = index < grid.most ? index : grid.most;
    index = index > grid.least ? index : grid.least;
    return (uint16_t)(int)(index - grid.least);
}

MESA_ALWAYS_INLINE uint16_t affine_nearest(float x, struct affine_grid grid, bool strict_sign) {
    float index = rintf(x * grid.inverse);
    return affine_code(strict_sign ? affine_keep_sign(index, x) : index, grid);
}

/* Rounds up with a probability of the distance to the index below, uniform in [0, 1). */
MESA_ALWAYS_INLINE uint16_t affine_stochastic(float x, struct affine_grid grid, bool strict_sign,
                                              float uniform) {
    float position = x * grid.inverse;
    float index = floorf(position);
    index += uniform < position - index ? 1.0f : 0.0f;
    return affine_code(strict_sign ? affine_keep_sign(index, x) : index, grid);
}

/* Uniforms by counter: a function of seed and element only, never of threads or lanes. 32-bit
 * arithmetic in the middle, as not every vector unit multiplies 64 bits. Two multiply-xorshift
 * rounds (constants: C. Wellons, hash prospector, triple32/lowbias family), the second key between
 * them so that two seeds do not give shifted copies of one sequence. */
#define AFFINE_MULTIPLY_1 0x21f0aaad
#define AFFINE_MULTIPLY_2 0x735a2d97

struct affine_key {
    uint32_t add, flip;
};

MESA_ALWAYS_INLINE struct affine_key affine_key_of(uint64_t seed, uint64_t element) {
    uint64_t x = seed + ((element >> 32) + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    return (struct affine_key){(uint32_t)x, (uint32_t)(x >> 32)};
}

MESA_ALWAYS_INLINE float affine_uniform(struct affine_key key, uint32_t element) {
    uint32_t x = element + key.add;
    x = (x ^ x >> 16) * AFFINE_MULTIPLY_1;
    x ^= key.flip;
    x = (x ^ x >> 15) * AFFINE_MULTIPLY_2;
    x ^= x >> 15;
    return (float)(x >> 8) * 0x1p-24f;
}

#endif
