/* One saved tensor on its way to being held, and the step that encodes it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_HOLD_H
#define MESA_TORCH_HOLD_H

#include "classify/layout.h"
#include "classify/site.h"
#include "torch/decision.h"
#include "torch/torch.h"
#include "vault/registry.h"

#include <stdbool.h>
#include <stdint.h>

/* What is known of it so far, in the order in which it becomes known. */
struct mesa_taking {
    void *saved;
    const struct mesa_tensor *tensor;
    const struct mesa_save *save;
    struct mesa_decision *decision;
    struct mesa_view view;
    struct mesa_heads heads;
    struct mesa_source source;
    uint64_t key;
    uint32_t version;
    bool is_constant; /* no grad_fn and no gradient wanted */
    struct mesa_storage *storage;
    uint64_t start_ns;
    bool carries; /* the hook is to keep the original whole */
};

/* A new held buffer by the first candidate of t->decision that takes the values; *ret_row is its row of
 * records. NULL with *ret_why if none does. Any thread; no lock is held while it encodes. */
struct mesa_held *mesa_hold(struct mesa_taking *t, unsigned *ret_row, enum mesa_kept *ret_why);

/* Remembers the size of a max pooling's input for the indices that this thread saves next. */
void mesa_hold_note_pooled(const struct mesa_taking *t);

#endif
