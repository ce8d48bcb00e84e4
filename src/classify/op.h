/* What each op saves for backward and what its backward reads: the table made at build time from
 * `ops.tsv`. Pure data; must not know how a site is found.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CLASSIFY_OP_H
#define MESA_CLASSIFY_OP_H

#include "classify/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the backward formula reads of the argument, that is, what must survive. */
enum mesa_reads {
    MESA_READS_UNKNOWN, /* keep, unless a policy says otherwise */
    MESA_READS_EXACT, /* every bit: equality tests, floor, opaque bytes, random state, statistics */
    MESA_READS_VALUE, /* values, to an absolute error: affine codes will do */
    MESA_READS_RELATIVE, /* values, to a relative error: divided by, logarithm: a short float */
    MESA_READS_EXP,      /* exp(value): log_softmax; a short float, or affine with a small range */
    MESA_READS_MASK,     /* only a comparison with constants: see predicate */
    MESA_READS_SIGN,     /* only the sign (3 values) */
    MESA_READS_COMPARE,  /* only how it compares with the op's other input */
    MESA_READS_INTEGERS, /* indices, labels, offsets: exact, but in fewer bits */
    MESA_READS_BOOL,     /* a condition: bool (1 bit); of another dtype exact */
    MESA_READS_GEOMETRY, /* shape, dtype, memory format only */
    MESA_READS_WEIGHT,   /* a parameter in the usual program: never as codes */
};

struct mesa_op_argument {
    const char *op;       /* "native_layer_norm", without overload and in-place underscore */
    const char *argument; /* "input", "result1", ... */
    uint8_t order;        /* 0-based place in the order of saves */
    uint8_t total;        /* saves of a full set */
    bool is_result;
    bool is_guarded;  /* may be absent from a call */
    uint8_t guard;    /* 0: always saved. Arguments of an op with the same number come together */
    bool is_list;     /* a tensor list: any number of saves, saved by a shared helper */
    bool is_optional; /* saved through the optional<Tensor> constructor */
    bool saved_before_filled; /* the kernel writes it after the save: its values cannot be read */
    bool keep_zeros;          /* an exact zero must come back as zero and signs must not flip */
    bool ties_differ;         /* versions differ in what a value gives that equals a bound */
    enum mesa_reads reads;
    enum mesa_predicate predicate; /* READS_MASK, with thresholds lo and hi if they are constants */
    double lo, hi;
    bool thresholds_known; /* false: they are arguments of the call */
    enum mesa_head_layout heads;
    int8_t channel_dim; /* dim that holds channels: 1, or -1 for the last */
};

/* The rows of one op, in order of save: inputs, then results. Overloads that save different things
 * are different ops of the same name (max and max.dim), and so are in-place variants with a formula
 * of their own (leaky_relu_). */
struct mesa_op {
    const char *name;
    const struct mesa_op_argument *arguments;
    size_t count;
    const char *overload; /* "" if none */
    size_t inputs;        /* rows before the first result */
    /* What holds for each of the inputs (results) while one cannot tell which it is: argument "?",
     * `reads` of all if they agree, else exact. NULL if there are none. */
    const struct mesa_op_argument *any_input, *any_result;
    bool is_inplace_only;
};

/* "max" (the op without overload, if there is one) or "max.dim". NULL if the table has no such op.
 * `name` need not be terminated. */
const struct mesa_op *mesa_op_find(const char *name, size_t length);

/* The table op that a name as the dispatcher's C++ symbols spell it ("mul__Tensor", "relu_",
 * "max_pool2d_with_indices", "norm_ScalarOpt_dim") stands for, overload included. NULL if unknown: ops
 * that save nothing (add) are not in the table. *ret_inplace, written if known, tells whether it was
 * the in-place variant. */
const struct mesa_op *mesa_op_of_symbol(const char *name, size_t length, bool *ret_inplace);

size_t mesa_op_count(void);
const struct mesa_op *mesa_op_at(size_t index);

#endif
