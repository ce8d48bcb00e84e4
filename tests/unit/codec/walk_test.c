/* Going over tensors in pieces: every element is seen once however the work is split, and blocks of
 * rows are where they are said to be.
 *
 * SPDX-License-Identifier: MIT */
#include "trial.h"

#include "codec/walk.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fenv.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static void init_kernels(void) {
    mesa_kernels_init(mesa_isa_best());
}

TestSuite(walk, .init = init_kernels);

/* ---- items ------------------------------------------------------------------------------------- */

struct seen {
    atomic_uint *times; /* of each item */
    size_t unit;        /* pieces begin at multiples of it */
    size_t stop_at;     /* visits of this element and later ones end the walk */
    const char *dense;
    size_t element_bytes;
};

static struct seen seen_of(size_t count) {
    return (struct seen){
        .times = calloc(count + 1, sizeof(atomic_uint)), .unit = 1, .stop_at = SIZE_MAX};
}

static void check_seen_once(struct seen *seen, size_t count) {
    for (size_t i = 0; i < count; i++)
        cr_assert(seen->times[i] == 1, "item %zu was seen %u times", i, seen->times[i]);
    free(seen->times);
}

/* As the kernels' vectors round; fegetround() would tell of the other unit on x86. */
static bool rounds_to_nearest(void) {
    volatile float one = 1, little = 0x1p-30f;
    return one + little == one && -one - little == -one;
}

static void see_items(void *context, size_t begin, size_t end) {
    struct seen *seen = context;
    cr_assert(rounds_to_nearest(), "the floating point state is the program's");
    cr_assert(begin % seen->unit == 0);
    for (size_t i = begin; i < end; i++)
        atomic_fetch_add(&seen->times[i], 1);
}

static unsigned parallel_calls;

static void parallel_counted(size_t count, size_t grain,
                             void (*body)(void *context, size_t begin, size_t end), void *context) {
    parallel_calls++;
    cr_assert(grain >= 1);
    parallel_odd(count, grain, body, context);
}

static mesa_parallel_for *const parallels[] = {NULL, parallel_counted, parallel_threads};

Test(walk, items_are_seen_once) {
    struct chance chance = {41};
    for (int i = 0; i < 200; i++) {
        size_t count = 1 + chance_below(&chance, 5000);
        size_t item_bytes = 1 + chance_below(&chance, 4000);
        struct seen seen = seen_of(count);
        mesa_walk_items(count, item_bytes, parallels[i % 3], see_items, &seen);
        check_seen_once(&seen, count);
    }
}

Test(walk, little_work_wakes_nobody) {
    struct seen seen = seen_of(16);
    parallel_calls = 0;
    mesa_walk_items(16, 2 * MESA_SHARE_BYTES / 16 - 1, parallel_counted, see_items, &seen);
    cr_assert(eq(uint, parallel_calls, 0));
    mesa_walk_items(16, 2 * MESA_SHARE_BYTES / 16, parallel_counted, see_items, &seen);
    cr_assert(eq(uint, parallel_calls, 1));
    free(seen.times);
}

Test(walk, bodies_run_in_the_default_floating_point_state) {
    struct seen seen = seen_of(4000);
    fesetround(FE_UPWARD);
    mesa_walk_items(4000, 1000, NULL, see_items, &seen);
    cr_assert(not(rounds_to_nearest()), "the program's state is back");
    fesetround(FE_TONEAREST);
    check_seen_once(&seen, 4000);
}

Test(walk, results_are_cut_at_units) {
    struct chance chance = {42};
    for (int i = 0; i < 100; i++) {
        size_t elements = 1 + chance_below(&chance, 1000000);
        struct seen seen = seen_of(elements);
        seen.unit = MESA_WALK_UNIT;
        mesa_walk_result(elements, 8, parallels[i % 3], see_items, &seen);
        check_seen_once(&seen, elements);
    }
}

/* ---- sources ----------------------------------------------------------------------------------- */

static bool see_elements(void *context, const void *elements, size_t first, size_t n) {
    struct seen *seen = context;
    cr_assert(first % MESA_WALK_UNIT == 0);
    cr_assert(
        same_bytes(elements, seen->dense + first * seen->element_bytes, n * seen->element_bytes));
    see_items(seen, first, first + n);
    return first + n <= seen->stop_at;
}

