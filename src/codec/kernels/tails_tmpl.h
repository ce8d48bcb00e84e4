/* Loads and stores of less than a vector where there are no masks for them, through a buffer. Included by
 * the headers of such vectors behind load_floats() and store_floats().
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_TAILS_TMPL_H
#define MESA_CODEC_KERNELS_TAILS_TMPL_H

MESA_ALWAYS_INLINE vfloat load_some(enum mesa_dtype dtype, const void *src, size_t n) {
    if (n >= LANES)
        return load_floats(dtype, src);
    if (n == 0)
        return v_set(0);
    size_t bytes = element_bytes(dtype);
    char buffer[sizeof(vfloat)];
    for (size_t i = 0; i < LANES; i++)
        memcpy(buffer + i * bytes, (const char *)src + (i < n ? i : 0) * bytes, bytes);
    return load_floats(dtype, buffer);
}

MESA_ALWAYS_INLINE void store_some(enum mesa_dtype dtype, void *dst, vfloat values, size_t n) {
    if (n >= LANES) {
        store_floats(dtype, dst, values, false);
        return;
    }
    char buffer[sizeof(vfloat)];
    store_floats(dtype, buffer, values, false);
    memcpy(dst, buffer, n * element_bytes(dtype));
}

#endif
