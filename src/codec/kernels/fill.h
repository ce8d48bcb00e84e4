/* Where the entries of the table come from: NAME_ISA.c fills or overwrites the entries of NAME that
 * it does best. The scalar files together fill every entry and define every byte of the results.
 * A vector file may only be entered after mesa_isa_supported() said so.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_FILL_H
#define MESA_CODEC_KERNELS_FILL_H

struct mesa_kernels;

void mesa_kernels_fill_affine_scalar(struct mesa_kernels *table);
void mesa_kernels_fill_exponent_scalar(struct mesa_kernels *table);
void mesa_kernels_fill_mask_scalar(struct mesa_kernels *table);
void mesa_kernels_fill_number_scalar(struct mesa_kernels *table);

void mesa_kernels_fill_affine_avx2(struct mesa_kernels *table);
void mesa_kernels_fill_exponent_avx2(struct mesa_kernels *table);
void mesa_kernels_fill_mask_avx2(struct mesa_kernels *table);
void mesa_kernels_fill_number_avx2(struct mesa_kernels *table);

void mesa_kernels_fill_affine_avx512(struct mesa_kernels *table);
void mesa_kernels_fill_exponent_avx512(struct mesa_kernels *table);
void mesa_kernels_fill_mask_avx512(struct mesa_kernels *table);
void mesa_kernels_fill_number_avx512(struct mesa_kernels *table);

void mesa_kernels_fill_affine_neon(struct mesa_kernels *table);
void mesa_kernels_fill_mask_neon(struct mesa_kernels *table);
void mesa_kernels_fill_number_neon(struct mesa_kernels *table);

#endif
