/* Affine codes with AVX2. Float64 stays with the scalar entries.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/avx2.h"

#include "codec/kernels/affine_tmpl.h"
#include "codec/kernels/fill.h"

void mesa_kernels_fill_affine_avx2(struct mesa_kernels *table) {
    AFFINE_HALVES_AND_FLOATS(SET_AFFINE_ENTRIES)
    table->pack_bits = pack_bits;
    table->unpack_bits = unpack_bits;
}
