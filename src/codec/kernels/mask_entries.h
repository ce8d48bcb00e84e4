/* The entries of the table that mask_ISA.c fills, made from its always-inline bodies `pack_two`,
 * `compress`, ...: the dtype or the element's size becomes a constant in each.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_MASK_ENTRIES_H
#define MESA_CODEC_KERNELS_MASK_ENTRIES_H

#define DEFINE_PREDICATE_ENTRY(name, dtype)                                                        \
    static void pack_predicate_##name(const void *src, size_t n, enum mesa_predicate predicate,    \
                                      double lo, double hi, uint8_t *ret_mask) {                   \
        pack_predicate(dtype, src, n, predicate, lo, hi, ret_mask);                                \
    }

#define DEFINE_SIGN_ENTRIES(name, dtype)                                                           \
    static void pack_sign_##name(const void *src, size_t n, uint8_t *ret_codes) {                  \
        pack_sign(dtype, src, n, ret_codes);                                                       \
    }                                                                                              \
    static void unpack_sign_##name(const uint8_t *codes, size_t n, void *ret_dst) {                \
        unpack_sign(dtype, codes, n, ret_dst);                                                     \
    }

#define DEFINE_TWO_ENTRIES(bytes)                                                                  \
    static bool pack_two_##bytes(const void *src, size_t n, const void *zero, const void *one,     \
                                 uint8_t *ret_mask) {                                              \
        return pack_two(bytes, src, n, zero, one, ret_mask);                                       \
    }                                                                                              \
    static void unpack_two_##bytes(const uint8_t *mask, size_t n, const void *zero,                \
                                   const void *one, bool stream, void *ret_dst) {                  \
        unpack_two(bytes, mask, n, zero, one, stream, ret_dst);                                    \
    }

#define DEFINE_SPARSE_ENTRIES(bytes)                                                               \
    static size_t compress_##bytes(const void *src, size_t n, size_t most, uint8_t *ret_mask,      \
                                   void *ret_elements) {                                           \
        return compress(bytes, src, n, most, ret_mask, ret_elements);                              \
    }                                                                                              \
    static size_t expand_##bytes(const uint8_t *mask, size_t n, const void *elements,              \
                                 void *ret_dst) {                                                  \
        return expand(bytes, mask, n, elements, ret_dst);                                          \
    }

#define SET_SIGN_ENTRIES(table, name, dtype)                                                       \
    (table)->sign_pack[dtype] = pack_sign_##name;                                                  \
    (table)->sign_unpack[dtype] = unpack_sign_##name

#define SET_TWO_ENTRIES(table, index, bytes)                                                       \
    (table)->mask_pack_two[index] = pack_two_##bytes;                                              \
    (table)->mask_unpack_two[index] = unpack_two_##bytes

#define SET_SPARSE_ENTRIES(table, index, bytes)                                                    \
    (table)->sparse_compress[index] = compress_##bytes;                                            \
    (table)->sparse_expand[index] = expand_##bytes

#endif
