/* MESA_EXPLAIN: one line on stderr for each site and dtype, the first time it saves something.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_EXPLAIN_H
#define MESA_TORCH_EXPLAIN_H

#include "classify/layout.h"
#include "torch/decision.h"
#include "vault/registry.h"

/* `held` is NULL for kept tensors and for those of which only the geometry is held; `row` is the row of
 * the decision's records. */
void mesa_explain(struct mesa_decision *decision, const struct mesa_view *view,
                  const struct mesa_heads *heads, const struct mesa_held *held, unsigned row,
                  size_t held_bytes);

#endif
