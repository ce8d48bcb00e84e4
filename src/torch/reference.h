/* Counts of libtorch's counted objects, for the self-test and the start-up of reference.c. The calls
 * that others use are in torch.h.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_REFERENCE_H
#define MESA_TORCH_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

bool mesa_reference_is_unique(const void *object); /* one strong and no weak reference */
uint32_t mesa_reference_strong(const void *object);

/* Init only, after the function half of the table is bound. */
void mesa_storage_make_seeds(void);

#endif
