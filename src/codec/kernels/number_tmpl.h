/* Short floats and finiteness for the vector files, but for their instructions (told in affine_tmpl.h).
 * Equals number_scalar.c byte for byte.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_NUMBER_TMPL_H
#define MESA_CODEC_KERNELS_NUMBER_TMPL_H

#include "codec/kernels/number_entries.h"

/* ---- short floats ------------------------------------------------------------------------------ */

MESA_ALWAYS_INLINE void convert(enum mesa_dtype from, enum mesa_dtype to, const void *src, size_t n,
                                bool stream, void *ret_dst) {
    bool aligned = stream && (uintptr_t)ret_dst % sizeof(vint) == 0;
    char *dst = ret_dst;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        store_floats(to, dst + i * element_bytes(to), load_floats(from, element_at(from, src, i)),
                     aligned);
    if (i < n)
        store_some(to, dst + i * element_bytes(to),
                   load_some(from, element_at(from, src, i), n - i), n - i);
    if (stream)
        stores_done();
}

static void float_to_bf16(const float *src, size_t n, uint16_t *ret_dst) {
    convert(MESA_F32, MESA_BF16, src, n, false, ret_dst);
}

static void bf16_to_float(const uint16_t *src, size_t n, bool stream, float *ret_dst) {
    convert(MESA_BF16, MESA_F32, src, n, stream, ret_dst);
}

static void f16_to_float(const uint16_t *src, size_t n, bool stream, float *ret_dst) {
    convert(MESA_F16, MESA_F32, src, n, stream, ret_dst);
}

/* Numbers that become infinite: from 65520 up, infinity itself excluded. */
MESA_ALWAYS_INLINE vmask too_large(vfloat x) {
    vfloat magnitude = v_bits(i_and(i_bits(x), i_set(0x7fffffff)));
    return m_and(m_at_least(magnitude, v_set(65520.0f)), m_less(magnitude, v_set(INFINITY)));
}

static bool float_to_f16(const float *src, size_t n, uint16_t *ret_dst) {
    const char *from = (const char *)src;
    char *to = (char *)ret_dst;
    vmask lost = m_less(v_set(0), v_set(0));
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vfloat x = load_floats(MESA_F32, from + i * 4);
        lost = m_or(lost, too_large(x));
        store_f16_some(to + i * 2, x, LANES);
    }
    if (i < n) {
        vfloat x = load_some(MESA_F32, from + i * 4, n - i);
        lost = m_or(lost, too_large(x));
        store_f16_some(to + i * 2, x, n - i);
    }
    return m_bits(lost) == 0;
}

/* ---- finiteness: not all bits of the exponent are set -------------------------------------------- */

MESA_ALWAYS_INLINE bool all_finite(enum mesa_dtype dtype, const void *src, size_t n) {
    const size_t bytes = element_bytes(dtype);
    const vint exponent = e_set(bytes, dtype == MESA_F32    ? 0x7f800000
                                       : dtype == MESA_F64  ? 0x7ff0000000000000
                                       : dtype == MESA_BF16 ? 0x7f80
                                                            : 0x7c00);
    const char *from = src;
    size_t left = n * bytes;
    for (; left >= sizeof(vint); left -= sizeof(vint), from += sizeof(vint))
        if (e_equal(bytes, i_and(i_load(from), exponent), exponent) != 0)
            return false;
    return e_equal(bytes, i_and(bytes_load(from, left), exponent), exponent) == 0;
}

FINITE_REALS(DEFINE_FINITE_ENTRY)

/* The entries of this file. */
MESA_ALWAYS_INLINE void fill_common_entries(struct mesa_kernels *table) {
    SET_SHORT_FLOAT_ENTRIES(table);
    FINITE_REALS(SET_FINITE_ENTRY)
}

#endif
