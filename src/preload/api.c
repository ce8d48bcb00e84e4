/* The functions of include/mesa.h, and two that the tests and `mesa check` use.
 *
 * SPDX-License-Identifier: MIT */
#include "mesa.h"

#include "preload/export.h"
#include "preload/leave.h"
#include "preload/start.h"
#include "torch/saved.h"
#include "torch/trace.h"

#include <stdio.h>
#include <string.h>

EXPORT int mesa_totals(struct mesa_totals *totals) {
    if (totals == NULL || totals->size < sizeof *totals)
        return -1;
    struct mesa_ledger_totals t;
    if (mesa_active() == 1)
        mesa_saved_sweep();
    mesa_ledger_totals(&t);
    *totals = (struct mesa_totals){
        .size = totals->size,
        .would_bytes = (uint64_t)t.would_bytes,
        .held_bytes = (uint64_t)t.held_bytes,
        .would_bytes_peak = (uint64_t)t.would_bytes_peak,
        .held_bytes_peak = (uint64_t)t.held_bytes_peak,
        .tensors = t.tensors,
        .pack_ns = t.pack_ns,
        .unpack_ns = t.unpack_ns,
        .steps = t.steps,
    };
    return 0;
}

EXPORT void mesa_report(void) {
    if (mesa_active() == 1)
        mesa_leave_report();
}

EXPORT void mesa_step(void) {
    if (mesa_active() == 1)
        mesa_ledger_step();
}

EXPORT void mesa_pause(void) {
    mesa_paused++;
}

EXPORT void mesa_resume(void) {
    if (mesa_paused > 0)
        mesa_paused--;
}

EXPORT int mesa_active(void) {
    int state = atomic_load_explicit(&mesa_torch_state, memory_order_acquire);
    return state == MESA_TORCH_ARMED ? 1 : state == MESA_TORCH_ASIDE ? -1 : 0;
}

EXPORT const char *mesa_version(void) {
    return MESA_VERSION;
}

EXPORT int mesa_trace(int on);
EXPORT int mesa_trace(int on) {
    mesa_trace_switch(on != 0);
    return mesa_active();
}

EXPORT size_t mesa_trace_read(char *text, size_t size);
EXPORT size_t mesa_trace_read(char *text, size_t size) {
    return mesa_trace_text(text, size);
}

/* One line on how libmesa stands in this process, for `mesa check`. Returns mesa_active(). */
EXPORT int mesa_check(char *text, size_t size);
EXPORT int mesa_check(char *text, size_t size) {
    int active = mesa_active();
    if (active == 1)
        snprintf(text, size, "self-test passed with torch %s, %s kernels%s", mesa_torch.version,
                 mesa_kernels.name,
                 mesa_torch.parallel_for == NULL ? ", one thread (no torch_parallel_for)" : "");
    else if (active < 0)
        snprintf(text, size, "stepped aside: %s", mesa_start_why());
    else
        snprintf(text, size, "libtorch has not saved a tensor yet");
    return active;
}
