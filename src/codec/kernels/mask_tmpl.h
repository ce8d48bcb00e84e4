/* The mask kernels of the vector files but for their instructions (told in affine_tmpl.h): bools,
 * comparisons, and elements that are one of two. A block of elements gives whole bytes of the mask.
 * Equals mask_scalar.c byte for byte.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_MASK_TMPL_H
#define MESA_CODEC_KERNELS_MASK_TMPL_H

#include "codec/kernels/mask.h"
#include "codec/kernels/mask_entries.h"

MESA_ALWAYS_INLINE uint64_t first_bits(size_t n) {
    return n >= 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1;
}

/* Bits of n <= 64 elements to their bytes of the mask, spare ones 0. */
MESA_ALWAYS_INLINE void store_mask(uint8_t *mask, uint64_t bits, size_t n) {
    bits &= first_bits(n);
    memcpy(mask, &bits, (n + 7) / 8);
}

MESA_ALWAYS_INLINE uint64_t load_mask(const uint8_t *mask, size_t n) {
    uint64_t bits = 0;
    memcpy(&bits, mask, (n + 7) / 8);
    return bits & first_bits(n);
}

/* ---- bool ------------------------------------------------------------------------------------ */

static void pack_bool(const uint8_t *src, size_t n, uint8_t *ret_mask) {
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        store_mask(ret_mask + i / 8, codes_nonzero(block_load(src + i, BLOCK)), BLOCK);
    if (i < n)
        store_mask(ret_mask + i / 8, codes_nonzero(block_load(src + i, n - i)), n - i);
}

static void unpack_bool(const uint8_t *mask, size_t n, uint8_t *ret_dst) {
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        block_store(ret_dst + i, codes_of_bits(load_mask(mask + i / 8, BLOCK)), BLOCK);
    if (i < n)
        block_store(ret_dst + i, codes_of_bits(load_mask(mask + i / 8, n - i)), n - i);
}

/* ---- predicates of reals ----------------------------------------------------------------------- */

/* Float32 bounds answer as float64 ones do (mask.h). */
struct bounds {
    vfloat lo_below, lo_above, hi_below, hi_above;
};

MESA_ALWAYS_INLINE vmask holds(enum mesa_predicate predicate, vfloat x, struct bounds b) {
    switch (predicate) {
    case MESA_ABOVE:
        return m_not_at_most(x, b.lo_below);
    case MESA_GREATER:
        return m_less(b.lo_below, x);
    case MESA_BETWEEN:
        return m_and(m_less(b.lo_below, x), m_less(x, b.hi_above));
    case MESA_WITHIN:
        return m_and(m_at_least(x, b.lo_above), m_at_least(b.hi_below, x));
    case MESA_NONZERO:
    case MESA_PREDICATE_COUNT:
        break;
    }
    return m_differ(x, v_set(0));
}

/* n <= 4 * LANES elements. */
MESA_ALWAYS_INLINE void pack_block_predicate(enum mesa_dtype dtype, enum mesa_predicate predicate,
                                             const void *src, size_t n, struct bounds bounds,
                                             uint8_t *ret_mask) {
    vmask hold[4];
    for (size_t j = 0; j < 4; j++) {
        size_t first = j * LANES;
        vfloat x = load_some(dtype, element_at(dtype, src, first), first < n ? n - first : 0);
        hold[j] = holds(predicate, x, bounds);
    }
    store_mask(ret_mask, m_bits_of_4(hold), n);
}

MESA_ALWAYS_INLINE void pack_predicate(enum mesa_dtype dtype, enum mesa_predicate predicate,
                                       const void *src, size_t n, double lo, double hi,
                                       uint8_t *ret_mask) {
    const struct bounds bounds = {
        .lo_below = v_set(float_below(lo)),
        .lo_above = v_set(float_above(lo)),
        .hi_below = v_set(float_below(hi)),
        .hi_above = v_set(float_above(hi)),
    };
    const size_t block = 4 * LANES;
    size_t i = 0;
    for (; i + block <= n; i += block)
        pack_block_predicate(dtype, predicate, element_at(dtype, src, i), block, bounds,
                             ret_mask + i / 8);
    if (i < n)
        pack_block_predicate(dtype, predicate, element_at(dtype, src, i), n - i, bounds,
                             ret_mask + i / 8);
}

