/* MESA_VERIFY: the original is kept beside what is held, and compared when it is unpacked.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_VERIFY_H
#define MESA_TORCH_VERIFY_H

#include "torch/hook.h"

/* Adds the differences between hook->original and `restored` to the ledger's record. */
void mesa_verify(struct mesa_hook *hook, const struct mesa_tensor *restored);

#endif
