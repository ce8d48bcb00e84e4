/* Which ops to run once at start-up, so that sites know which argument is which: those that save each
 * argument under a condition of its own (order.h tells why watching is not enough). Pure data; the
 * caller makes the tensors and the calls, between mesa_site_calibrate_begin() and _end().
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CLASSIFY_CALIBRATION_H
#define MESA_CLASSIFY_CALIBRATION_H

#include "classify/op.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MESA_CALIBRATION_MOST_TENSORS = 3 };

/* A call is symbol(tensors..., scalars..., integer), each of which fits a register for integers.
 *
 * Tensors are at::Tensor *, float32, of the shapes below, and all must require a gradient. Values do
 * not matter, but are not zero. That of an in-place op's `tensors[0]` must not be a leaf: the result of
 * an op on one (mul). Scalars are const c10::Scalar *, 32 bytes aligned to 16; all-zero bytes but for
 * a double 1.0 at byte 16 is the scalar 1.0. The integer is an int64_t.
 *
 * Returns an at::Tensor by value; an in-place op returns a reference to tensors[0] instead. To a C
 * compiler a function that returns an at::Tensor is one that returns a struct too large for registers:
 *     struct returned { void *tensor; void *unused[3]; };
 * of which only the first word is written. It is a reference that the caller drops. (Use the results of
 * both kinds of call: GCC 12 takes two calls for the same if only their return types differ and neither
 * result is used, and merges them.)
 *
 * Calls without scalars can go through aoti_torch_call_dispatcher("aten::" + name, overload, ...) as
 * well. It refuses scalars (PyTorch 2.13). It runs the same code at the same addresses. */
struct mesa_calibration {
    const char *name;     /* "mul", "mul_" */
    const char *overload; /* "Tensor" or "" */
    /* at::_ops::NAME::call, mangled; the same in PyTorch 2.13 and 2.14. Left out if not there. */
    const char *symbol;
    bool is_inplace;
    unsigned tensors;
    const char *shapes[MESA_CALIBRATION_MOST_TENSORS]; /* a digit for each size: "22", "3" */
    unsigned scalars;
    bool has_integer;
    int64_t integer;
};

/* From 0 until NULL. */
const struct mesa_calibration *mesa_calibration_at(size_t index);

/* What to hand to mesa_site_calibrate_begin(). */
const struct mesa_op *mesa_calibration_op(const struct mesa_calibration *calibration);

#endif