/* ---- elements of 2, 4 and 8 bytes as bits -------------------------------------------------------- */

MESA_ALWAYS_INLINE vint broadcast(size_t bytes, const void *element) {
    uint64_t bits = 0;
    memcpy(&bits, element, bytes); /* little endian */
    return e_set(bytes, bits);
}

/* Of four vectors, or as many as a word of the mask has bits. */
MESA_ALWAYS_INLINE size_t block_elements(size_t bytes) {
    return 4 * sizeof(vint) / bytes > 64 ? 64 : 4 * sizeof(vint) / bytes;
}

/* Bytes that the vector at byte `from` has of `have`. */
MESA_ALWAYS_INLINE size_t bytes_left(size_t have, size_t from) {
    return have < from ? 0 : have - from < sizeof(vint) ? have - from : sizeof(vint);
}

/* n elements of a block; false if one is neither. */
MESA_ALWAYS_INLINE bool pack_block_two(size_t bytes, const char *src, size_t n, vint zeros,
                                       vint ones, uint8_t *ret_mask) {
    uint64_t one = 0, known = 0;
    for (size_t j = 0; j < block_elements(bytes); j += sizeof(vint) / bytes) {
        vint x = bytes_load(src + j * bytes, bytes_left(n * bytes, j * bytes));
        uint64_t is_one = e_equal(bytes, x, ones);
        one |= is_one << j;
        known |= (is_one | e_equal(bytes, x, zeros)) << j;
    }
    store_mask(ret_mask, one, n);
    return (~known & first_bits(n)) == 0;
}

MESA_ALWAYS_INLINE bool pack_two(size_t bytes, const void *src, size_t n, const void *zero,
                                 const void *one, uint8_t *ret_mask) {
    const size_t block = block_elements(bytes);
    const vint zeros = broadcast(bytes, zero), ones = broadcast(bytes, one);
    const char *from = src;
    size_t i = 0;
    for (; i + block <= n; i += block)
        if (!pack_block_two(bytes, from + i * bytes, block, zeros, ones, ret_mask + i / 8))
            return false;
    return i == n || pack_block_two(bytes, from + i * bytes, n - i, zeros, ones, ret_mask + i / 8);
}

MESA_ALWAYS_INLINE void unpack_block_two(size_t bytes, const uint8_t *mask, size_t n, vint zeros,
                                         vint ones, bool stream, char *dst) {
    uint64_t bits = load_mask(mask, n);
    for (size_t j = 0; j < block_elements(bytes) && j < n; j += sizeof(vint) / bytes)
        bytes_store(dst + j * bytes, e_choose(bytes, bits >> j, ones, zeros),
                    bytes_left(n * bytes, j * bytes), stream);
}

MESA_ALWAYS_INLINE void unpack_two(size_t bytes, const uint8_t *mask, size_t n, const void *zero,
                                   const void *one, bool stream, void *ret_dst) {
    const size_t block = block_elements(bytes);
    const vint zeros = broadcast(bytes, zero), ones = broadcast(bytes, one);
    bool aligned = stream && (uintptr_t)ret_dst % sizeof(vint) == 0;
    char *to = ret_dst;
    size_t i = 0;
    for (; i + block <= n; i += block)
        unpack_block_two(bytes, mask + i / 8, block, zeros, ones, aligned, to + i * bytes);
    if (i < n)
        unpack_block_two(bytes, mask + i / 8, n - i, zeros, ones, false, to + i * bytes);
    if (stream)
        stores_done();
}

MASK_HALVES_AND_FLOATS(DEFINE_PREDICATE_ENTRY)
MASK_TWO_SIZES(DEFINE_TWO_ENTRIES)

/* The entries of this file. */
MESA_ALWAYS_INLINE void fill_common_entries(struct mesa_kernels *table) {
    table->mask_pack_bool = pack_bool;
    table->mask_unpack_bool = unpack_bool;
    MASK_HALVES_AND_FLOATS(SET_PREDICATE_ENTRY)
    MASK_TWO_SIZES(SET_TWO_ENTRIES)
}

#endif
