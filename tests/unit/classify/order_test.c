/* Order of saves: whatever calls happen, a caller is labelled with its own argument or not at all.
 *
 * SPDX-License-Identifier: MIT */
#include "classify/order.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { STACK = 0x7000, MOST_ROWS = 16, MOST_GUARDS = 4 };

/* One compiled kernel of an op: a caller for each argument. */
struct kernel {
    const struct mesa_op *op;
    bool is_inplace;
    struct mesa_caller callers[MOST_ROWS];
};

static const struct mesa_op *find(const char *name) {
    const struct mesa_op *op = mesa_op_find(name, strlen(name));
    cr_assert_not_null(op);
    return op;
}

/* A call in which the conditions in `guards` (bit = number of the guard) hold, and that throws after
 * `most` saves. */
static void call_until(struct mesa_order *order, struct kernel *kernel, unsigned guards,
                       uintptr_t stack, unsigned most) {
    for (size_t i = 0; i < kernel->op->count; i++) {
        const struct mesa_op_argument *row = &kernel->op->arguments[i];
        if (row->is_list || (row->guard != 0 && !(guards & 1u << row->guard)))
            continue;
        if (most-- == 0)
            return;
        mesa_order_follow(order, kernel->op, kernel->is_inplace, stack, row->is_result,
                          &kernel->callers[i]);
    }
}

static void call(struct mesa_order *order, struct kernel *kernel, unsigned guards,
                 uintptr_t stack) {
    call_until(order, kernel, guards, stack, MOST_ROWS);
}

static const struct mesa_op_argument *label(const struct kernel *kernel, size_t i) {
    return atomic_load(&kernel->callers[i].row);
}

static void check_labels(const struct kernel *kernel) {
    for (size_t i = 0; i < kernel->op->count; i++) {
        const struct mesa_op_argument *row = label(kernel, i);
        cr_assert(!row || row == &kernel->op->arguments[i] || strcmp(row->argument, "?") == 0,
                  "%s.%s labelled %s", kernel->op->name, kernel->op->arguments[i].argument,
                  row ? row->argument : "");
    }
}

Test(order, unguarded_ops_are_labelled_by_their_first_call) {
    for (size_t k = 0; k < mesa_op_count(); k++) {
        struct mesa_order order = {0};
        struct kernel kernel = {.op = mesa_op_at(k)};
        bool is_guarded = false;
        for (size_t i = 0; i < kernel.op->count; i++)
            is_guarded |= kernel.op->arguments[i].is_guarded;
        if (is_guarded)
            continue;
        call(&order, &kernel, 0, STACK);
        check_labels(&kernel);
        for (size_t i = 0; i < kernel.op->count; i++)
            cr_assert(label(&kernel, i) || kernel.op->arguments[i].is_list, "%s", kernel.op->name);
    }
}

Test(order, complementary_calls_prove_nothing) {
    struct mesa_order order = {0};
    struct kernel mm = {.op = find("mm")};
    for (int i = 0; i < 10; i++) { /* frozen input, then frozen weight: self before mat2 */
        call(&order, &mm, 1u << mm.op->arguments[1].guard, STACK);
        call(&order, &mm, 1u << mm.op->arguments[0].guard, STACK);
    }
    cr_assert_null(label(&mm, 0));
    cr_assert_null(label(&mm, 1));
}

Test(order, full_set_after_an_unconditional_argument_is_proof) {
    struct mesa_order order = {0};
    struct kernel div = {.op = find("div")};
    call(&order, &div, 0, STACK);
    call(&order, &div, ~0u, STACK);
    cr_assert_null(label(&div, 1)); /* not before the call is known to be over */
    call(&order, &div, 0, STACK);
    check_labels(&div);
    cr_assert_not_null(label(&div, 0));
    cr_assert_not_null(label(&div, 1));
}

Test(order, arguments_under_one_condition_come_together) {
    struct mesa_order order = {0};
    struct kernel index_add = {.op = find("index_add")};
    call(&order, &index_add, ~0u, STACK);
    check_labels(&index_add);
    cr_assert_not_null(label(&index_add, 0));
    cr_assert_not_null(label(&index_add, 1));
}

Test(order, results_are_counted_apart) {
    struct mesa_order order = {0};
    struct kernel hypot = {.op = find("hypot")};
    call(&order, &hypot, 1u << hypot.op->arguments[1].guard, STACK);
    check_labels(&hypot);
    cr_assert_eq(label(&hypot, 2), &hypot.op->arguments[2]);
}

Test(order, calibration_needs_the_right_number) {
    struct kernel mm = {.op = find("mm")};
    struct mesa_caller *callers[] = {&mm.callers[0], &mm.callers[1]};
    mesa_order_label_all(mm.op, false, callers, 1);
    cr_assert_null(label(&mm, 0));
    mesa_order_label_all(mm.op, false, callers, 2);
    check_labels(&mm);
    cr_assert_not_null(label(&mm, 1));
}

