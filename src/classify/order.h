/* Which argument a save is, told from the order of saves within one call of an op. Knows no stack and no
 * symbols: it is handed the op.
 *
 * A call of an op is a run of saves by one thread, of one op, from one frame, without repetition.
 * - Where arguments are saved always, or all under one condition, the k-th save is the k-th row.
 * - Where the first is saved always, a run with as many saves as there are rows is one full call.
 * - Where each has a condition of its own (mm, mul), a run proves nothing: two calls that leave out
 *   complementary arguments look like one that leaves out none, in the wrong order. Calibration tells.
 * A run of the first kind with too few or too many saves shows that the table is not of this PyTorch;
 * labels are withdrawn then.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CLASSIFY_ORDER_H
#define MESA_CLASSIFY_ORDER_H

#include "classify/op.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A place in the code that calls a constructor, as far as order is concerned. */
struct mesa_caller {
    /* NULL while unknown; any_input or any_result of the op if it contradicted itself. */
    _Atomic(const struct mesa_op_argument *) row;
};

enum { MESA_ORDER_MOST = 12 };

/* Saves of the call in progress. Owner thread; zeroed is valid. */
struct mesa_order {
    const struct mesa_op *op; /* NULL: none in progress */
    bool is_inplace;
    bool is_open;    /* there may be something to learn at its end */
    bool is_tainted; /* may be the rest of a call whose first saves are missing: proves nothing */
    uintptr_t stack;
    unsigned count[2]; /* inputs, results */
    struct mesa_caller *callers[2][MESA_ORDER_MOST];
};

/* Notes a save and labels callers as far as that can be told. */
void mesa_order_follow(struct mesa_order *order, const struct mesa_op *op, bool is_inplace,
                       uintptr_t stack, bool is_output, struct mesa_caller *caller);

/* Notes a save that is of something else. */
void mesa_order_break(struct mesa_order *order);

/* Notes a save of unknown origin: it may be of the same call as the next one from that frame. */
void mesa_order_lose(struct mesa_order *order, uintptr_t stack);

/* Any thread, for good: label nothing before a full set was seen, because the table was not made for
 * this version of PyTorch. Without it the first call of an op is labelled as it goes. */
void mesa_order_be_careful(void);

/* Labels `count` callers that are known to be all inputs (results) of one call, in order; does
 * nothing if the number is not right. */
void mesa_order_label_all(const struct mesa_op *op, bool is_output,
                          struct mesa_caller *const *callers, unsigned count);

/* True if `row` is one of `op`'s rows (not any_input or any_result). */
static inline bool mesa_order_is_row_of(const struct mesa_op_argument *row,
                                        const struct mesa_op *op) {
    return row >= op->arguments && row < op->arguments + op->count;
}

#endif
