/* Runs the ops whose guards can leave arguments out once each on tiny tensors, so that every site of
 * theirs has a name before the program's first save.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_CALIBRATE_H
#define MESA_TORCH_CALIBRATE_H

#include <stdbool.h>

/* Init only, in a plain thread, after the self-test. An op that this libtorch does not show is left
 * out: its sites are named when a full set of its saves was seen. */
void mesa_calibrate(void);

/* True in this thread during such a call: its saves are only to be named (mesa_site_of). */
extern _Thread_local bool mesa_calibrating;

#endif
