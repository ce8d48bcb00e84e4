/* What the numbers mean. A bound is compared in the tensor's dtype by the op's kernel, so it is taken
 * only where it is the same number there.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/scalars.h"

#include <math.h>
#include <string.h>

_Thread_local struct mesa_scalar_call mesa_scalar_call __attribute__((tls_model("initial-exec")));

static bool number_of(const struct mesa_scalar *scalar, double *ret_number) {
    if (scalar == NULL || (scalar->tag != 0 && scalar->tag != 1))
        return false;
    *ret_number = scalar->tag == 0 ? scalar->value.real : (double)scalar->value.integer;
    return !isnan(*ret_number);
}

static bool bound_in(enum mesa_dtype dtype, double *bound) {
    if (isinf(*bound) || dtype == MESA_F64)
        return true;
    if (dtype == MESA_F32) {
        *bound = (double)(float)*bound;
        return true;
    }
    /* Eighths up to 16 are exact in both half formats. */
    return fabs(*bound) <= 16 && *bound * 8 == nearbyint(*bound * 8);
}

/* d(x^n)/dx = n x^(n-1) is as harmless as a product for n = 2, 3, ...; elsewhere x is divided by, or
 * 0 is a case of its own. */
static bool refine_power(double exponent, struct mesa_op_argument *row) {
    if (exponent != 2 && exponent != 3 && exponent != 4)
        return false;
    row->reads = MESA_READS_VALUE;
    return true;
}

/* Infinite for none. A bound of the program's own that is infinite is compared with: x = inf would be
 * a tie there, so nothing is told of such a clamp. */
static bool clamp_bounds(const struct mesa_scalar_call *call, double *ret_lo, double *ret_hi) {
    bool is_max = strcmp(call->op, "clamp_max") == 0;
    const struct mesa_scalar *min = is_max ? NULL : call->first;
    const struct mesa_scalar *max = is_max ? call->first : call->second;
    *ret_lo = -INFINITY;
    *ret_hi = INFINITY;
    return (min != NULL || max != NULL) &&
           (min == NULL || (number_of(min, ret_lo) && isfinite(*ret_lo))) &&
           (max == NULL || (number_of(max, ret_hi) && isfinite(*ret_hi)));
}

bool mesa_scalars_refine(const struct mesa_op_argument *row, enum mesa_dtype dtype,
                         struct mesa_op_argument *ret_row) {
    const struct mesa_scalar_call *call = &mesa_scalar_call;
    double a = 0, b = 0;
    if (call->op == NULL || strcmp(call->op, row->op) != 0 || row->is_result ||
        (!row->ties_differ && !number_of(call->first, &a)))
        return false;
    *ret_row = *row;
    if (strcmp(row->op, "pow") == 0)
        return strcmp(row->argument, "self") == 0 && refine_power(a, ret_row);
    if (row->reads != MESA_READS_MASK || row->thresholds_known)
        return false;
    if (row->ties_differ) {
        if (!clamp_bounds(call, &a, &b))
            return false;
    } else if (strcmp(row->op, "hardtanh") == 0) {
        if (!number_of(call->second, &b))
            return false;
    } else if (strcmp(row->op, "threshold") == 0) {
        b = INFINITY;
    } else { /* hardshrink, softshrink */
        b = fabs(a);
        a = -b;
    }
    if (!bound_in(dtype, &a) || !bound_in(dtype, &b))
        return false;
    ret_row->lo = a;
    ret_row->hi = b;
    ret_row->thresholds_known = true;
    return true;
}
