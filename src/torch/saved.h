/* What happens when autograd saves a tensor: find the site, ask the policy, share or encode, leave a
 * hook. This is where the modules meet.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_SAVED_H
#define MESA_TORCH_SAVED_H

#include "classify/site.h"
#include "torch/torch.h"

#include <stdbool.h>

/* Threads may leave their saved tensors to the framework for a while. */
extern _Thread_local unsigned mesa_paused;

/* A SavedVariable was constructed (the framework's part is done). Only while ARMED. `tensor` is NULL
 * for an undefined one. */
void mesa_saved_constructed(void *saved, const struct mesa_tensor *tensor,
                            const struct mesa_save *save);

/* The last save in a storage is gone: what a step boundary is found by. */
void mesa_saved_ended(void);

/* Takes deaths of kept storages into account; called before totals are read. */
void mesa_saved_sweep(void);

#endif
