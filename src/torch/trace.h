/* A list of the saved tensors that passed by, with the names that were found for them: for the tests
 * that compare those with PyTorch's own, through mesa_trace() and mesa_trace_read().
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_TRACE_H
#define MESA_TORCH_TRACE_H

#include "classify/site.h"
#include "torch/torch.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

extern _Atomic bool mesa_trace_on;
static inline bool mesa_trace_is_on(void) {
    return atomic_load_explicit(&mesa_trace_on, memory_order_relaxed);
}

/* Starts an empty list (1) or ends it (0). */
void mesa_trace_switch(bool on);

/* Notes a save while the list is on; no-op for undefined tensors and unknown sites without one. */
void mesa_trace_save(const struct mesa_site *site, const struct mesa_tensor *tensor,
                     const struct mesa_save *save);

/* Writes "op argument address is_output\n" for each save, oldest first, as much as fits with the NUL;
 * returns the bytes that the whole text needs. */
size_t mesa_trace_text(char *ret, size_t size);

#endif
