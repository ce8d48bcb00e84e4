/* Starting up when libtorch first shows itself, and not before: in any other process libmesa does
 * nothing at all.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_PRELOAD_START_H
#define MESA_PRELOAD_START_H

#include "report/report.h"
#include "torch/torch.h"

#include <stdbool.h>

bool mesa_start_slow(void);

/* Called at the head of every interposed function. On return the originals are bound; true if saved
 * tensors may be taken. Two loads once started. */
static inline bool mesa_start(void) {
    int state = atomic_load_explicit(&mesa_torch_state, memory_order_acquire);
    if (__builtin_expect(state == MESA_TORCH_ARMED, 1))
        return true;
    return mesa_start_slow();
}

/* What the reports say of this run; filled at start. */
void mesa_start_describe_run(struct mesa_run *ret_run);
const struct mesa_report_target *mesa_start_report_target(void);

/* True once in the process that armed the library itself (not in a forked child). */
bool mesa_start_is_own_process(void);

/* Why libmesa stepped aside, "" if it did not. */
const char *mesa_start_why(void);

#endif
