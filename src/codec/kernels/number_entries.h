/* The entries of the table that number_ISA.c fills, made from its always-inline bodies `narrow`,
 * `all_finite`, ...: the integer's size or the dtype becomes a constant in each.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_NUMBER_ENTRIES_H
#define MESA_CODEC_KERNELS_NUMBER_ENTRIES_H

#define DEFINE_INTEGER_ENTRIES(bytes)                                                              \
    static void integer_range_##bytes(const void *src, size_t n, int64_t *ret_lo,                  \
                                      int64_t *ret_hi) {                                           \
        integer_range(bytes, src, n, ret_lo, ret_hi);                                              \
    }                                                                                              \
    static void narrow_##bytes(const void *src, size_t n, int64_t lo, unsigned to_bytes,           \
                               void *ret_dst) {                                                    \
        narrow(bytes, src, n, lo, to_bytes, ret_dst);                                              \
    }                                                                                              \
    static void widen_##bytes(const void *src, size_t n, int64_t lo, unsigned from_bytes,          \
                              void *ret_dst) {                                                     \
        widen(bytes, src, n, lo, from_bytes, ret_dst);                                             \
    }

#define DEFINE_FINITE_ENTRY(name, dtype)                                                           \
    static bool all_finite_##name(const void *src, size_t n) {                                     \
        return all_finite(dtype, src, n);                                                          \
    }

#define SET_INTEGER_ENTRIES(table, index, bytes)                                                   \
    (table)->integer_range[index] = integer_range_##bytes;                                         \
    (table)->integer_narrow[index] = narrow_##bytes;                                               \
    (table)->integer_widen[index] = widen_##bytes

#endif
