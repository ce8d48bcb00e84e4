/* libmesa's C API. All of it is optional: a program that never heard of libmesa is what it is made
 * for. Find the functions with dlsym(RTLD_DEFAULT, "mesa_totals"): where that gives NULL, libmesa is
 * not loaded.
 *
 * Every function may be called from any thread.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_H
#define MESA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct mesa_totals {
    size_t size; /* set to sizeof(struct mesa_totals) by the caller; later versions append fields */
    /* Bytes that plain PyTorch would hold because of saved tensors, and bytes held instead. */
    uint64_t would_bytes, held_bytes;
    uint64_t would_bytes_peak, held_bytes_peak;
    uint64_t tensors;            /* saved tensors seen so far */
    uint64_t pack_ns, unpack_ns; /* time spent holding and restoring */
    uint64_t steps;
};

/* 0, or -1 if totals->size is too small. */
int mesa_totals(struct mesa_totals *totals);

/* Writes the reports that MESA_REPORT names, now. */
void mesa_report(void);

/* Marks the end of a training step, for the time series of the report. Without any call steps are
 * found by held bytes going back to nothing. */
void mesa_step(void);

/* Saved tensors of this thread are left to PyTorch between pause and resume; pairs nest. */
void mesa_pause(void);
void mesa_resume(void);

/* 1 if libmesa has found libtorch and its self-test passed, 0 if libtorch was not found yet, -1 if
 * libmesa stepped aside. */
int mesa_active(void);

/* "0.1.0" */
const char *mesa_version(void);

#ifdef __cplusplus
}
#endif

#endif
