/* Exponents of floats apart from their other bits, with AVX2: what the compiler makes of the plain
 * loops. Folding goes element by element in any case and stays with the scalar entries.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/exponent.h"
#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"

DEFINE_EXPONENT_ENTRIES(f32, MESA_F32)
DEFINE_EXPONENT_ENTRIES(bf16, MESA_BF16)
DEFINE_EXPONENT_ENTRIES(f16, MESA_F16)

void mesa_kernels_fill_exponent_avx2(struct mesa_kernels *table) {
    SET_EXPONENT_ENTRIES(table, f32, MESA_F32);
    SET_EXPONENT_ENTRIES(table, bf16, MESA_BF16);
    SET_EXPONENT_ENTRIES(table, f16, MESA_F16);
}
