/* Masks with NEON. Signs, float64 and sparse runs stay with the scalar entries.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/neon.h"

#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"
#include "codec/kernels/mask_tmpl.h"

void mesa_kernels_fill_mask_neon(struct mesa_kernels *table) {
    fill_common_entries(table);
}
