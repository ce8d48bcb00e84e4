/* Starting up when libtorch first shows itself, and not before: in any other process libmesa does
 * nothing at all.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_PRELOAD_START_H
#define MESA_PRELOAD_START_H

#include "classify/site.h"
#include "report/report.h"
#include "torch/torch.h"

#include <stdbool.h>

/* Binds the originals; ends the process if there are none. Cheap once done. */
void mesa_start_bind(void);

/* Called at the head of every interposed function. On return the originals are bound; true if saved
 * tensors may be taken. One load once started. */
static inline bool mesa_start(void) {
    if (__builtin_expect(
            atomic_load_explicit(&mesa_torch_state, memory_order_acquire) == MESA_TORCH_ARMED, 1))
        return true;
    mesa_start_bind();
    return false;
}

/* Arms the library, if this thread's state allows to test it now. `saved` has just been constructed by
 * the original from `tensor`: if it shows the tensor itself, no default hooks of the program are
 * active, which a scratch SavedVariable of ours would call. */
void mesa_start_try(const void *saved, const struct mesa_tensor *tensor,
                    const struct mesa_save *save);

/* What the reports say of this run; filled at start. */
void mesa_start_describe_run(struct mesa_run *ret_run);
const struct mesa_report_target *mesa_start_report_target(void);

/* True once in the process that armed the library itself (not in a forked child). */
bool mesa_start_is_own_process(void);

/* Why libmesa stepped aside, "" if it did not. */
const char *mesa_start_why(void);

#endif
