/* Short floats and finiteness with NEON. Integers stay with the scalar entries.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/neon.h"

#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"
#include "codec/kernels/number_tmpl.h"

void mesa_kernels_fill_number_neon(struct mesa_kernels *table) {
    fill_common_entries(table);
}
