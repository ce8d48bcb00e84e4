/* The entries of the table that mask_ISA.c fills, made from its always-inline bodies `pack_two`,
 * `compress`, ...: the dtype, the predicate or the element's size becomes a constant in
 * each.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_MASK_ENTRIES_H
#define MESA_CODEC_KERNELS_MASK_ENTRIES_H

/* Where each is applied: `entries(suffix, index in the table)`. */
#define MASK_HALVES_AND_FLOATS(entries)                                                            \
    entries(f32, MESA_F32) entries(bf16, MESA_BF16) entries(f16, MESA_F16)
#define MASK_REALS(entries)       MASK_HALVES_AND_FLOATS(entries) entries(f64, MESA_F64)
#define MASK_TWO_SIZES(entries)   entries(2, 0) entries(4, 1) entries(8, 2)
#define MASK_SHORT_SIZES(entries) entries(1, 0) entries(2, 1) entries(4, 2)
#define MASK_SIZES(entries)       MASK_SHORT_SIZES(entries) entries(8, 3)

#define DEFINE_PREDICATE_ENTRY(name, dtype)                                                        \
    static void pack_predicate_##name(const void *src, size_t n, enum mesa_predicate predicate,    \
                                      double lo, double hi, uint8_t *ret_mask) {                   \
        if (predicate == MESA_ABOVE)                                                               \
            pack_predicate(dtype, MESA_ABOVE, src, n, lo, hi, ret_mask);                           \
        else if (predicate == MESA_GREATER)                                                        \
            pack_predicate(dtype, MESA_GREATER, src, n, lo, hi, ret_mask);                         \
        else if (predicate == MESA_BETWEEN)                                                        \
            pack_predicate(dtype, MESA_BETWEEN, src, n, lo, hi, ret_mask);                         \
        else if (predicate == MESA_WITHIN)                                                         \
            pack_predicate(dtype, MESA_WITHIN, src, n, lo, hi, ret_mask);                          \
        else                                                                                       \
            pack_predicate(dtype, MESA_NONZERO, src, n, lo, hi, ret_mask);                         \
    }

#define DEFINE_SIGN_ENTRIES(name, dtype)                                                           \
    static void pack_sign_##name(const void *src, size_t n, uint8_t *ret_codes) {                  \
        pack_sign(dtype, src, n, ret_codes);                                                       \
    }                                                                                              \
    static void unpack_sign_##name(const uint8_t *codes, size_t n, void *ret_dst) {                \
        unpack_sign(dtype, codes, n, ret_dst);                                                     \
    }

#define DEFINE_TWO_ENTRIES(bytes, index)                                                           \
    static bool pack_two_##bytes(const void *src, size_t n, const void *zero, const void *one,     \
                                 uint8_t *ret_mask) {                                              \
        return pack_two(bytes, src, n, zero, one, ret_mask);                                       \
    }                                                                                              \
    static void unpack_two_##bytes(const uint8_t *mask, size_t n, const void *zero,                \
                                   const void *one, bool stream, void *ret_dst) {                  \
        unpack_two(bytes, mask, n, zero, one, stream, ret_dst);                                    \
    }

#define DEFINE_SPARSE_ENTRIES(bytes, index)                                                        \
    static size_t compress_##bytes(const void *src, size_t n, size_t most, uint8_t *ret_mask,      \
                                   void *ret_elements) {                                           \
        return compress(bytes, src, n, most, ret_mask, ret_elements);                              \
    }                                                                                              \
    static size_t expand_##bytes(const uint8_t *mask, size_t n, const void *elements,              \
                                 void *ret_dst) {                                                  \
        return expand(bytes, mask, n, elements, ret_dst);                                          \
    }

#define SET_PREDICATE_ENTRY(name, dtype) table->mask_pack[dtype] = pack_predicate_##name;

#define SET_SIGN_ENTRIES(name, dtype)                                                              \
    table->sign_pack[dtype] = pack_sign_##name;                                                    \
    table->sign_unpack[dtype] = unpack_sign_##name;

#define SET_TWO_ENTRIES(bytes, index)                                                              \
    table->mask_pack_two[index] = pack_two_##bytes;                                                \
    table->mask_unpack_two[index] = unpack_two_##bytes;

#define SET_SPARSE_ENTRIES(bytes, index)                                                           \
    table->sparse_compress[index] = compress_##bytes;                                              \
    table->sparse_expand[index] = expand_##bytes;

#endif
