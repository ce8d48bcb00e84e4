/* Runs of saves. Rows of tensor lists are left out throughout: a shared helper saves them, from
 * addresses and frames of its own.
 *
 * SPDX-License-Identifier: MIT */
#include "classify/order.h"

#include <stddef.h>

static _Atomic bool careful;

void mesa_order_be_careful(void) {
    atomic_store(&careful, true);
}

/* The rows of inputs or of results. */
struct part {
    const struct mesa_op_argument *first, *end;
};

static struct part part_of(const struct mesa_op *op, bool is_output) {
    const struct mesa_op_argument *results = op->arguments + op->inputs;
    if (is_output)
        return (struct part){results, op->arguments + op->count};
    return (struct part){op->arguments, results};
}

/* The k-th row that is not a list, NULL behind the last. */
static const struct mesa_op_argument *row_at(struct part part, unsigned k) {
    for (const struct mesa_op_argument *row = part.first; row < part.end; row++)
        if (!row->is_list && k-- == 0)
            return row;
    return NULL;
}

static unsigned count_rows(struct part part) {
    unsigned count = 0;
    while (row_at(part, count))
        count++;
    return count;
}

/* True if the rows come all together or not at all, so that position alone tells. */
static bool is_uniform(struct part part) {
    const struct mesa_op_argument *first = row_at(part, 0);
    for (const struct mesa_op_argument *row = part.first; row < part.end; row++)
        if (!row->is_list && row->guard != first->guard)
            return false;
    return true;
}

/* True if every call starts with the same save, so that a run holds no part of a second call. */
static bool is_anchored(struct part part) {
    const struct mesa_op_argument *first = row_at(part, 0);
    return first && first->guard == 0;
}

static void label(const struct mesa_op *op, struct mesa_caller *caller,
                  const struct mesa_op_argument *row) {
    const struct mesa_op_argument *old = NULL;
    if (atomic_compare_exchange_strong(&caller->row, &old, row) || old == row)
        return;
    /* Two answers: none can be trusted any more. */
    atomic_store(&caller->row, row->is_result ? op->any_result : op->any_input);
}

void mesa_order_label_all(const struct mesa_op *op, bool is_output,
                          struct mesa_caller *const *callers, unsigned count) {
    struct part part = part_of(op, is_output);
    if (count != count_rows(part))
        return;
    for (unsigned k = 0; k < count; k++)
        label(op, callers[k], row_at(part, k));
}

static void withdraw(const struct mesa_op *op, bool is_output, struct mesa_caller *const *callers,
                     unsigned count) {
    for (unsigned k = 0; k < count; k++)
        atomic_store(&callers[k]->row, is_output ? op->any_result : op->any_input);
}

/* Looks back at the inputs or results of a run that is over. */
static void judge(struct mesa_order *order, bool is_output) {
    struct part part = part_of(order->op, is_output);
    unsigned count = order->count[is_output];
    if (count == 0)
        return;
    if (is_uniform(part) && count != count_rows(part))
        withdraw(order->op, is_output, order->callers[is_output], count);
    else if (is_uniform(part) || is_anchored(part))
        mesa_order_label_all(order->op, is_output, order->callers[is_output], count);
}

static void finish(struct mesa_order *order) {
    if (!order->op || !order->is_open || order->is_tainted)
        return;
    judge(order, false);
    judge(order, true);
}

void mesa_order_break(struct mesa_order *order) {
    mesa_order_lose(order, 0);
}

void mesa_order_lose(struct mesa_order *order, uintptr_t stack) {
    finish(order);
    order->op = NULL;
    order->stack = stack;
}

static bool is_in_run(const struct mesa_order *order, const struct mesa_op *op, bool is_inplace,
                      uintptr_t stack, bool is_output, const struct mesa_caller *caller) {
    if (order->op != op || order->is_inplace != is_inplace || order->stack != stack)
        return false;
    if (!is_output && order->count[1] > 0)
        return false; /* inputs never follow results */
    for (unsigned k = 0; k < order->count[is_output]; k++)
        if (order->callers[is_output][k] == caller)
            return false;
    return order->count[is_output] < MESA_ORDER_MOST;
}

static void start(struct mesa_order *order, const struct mesa_op *op, bool is_inplace,
                  uintptr_t stack) {
    finish(order);
    order->is_tainted = !order->op && order->stack == stack;
    order->op = op;
    order->is_inplace = is_inplace;
    order->is_open = false;
    order->stack = stack;
    order->count[0] = order->count[1] = 0;
}

void mesa_order_follow(struct mesa_order *order, const struct mesa_op *op, bool is_inplace,
                       uintptr_t stack, bool is_output, struct mesa_caller *caller) {
    if (!is_in_run(order, op, is_inplace, stack, is_output, caller))
        start(order, op, is_inplace, stack);
    unsigned place = order->count[is_output]++;
    order->callers[is_output][place] = caller;
    if (atomic_load_explicit(&caller->row, memory_order_acquire))
        return;
    order->is_open = true;
    struct part part = part_of(op, is_output);
    const struct mesa_op_argument *row = row_at(part, place);
    if (row && is_uniform(part) && !order->is_tainted &&
        !atomic_load_explicit(&careful, memory_order_relaxed))
        label(op, caller, row);
}
