/* Operators whose backward reads of their two inputs only how they compare with each other: maximum,
 * minimum, fmax, fmin. A SavedVariable's constructor sees one input at a time, so the operators' entry
 * points are interposed and leave both here for the time of the call.
 *
 * `other` is saved first and kept whole. When `self` comes, the comparison is held in its place, as
 * numbers that compare with 0 as self did with other, and `other` becomes zeros. Whatever fails before
 * that leaves both as they are; none of the two is ever an original while the other one is not.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_PAIR_H
#define MESA_TORCH_PAIR_H

#include "classify/op.h"
#include "torch/torch.h"

struct mesa_hook;

/* The innermost such call of this thread. */
struct mesa_pair {
    const char *op;                         /* as the op table names it; NULL: none */
    const struct mesa_tensor *self, *other; /* borrowed for the call */
    struct mesa_hook *other_hook;           /* borrowed: stands for `other`, kept whole; or NULL */
};
extern _Thread_local struct mesa_pair mesa_pair;

static inline void mesa_pair_forget(const struct mesa_hook *freed) {
    if (mesa_pair.other_hook == freed)
        mesa_pair.other_hook = NULL;
}

/* Is `tensor`, about to be saved as row->argument, of the call in progress, and do its two inputs lie
 * in memory in the same way? Then *ret_partner is the first element of the other input. */
bool mesa_pair_match(const struct mesa_op_argument *row, const struct mesa_tensor *tensor,
                     const struct mesa_view *view, const void **ret_partner);

static inline bool mesa_pair_is_self(const struct mesa_op_argument *row) {
    return row->argument[0] == 's'; /* "self", "other" */
}

#endif
