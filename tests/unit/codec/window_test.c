/* Indices of max pooling: every geometry that a pooling layer can have, and indices that are none.
 *
 * SPDX-License-Identifier: MIT */
#include "trial.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

static void init_kernels(void) {
    mesa_kernels_init(mesa_isa_best());
}

TestSuite(window, .init = init_kernels);

struct axis {
    int64_t in, kernel, step, padding, dilation, out;
};

/* Output size as torch documents it for max_pool2d; < 1 if the window does not fit. */
static void set_out(struct axis *axis, bool ceiling) {
    int64_t span = axis->in + 2 * axis->padding - axis->dilation * (axis->kernel - 1) - 1;
    if (span < 0) {
        axis->out = 0;
        return;
    }
    axis->out = (span + (ceiling ? axis->step - 1 : 0)) / axis->step + 1;
    if (ceiling && (axis->out - 1) * axis->step >= axis->in + axis->padding)
        axis->out--;
}

/* A pixel of the window of output `at` that lies inside of the input; -1 if none does. */
static int64_t pixel(struct chance *chance, const struct axis *axis, int64_t at) {
    int64_t inside[32], count = 0;
    for (int64_t k = 0; k < axis->kernel; k++) {
        int64_t place = at * axis->step - axis->padding + k * axis->dilation;
        if (place >= 0 && place < axis->in)
            inside[count++] = place;
    }
    return count == 0 ? -1 : inside[chance_below(chance, (size_t)count)];
}

static int64_t adaptive_pixel(struct chance *chance, const struct axis *axis, int64_t at) {
    int64_t begin = at * axis->in / axis->out;
    int64_t end = ((at + 1) * axis->in + axis->out - 1) / axis->out;
    return begin + (int64_t)chance_below(chance, (size_t)(end - begin));
}

static void store_index(const struct tensor *tensor, size_t i, int64_t index) {
    int32_t narrow = (int32_t)index;
    void *elements = (void *)(uintptr_t)tensor->source.data;
    if (tensor->source.dtype == MESA_I64)
        ((int64_t *)elements)[i] = index;
    else
        ((int32_t *)elements)[i] = narrow;
}

/* A dense tensor of the indices of `planes` planes; false if a window is all outside. */
static bool fill_indices(const struct tensor *tensor, struct chance *chance, const struct axis *y,
                         const struct axis *x, bool adaptive) {
    int64_t (*choose)(struct chance *, const struct axis *, int64_t) =
        adaptive ? adaptive_pixel : pixel;
    for (size_t i = 0; i < tensor->source.elements; i++) {
        int64_t row = choose(chance, y, (int64_t)i / x->out % y->out);
        int64_t column = choose(chance, x, (int64_t)i % x->out);
        if (row < 0 || column < 0)
            return false;
        store_index(tensor, i, row * x->in + column);
    }
    memcpy(tensor->dense, tensor->source.data,
           tensor->source.elements * mesa_dtype_bytes(tensor->source.dtype));
    return true;
}

static struct mesa_plan plan_of(const struct axis *y, const struct axis *x) {
    return (struct mesa_plan){.codec = &mesa_codec_window,
                              .window_in_height = (size_t)y->in,
                              .window_in_width = (size_t)x->in,
                              .window_out_height = (size_t)y->out,
                              .window_out_width = (size_t)x->out};
}

static void init_dense(struct tensor *tensor, struct chance *chance, enum mesa_dtype dtype,
                       int64_t elements) {
    tensor_init_sizes(tensor, chance, dtype, VALUES_ZEROS, 1, &elements, true);
}

/* Bits an element of what was held, rounded up; 0 if it was declined. Checks what comes back. */
static unsigned bits_taken(struct mesa_plan *plan, const struct tensor *tensor) {
    struct trial trial = trial_run(plan, tensor);
    unsigned bits = 0;
    if (trial.status == MESA_OK) {
        size_t elements = tensor->source.elements;
        bits = (unsigned)(trial.used * 8 / elements);
        cr_assert(eq(sz, trial.used, (elements * plan->found[3] + 7) / 8));
        cr_assert(same_bytes(trial.decoded, tensor->dense,
                             elements * mesa_dtype_bytes(tensor->source.dtype)));
    }
    trial_done(&trial);
    return bits;
}

static unsigned pool(struct chance *chance, enum mesa_dtype dtype, int64_t planes, struct axis y,
                     struct axis x, bool adaptive) {
    struct tensor tensor;
    init_dense(&tensor, chance, dtype, planes * y.out * x.out);
    unsigned bits = 0;
    if (fill_indices(&tensor, chance, &y, &x, adaptive)) {
        struct mesa_plan plan = plan_of(&y, &x);
        bits = bits_taken(&plan, &tensor);
    }
    tensor_done(&tensor);
    return bits;
}

Test(window, the_usual_windows_take_few_bits) {
    static const struct {
        struct axis axis;
        bool ceiling;
        unsigned bits;
    } cases[] = {
        {{112, 3, 2, 1, 1, 0}, false, 4}, /* a stem of residual networks */
        {{113, 3, 2, 1, 1, 0}, false, 4}, {{56, 2, 2, 0, 1, 0}, false, 2},
        {{57, 2, 2, 0, 1, 0}, true, 2},   {{55, 3, 2, 0, 1, 0}, false, 4},
        {{54, 3, 2, 0, 1, 0}, true, 4},   {{35, 3, 1, 1, 1, 0}, false, 4},
        {{64, 3, 2, 1, 2, 0}, false, 5},  {{40, 5, 1, 2, 1, 0}, false, 5},
        {{40, 9, 1, 4, 1, 0}, false, 7},  {{40, 13, 1, 6, 1, 0}, false, 8},
        {{90, 4, 4, 0, 1, 0}, false, 4},
    };
    struct chance chance = {21};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct axis axis = cases[i].axis;
        set_out(&axis, cases[i].ceiling);
        cr_assert(eq(uint, pool(&chance, MESA_I64, 7, axis, axis, false), cases[i].bits),
                  "case %zu", i);
        cr_assert(eq(uint, pool(&chance, MESA_I32, 7, axis, axis, false), cases[i].bits),
                  "case %zu", i);
    }
    struct axis adaptive = {.in = 30, .out = 7};
    cr_assert(eq(uint, pool(&chance, MESA_I64, 7, adaptive, adaptive, true), 6));
}

