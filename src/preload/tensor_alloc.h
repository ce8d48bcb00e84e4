/* Where torch's CPU tensors come from.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_PRELOAD_TENSOR_ALLOC_H
#define MESA_PRELOAD_TENSOR_ALLOC_H

/* From now on large tensors come from the vault, unless malloc is not the C library's own. */
void mesa_tensor_alloc_start(void);

#endif
