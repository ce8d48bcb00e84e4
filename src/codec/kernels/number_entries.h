/* The entries of the table that number_ISA.c fills, made from its always-inline bodies `narrow_to`,
 * `all_finite`, ...: the integer's size or the dtype becomes a constant in each.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_NUMBER_ENTRIES_H
#define MESA_CODEC_KERNELS_NUMBER_ENTRIES_H

/* Where each is applied: `entries(suffix, index in the table)`. */
#define FINITE_REALS(entries)                                                                      \
    entries(f32, MESA_F32) entries(bf16, MESA_BF16) entries(f16, MESA_F16) entries(f64, MESA_F64)

#define DEFINE_INTEGER_ENTRIES(bytes)                                                              \
    static void integer_range_##bytes(const void *src, size_t n, int64_t *ret_lo,                  \
                                      int64_t *ret_hi) {                                           \
        integer_range(bytes, src, n, ret_lo, ret_hi);                                              \
    }                                                                                              \
    static void narrow_##bytes(const void *src, size_t n, int64_t lo, unsigned to_bytes,           \
                               void *ret_dst) {                                                    \
        if (to_bytes == 1)                                                                         \
            narrow_to(bytes, 1, src, n, lo, ret_dst);                                              \
        else if (to_bytes == 2)                                                                    \
            narrow_to(bytes, 2, src, n, lo, ret_dst);                                              \
        else                                                                                       \
            narrow_to(bytes, 4, src, n, lo, ret_dst);                                              \
    }                                                                                              \
    static void widen_##bytes(const void *src, size_t n, int64_t lo, unsigned from_bytes,          \
                              void *ret_dst) {                                                     \
        if (from_bytes == 1)                                                                       \
            widen_from(1, bytes, src, n, lo, ret_dst);                                             \
        else if (from_bytes == 2)                                                                  \
            widen_from(2, bytes, src, n, lo, ret_dst);                                             \
        else                                                                                       \
            widen_from(4, bytes, src, n, lo, ret_dst);                                             \
    }

#define DEFINE_FINITE_ENTRY(name, dtype)                                                           \
    static bool all_finite_##name(const void *src, size_t n) {                                     \
        return all_finite(dtype, src, n);                                                          \
    }

#define SET_INTEGER_ENTRIES(table, index, bytes)                                                   \
    (table)->integer_range[index] = integer_range_##bytes;                                         \
    (table)->integer_narrow[index] = narrow_##bytes;                                               \
    (table)->integer_widen[index] = widen_##bytes

#define SET_FINITE_ENTRY(name, dtype) table->all_finite[dtype] = all_finite_##name;

#define SET_SHORT_FLOAT_ENTRIES(table)                                                             \
    (table)->float_to_bf16 = float_to_bf16;                                                        \
    (table)->bf16_to_float = bf16_to_float;                                                        \
    (table)->float_to_f16 = float_to_f16;                                                          \
    (table)->f16_to_float = f16_to_float

#endif
