/* Numbers that an op was called with and that say what its backward reads of a saved tensor: the
 * exponent of pow, the bounds of hardtanh. A SavedVariable's constructor does not see them, so the
 * operators' entry points are interposed and leave them here for the time of the call.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_SCALARS_H
#define MESA_TORCH_SCALARS_H

#include "classify/op.h"

#include <stdbool.h>

/* c10::Scalar, as far as a double or an integer in it goes; checked by the self-test. */
struct mesa_scalar {
    _Alignas(16) int32_t tag; /* 0 double, 1 integer */
    _Alignas(16) union {
        double real;
        int64_t integer;
        double room[2];
    } value;
};

struct mesa_optional_scalar { /* std::optional<c10::Scalar> */
    struct mesa_scalar scalar;
    bool engaged;
};

static inline const struct mesa_scalar *
mesa_scalar_of_optional(const struct mesa_optional_scalar *optional) {
    return optional->engaged ? &optional->scalar : NULL;
}

/* The innermost such call of this thread. */
struct mesa_scalar_call {
    const char *op;                           /* as the op table names it; NULL: none */
    const struct mesa_scalar *first, *second; /* borrowed for the call; second may be NULL */
};
extern _Thread_local struct mesa_scalar_call mesa_scalar_call;

/* If the call in progress is one of row->op whose numbers matter: fills *ret_row with what is true of
 * the argument in this very call, and returns true. */
bool mesa_scalars_refine(const struct mesa_op_argument *row, enum mesa_dtype dtype,
                         struct mesa_op_argument *ret_row);

#endif