Test(window, any_pooling_comes_back) {
    struct chance chance = {22};
    int taken = 0;
    for (int i = 0; i < 400; i++) {
        struct axis axes[2];
        bool ceiling = chance_in(&chance, 2), adaptive = chance_in(&chance, 4);
        for (int d = 0; d < 2; d++) {
            struct axis *axis = &axes[d];
            axis->in = 1 + (int64_t)chance_below(&chance, chance_in(&chance, 8) ? 700 : 40);
            axis->kernel = 1 + (int64_t)chance_below(&chance, 6);
            axis->step = 1 + (int64_t)chance_below(&chance, 4);
            axis->padding = (int64_t)chance_below(&chance, (size_t)axis->kernel / 2 + 1);
            axis->dilation = 1 + (int64_t)chance_below(&chance, 3);
            set_out(axis, ceiling);
            if (adaptive)
                axis->out = 1 + (int64_t)chance_below(&chance, (size_t)axis->in);
        }
        if (axes[0].out < 1 || axes[1].out < 1)
            continue;
        int64_t planes = 1 + (int64_t)chance_below(&chance, chance_in(&chance, 10) ? 300 : 5);
        enum mesa_dtype dtype = chance_in(&chance, 2) ? MESA_I64 : MESA_I32;
        taken += pool(&chance, dtype, planes, axes[0], axes[1], adaptive) > 0;
    }
    cr_assert(taken > 200, "only %d", taken);
}

/* One index that is not like the others, anywhere: exact or declined. */
Test(window, no_index_is_lost) {
    static const int64_t odd[] = {-1,        -20,   INT64_MIN, INT64_MAX,  1 << 20,    INT32_MIN,
                                  INT32_MAX, 12543, 0,         4294967296, -4294967296};
    struct chance chance = {23};
    struct axis axis = {112, 3, 2, 1, 1, 0};
    set_out(&axis, false);
    for (size_t i = 0; i < 110; i++) {
        struct tensor tensor;
        enum mesa_dtype dtype = i % 2 == 0 ? MESA_I64 : MESA_I32;
        init_dense(&tensor, &chance, dtype, 9 * axis.out * axis.out);
        fill_indices(&tensor, &chance, &axis, &axis, false);
        size_t at = chance_below(&chance, tensor.source.elements);
        store_index(&tensor, at, odd[i % 11]);
        memcpy(tensor.dense, tensor.source.data, tensor.source.elements * mesa_dtype_bytes(dtype));
        struct mesa_plan plan = plan_of(&axis, &axis);
        bits_taken(&plan, &tensor);
        tensor_done(&tensor);
    }
}

Test(window, declines_what_is_no_pooling) {
    struct chance chance = {24};
    struct axis axis = {112, 3, 2, 1, 1, 0};
    set_out(&axis, false);
    struct tensor tensor;
    init_dense(&tensor, &chance, MESA_I64, 3 * axis.out * axis.out);
    fill_indices(&tensor, &chance, &axis, &axis, false);
    struct mesa_plan plan = plan_of(&axis, &axis), good = plan;
    cr_assert(eq(uint, bits_taken(&plan, &tensor), 4));

    plan = good;
    plan.window_in_width = 0;
    cr_assert(eq(uint, bits_taken(&plan, &tensor), 0));
    plan = good;
    plan.window_out_width = 57; /* not whole planes */
    cr_assert(eq(uint, bits_taken(&plan, &tensor), 0));
    plan = good;
    plan.window_in_width = SIZE_MAX;
    cr_assert(eq(uint, bits_taken(&plan, &tensor), 0));
    plan = good;
    plan.window_in_width = 28, plan.window_in_height = 28; /* of another layer */
    cr_assert(eq(uint, bits_taken(&plan, &tensor), 0));
    tensor_done(&tensor);

    int64_t sizes[] = {3, axis.out, axis.out};
    tensor_init_sizes(&tensor, &chance, MESA_I64, VALUES_ZEROS, 3, sizes, true);
    plan = good;
    cr_assert(eq(uint, bits_taken(&plan, &tensor), 0)); /* not one run */
    tensor_done(&tensor);
}

/* Random integers in random layouts under random plans. */
Test(window, survives_any_values) {
    struct chance chance = {25};
    for (int i = 0; i < 600; i++) {
        struct tensor tensor;
        enum mesa_dtype dtype = (enum mesa_dtype)chance_below(&chance, MESA_DTYPE_OTHER);
        enum values values = (enum values)chance_below(&chance, VALUES_COUNT);
        tensor_init(&tensor, &chance, dtype, values, 1 + chance_below(&chance, 3000));
        struct mesa_plan plan = {.codec = &mesa_codec_window};
        plan.window_in_width = 1 + chance_below(&chance, 20);
        plan.window_in_height = 1 + chance_below(&chance, 20);
        plan.window_out_width = 1 + chance_below(&chance, 3);
        plan.window_out_height = 1;
        bits_taken(&plan, &tensor);
        tensor_done(&tensor);
    }
}
