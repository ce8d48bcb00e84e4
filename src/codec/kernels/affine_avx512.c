/* Affine codes with AVX-512.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/avx512.h"

#include "codec/kernels/affine_tmpl.h"
#include "codec/kernels/fill.h"

AFFINE_DOUBLES(DEFINE_AFFINE_ENTRIES)

void mesa_kernels_fill_affine_avx512(struct mesa_kernels *table) {
    AFFINE_HALVES_AND_FLOATS(SET_AFFINE_ENTRIES)
    AFFINE_DOUBLES(SET_AFFINE_ENTRIES)
    table->pack_bits = pack_bits;
    table->unpack_bits = unpack_bits;
}
