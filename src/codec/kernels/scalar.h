/* Where the scalar entries come from: three files, one job each. Together they fill every entry of
 * the table and define every byte of the result.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_SCALAR_H
#define MESA_CODEC_KERNELS_SCALAR_H

struct mesa_kernels;

void mesa_kernels_fill_scalar_affine(struct mesa_kernels *table);
void mesa_kernels_fill_scalar_mask(struct mesa_kernels *table);
void mesa_kernels_fill_scalar_number(struct mesa_kernels *table);

#endif
