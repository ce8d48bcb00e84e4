/* Who saves a tensor: the op or autograd function whose code called a SavedVariable constructor, told
 * from the call stack. Knows frames and symbols; must not know arguments or sites.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CLASSIFY_TRACE_H
#define MESA_CLASSIFY_TRACE_H

#include "classify/op.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mesa_trace_kind {
    MESA_TRACE_NOTHING, /* no op in sight: called through the boxed interface, or from elsewhere */
    MESA_TRACE_OP,      /* generated code of an op */
    MESA_TRACE_CUSTOM,  /* a function written in C++: all kinds of it save at one address */
    MESA_TRACE_PYTHON,  /* a function written in Python, a compiled graph */
};

struct mesa_trace {
    enum mesa_trace_kind kind;
    const struct mesa_op *op; /* NULL if the table has no such op */
    bool is_inplace;
    const char *name; /* of the op as symbols spell it, or of the class; not terminated */
    size_t length;    /* 0: no name */
};

/* Any thread, from within that constructor. `return_address` is the constructor's. */
struct mesa_trace mesa_trace_of(uintptr_t return_address);

#endif