Test(order, contradiction_withdraws_the_label) {
    struct kernel mm = {.op = find("mm")};
    struct mesa_caller *callers[] = {&mm.callers[0], &mm.callers[1]};
    mesa_order_label_all(mm.op, false, callers, 2);
    struct mesa_caller *reversed[] = {&mm.callers[1], &mm.callers[0]};
    mesa_order_label_all(mm.op, false, reversed, 2);
    cr_assert_eq(label(&mm, 0), mm.op->any_input);
    cr_assert_eq(label(&mm, 1), mm.op->any_input);
}

static uint64_t state = 88172645463325252u;

static unsigned random_below(unsigned bound) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)((state >> 20) % bound);
}

/* Random programs of a few ops, in-place variants among them, from frames at two depths; some calls
 * throw. */
Test(order, random_programs_never_mislabel) {
    for (int round = 0; round < 4000; round++) {
        struct mesa_order order = {0};
        struct kernel kernels[4];
        memset(kernels, 0, sizeof kernels);
        unsigned first = random_below((unsigned)mesa_op_count() - 3);
        for (unsigned k = 0; k < 4; k++) { /* an op is compiled once, and once in place */
            kernels[k].op = mesa_op_at(first + k / 2);
            kernels[k].is_inplace = k % 2;
        }
        for (int step = 0; step < 60; step++) {
            struct kernel *kernel = &kernels[random_below(4)];
            unsigned guards = random_below(1u << (MOST_GUARDS + 1));
            uintptr_t stack = STACK + random_below(2) * 64;
            call_until(&order, kernel, guards, stack,
                       random_below(16) == 0 ? random_below(4) : MOST_ROWS);
            if (random_below(16) == 0)
                mesa_order_lose(&order, STACK);
        }
        for (int k = 0; k < 4; k++)
            check_labels(&kernels[k]);
    }
}

static bool is_withdrawn(const struct kernel *kernel, size_t i) {
    const struct mesa_op_argument *row = label(kernel, i);
    return row && strcmp(row->argument, "?") == 0;
}

Test(order, a_kernel_that_saves_less_or_more_than_the_table_is_not_trusted) {
    struct mesa_order order = {0};
    struct kernel shorter = {.op = find("native_layer_norm")};
    call_until(&order, &shorter, 0, STACK, 2);
    mesa_order_break(&order);
    for (size_t i = 0; i < 2; i++)
        cr_assert(is_withdrawn(&shorter, i));

    struct kernel longer = {.op = find("native_layer_norm"), .is_inplace = true};
    struct mesa_caller more = {0};
    for (size_t i = 0; i < longer.op->inputs; i++)
        mesa_order_follow(&order, longer.op, true, STACK + 64, false, &longer.callers[i]);
    mesa_order_follow(&order, longer.op, true, STACK + 64, false, &more);
    mesa_order_break(&order);
    for (size_t i = 0; i < longer.op->inputs; i++)
        cr_assert(is_withdrawn(&longer, i));
}

Test(order, the_rest_of_a_call_proves_nothing) {
    struct mesa_order order = {0};
    struct kernel norm = {.op = find("native_layer_norm")};
    mesa_order_lose(&order, STACK); /* the first save */
    for (size_t i = 1; i < norm.op->inputs; i++)
        mesa_order_follow(&order, norm.op, false, STACK, false, &norm.callers[i]);
    check_labels(&norm);
    call(&order, &norm, 0, STACK + 64);
    call(&order, &norm, 0, STACK);
    check_labels(&norm);
    for (size_t i = 0; i < norm.op->count; i++)
        cr_assert_not_null(label(&norm, i));
}

Test(order, careful_waits_for_a_full_set) {
    mesa_order_be_careful();
    struct mesa_order order = {0};
    struct kernel norm = {.op = find("native_layer_norm")};
    call(&order, &norm, 0, STACK);
    for (size_t i = 0; i < norm.op->count; i++)
        cr_assert_null(label(&norm, i));
    mesa_order_break(&order);
    check_labels(&norm);
    for (size_t i = 0; i < norm.op->count; i++)
        cr_assert_not_null(label(&norm, i));
}

Test(order, rows_belong_to_one_op) {
    const struct mesa_op *mul = find("mul"), *mm = find("mm");
    for (size_t i = 0; i < mul->count; i++) {
        cr_assert(mesa_order_is_row_of(&mul->arguments[i], mul));
        cr_assert(!mesa_order_is_row_of(&mul->arguments[i], mm));
    }
    cr_assert(!mesa_order_is_row_of(mul->arguments + mul->count, mul));
    cr_assert(!mesa_order_is_row_of(NULL, mul));
}
