/* Short floats and finiteness with NEON. Equals number_scalar.c byte for byte.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"
#include "codec/kernels/neon.h"
#include "codec/kernels/number_entries.h"

static void float_to_bf16(const float *src, size_t n, uint16_t *ret_dst) {
    const char *from = (const char *)src;
    char *to = (char *)ret_dst;
    size_t i = 0;
    for (; i + 4 <= n; i += 4)
        store_floats(MESA_BF16, to + i * 2, load_floats(MESA_F32, from + i * 4), false);
    for (; i < n; i++) {
        uint16_t half = bf16_round(element_load(MESA_F32, from, i));
        memcpy(to + i * sizeof half, &half, sizeof half);
    }
}

static void bf16_to_float(const uint16_t *src, size_t n, bool stream, float *ret_dst) {
    (void)stream;
    const char *from = (const char *)src;
    char *to = (char *)ret_dst;
    size_t i = 0;
    for (; i + 4 <= n; i += 4)
        store_floats(MESA_F32, to + i * 4, load_floats(MESA_BF16, from + i * 2), false);
    for (; i < n; i++)
        element_store(MESA_F32, to, i, element_load(MESA_BF16, from, i));
}

MESA_ALWAYS_INLINE bool all_finite(enum mesa_dtype dtype, const void *src, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        uint32x4_t finite = vdupq_n_u32(UINT32_MAX);
        for (size_t j = 0; j < 16; j += 4) {
            float32x4_t x = load_floats(dtype, element_at(dtype, src, i + j));
            finite = vandq_u32(finite, vcleq_f32(vabsq_f32(x), vdupq_n_f32(FLT_MAX)));
        }
        if (vminvq_u32(finite) == 0)
            return false;
    }
    for (; i < n; i++)
        if (!isfinite(element_load(dtype, src, i)))
            return false;
    return true;
}

DEFINE_FINITE_ENTRY(f32, MESA_F32)
DEFINE_FINITE_ENTRY(bf16, MESA_BF16)

void mesa_kernels_fill_number_neon(struct mesa_kernels *table) {
    table->float_to_bf16 = float_to_bf16;
    table->bf16_to_float = bf16_to_float;
    table->all_finite[MESA_F32] = all_finite_f32;
    table->all_finite[MESA_BF16] = all_finite_bf16;
}