Test(walk, sources_are_visited_once) {
    struct chance chance = {43};
    for (int i = 0; i < 150; i++) {
        struct tensor tensor;
        enum mesa_dtype dtype = (enum mesa_dtype)chance_below(&chance, MESA_DTYPE_OTHER);
        tensor_init(&tensor, &chance, dtype, VALUES_BITS, 1 + chance_below(&chance, 300000));
        struct seen seen = seen_of(tensor.source.elements);
        seen.dense = tensor.dense;
        seen.element_bytes = mesa_dtype_bytes(dtype);
        cr_assert(mesa_walk_source(&tensor.source, parallels[i % 3], see_elements, &seen));
        check_seen_once(&seen, tensor.source.elements);
        tensor_done(&tensor);
    }
}

Test(walk, a_visit_may_stop) {
    struct chance chance = {44};
    for (int i = 0; i < 60; i++) {
        struct tensor tensor;
        tensor_init(&tensor, &chance, MESA_F32, VALUES_BITS, 1 + chance_below(&chance, 300000));
        struct seen seen = seen_of(tensor.source.elements);
        seen.dense = tensor.dense;
        seen.element_bytes = 4;
        seen.stop_at = chance_below(&chance, tensor.source.elements);
        cr_assert(not(mesa_walk_source(&tensor.source, parallels[i % 3], see_elements, &seen)));
        free(seen.times);
        tensor_done(&tensor);
    }
}

Test(walk, windows_are_the_elements) {
    struct chance chance = {45};
    char *scratch = malloc(3000 * 16);
    for (int i = 0; i < 1000; i++) {
        struct tensor tensor;
        enum mesa_dtype dtype = (enum mesa_dtype)chance_below(&chance, MESA_DTYPE_OTHER);
        tensor_init(&tensor, &chance, dtype, VALUES_BITS, 1 + chance_below(&chance, 2000));
        size_t bytes = mesa_dtype_bytes(dtype);
        size_t end = 1 + chance_below(&chance, tensor.source.elements);
        size_t begin = end - 1 - chance_below(&chance, end < 3000 ? end : 3000);
        const void *window = mesa_source_window(&tensor.source, begin, end, scratch);
        cr_assert(
            same_bytes(window, (const char *)tensor.dense + begin * bytes, (end - begin) * bytes));
        tensor_done(&tensor);
    }
    free(scratch);
}

/* Each row of a block is contiguous and follows the one before it in dense order. */
Test(walk, blocks_of_rows_are_the_elements) {
    struct chance chance = {46};
    size_t blocks = 0;
    for (int i = 0; i < 3000; i++) {
        struct tensor tensor;
        enum mesa_dtype dtype = (enum mesa_dtype)chance_below(&chance, MESA_DTYPE_OTHER);
        tensor_init(&tensor, &chance, dtype, VALUES_BITS, 1 + chance_below(&chance, 3000));
        size_t bytes = mesa_dtype_bytes(dtype), unit = 1 + chance_below(&chance, 40);
        size_t begin = chance_below(&chance, tensor.source.elements);
        size_t end = begin + (tensor.source.elements - begin) / unit * unit;
        struct mesa_source_rows block;
        if (end > begin && mesa_source_rows(&tensor.source, begin, end, unit, &block)) {
            cr_assert(block.rows >= 1 && block.row >= unit && block.row % unit == 0);
            cr_assert(begin + block.rows * block.row <= end);
            for (size_t row = 0; row < block.rows; row++) {
                ptrdiff_t offset = (ptrdiff_t)row * block.stride * (ptrdiff_t)bytes;
                cr_assert(same_bytes((const char *)block.first + offset,
                                     (const char *)tensor.dense + (begin + row * block.row) * bytes,
                                     block.row * bytes));
            }
            blocks++;
        } else if (end > begin) {
            const void *first;
            cr_assert(not(mesa_source_contiguous(&tensor.source, begin, begin + unit, &first)));
        }
        tensor_done(&tensor);
    }
    cr_assert(blocks > 300);
}

Test(walk, sizes_are_rounded) {
    cr_assert(eq(sz, mesa_divide_up(0, 3), 0));
    cr_assert(eq(sz, mesa_divide_up(3, 3), 1));
    cr_assert(eq(sz, mesa_divide_up(4, 3), 2));
    cr_assert(eq(sz, mesa_divide_up(SIZE_MAX, 2), SIZE_MAX / 2 + 1));
    cr_assert(eq(sz, mesa_round_to_line(0), 0));
    cr_assert(eq(sz, mesa_round_to_line(1), 64));
    cr_assert(eq(sz, mesa_round_to_line(64), 64));
    for (unsigned i = 0; i < 4; i++)
        cr_assert(eq(uint, mesa_log2_bytes((size_t)1 << i), i));
}
