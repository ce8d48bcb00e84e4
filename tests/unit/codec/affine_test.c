/* Affine codes against models that know one group at a time.
 *
 * SPDX-License-Identifier: MIT */
#include "trial.h"

#include "codec/kernels/affine.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void init_kernels(void) {
    mesa_kernels_init(mesa_isa_best());
}

TestSuite(affine, .init = init_kernels, .timeout = 100);

static size_t line(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

static uint32_t word_at(const uint8_t *words, size_t i) {
    uint32_t word;
    memcpy(&word, words + i * sizeof word, sizeof word);
    return word;
}

static struct mesa_plan random_plan(struct chance *chance) {
    return (struct mesa_plan){
        .codec = &mesa_codec_affine,
        .bits = 1 + (unsigned)chance_below(chance, MESA_MOST_CODE_BITS),
        .far = chance_in(chance, 2),
        .strict_sign = chance_in(chance, 3),
        .rounding = chance_in(chance, 3) ? MESA_ROUND_STOCHASTIC : MESA_ROUND_NEAREST,
        .seed = chance_next(chance),
    };
}

/* ---- every code --------------------------------------------------------------------------------- */

/* What holds for each element, whatever the grouping: y came back for x of a group with this range. */
static void check_element(const struct mesa_plan *plan, double x, double y, double lo, double hi) {
    cr_assert(isfinite(y));
    if (x == 0) {
        cr_assert(y == 0, "a zero became %g", y);
        return;
    }
    bool sign_kept = x > 0 ? y >= 0 : y <= 0;
    cr_assert(sign_kept && (y != 0 || !plan->strict_sign), "%g became %g", x, y);

    /* A step is at least the range by the codes that may be used, and enlarged by what bfloat16
     * rounds up. With one bit elements are clipped to one of two values. */
    double magnitude = fmax(fabs(lo), fabs(hi));
    double steps = plan->bits == 1 ? 1 : (double)(1u << plan->bits) - 2;
    double step = fmax((hi - lo) / steps, magnitude / 32000) * 1.01;
    double most = plan->rounding == MESA_ROUND_STOCHASTIC || plan->strict_sign || plan->bits == 1
                      ? step
                      : step / 2;
    double of_dtype = plan->dtype == MESA_BF16  ? 0x1p-8
                      : plan->dtype == MESA_F16 ? 0x1p-11
                                                : 0x1p-23;
    if (plan->dtype == MESA_F16)
        most += 0x1p-24;
    cr_assert(fabs(x - y) <= most * 1.001 + (magnitude + most) * of_dtype,
              "%.9g became %.9g, %u bits, range %g..%g", x, y, plan->bits, lo, hi);
}

/* ---- contiguous groups -------------------------------------------------------------------------- */

struct blocks {
    size_t rows, row, groups;
    size_t codes_at, raw_at, code_row_bytes;
};

static struct blocks blocks_of(const struct mesa_plan *plan) {
    size_t row = plan->row < MESA_GROUP_UNIT ? plan->elements : plan->row;
    struct blocks blocks = {
        .rows = plan->elements / row,
        .row = row,
        .groups = mesa_group_count(row, plan->group),
        .code_row_bytes = mesa_code_row_bytes(row, plan->bits),
    };
    blocks.codes_at = line(blocks.rows * blocks.groups * sizeof(uint32_t));
    blocks.raw_at = blocks.codes_at + line(blocks.rows * blocks.code_row_bytes);
    return blocks;
}

/* One group, coded alone, must give the word and the codes that stand in the held bytes. Returns
 * whether it is raw. */
static bool check_group(const struct mesa_plan *plan, const struct tensor *tensor,
                        const struct trial *trial, size_t row, size_t j) {
    struct blocks blocks = blocks_of(plan);
    size_t bytes = mesa_dtype_bytes(plan->dtype);
    size_t begin = mesa_group_begin(blocks.row, blocks.groups, j);
    size_t n = mesa_group_begin(blocks.row, blocks.groups, j + 1) - begin;
    size_t first = row * blocks.row + begin;
    const char *from = (const char *)tensor->dense + first * bytes;
    const char *back = (const char *)trial->decoded + first * bytes;
    const uint8_t *codes =
        trial->held + blocks.codes_at + row * blocks.code_row_bytes + begin * plan->bits / 8;
    struct mesa_affine_rows alone = {
        .rows = 1,
        .row = n,
        .row_stride = (ptrdiff_t)n,
        .groups = 1,
        .bits = plan->bits,
        .strict_sign = plan->strict_sign,
        .rounding = plan->rounding,
        .seed = plan->seed,
        .first_element = first,
    };
    size_t code_bytes = mesa_code_row_bytes(n, plan->bits);
    uint8_t *expected = malloc(code_bytes);
    uint32_t word;
    mesa_kernels.affine_encode[plan->dtype](&alone, from, &word, expected);
    cr_assert(eq(u32, word_at(trial->held, row * blocks.groups + j), word));
    if (word == MESA_GROUP_RAW || word == MESA_GROUP_CONSTANT) {
        cr_assert(same_bytes(from, back, n * bytes));
    } else {
        cr_assert(same_bytes(codes, expected, code_bytes));
        double lo = INFINITY, hi = -INFINITY;
        for (size_t i = 0; i < n; i++) {
            lo = fmin(lo, value_at(plan->dtype, from, i));
            hi = fmax(hi, value_at(plan->dtype, from, i));
        }
        for (size_t i = 0; i < n; i++)
            check_element(plan, value_at(plan->dtype, from, i), value_at(plan->dtype, back, i), lo,
                          hi);
    }
    free(expected);
    return word == MESA_GROUP_RAW;
}

static void check_blocks(const struct mesa_plan *plan, const struct tensor *tensor,
                         const struct trial *trial) {
    struct blocks blocks = blocks_of(plan);
    size_t raw_groups = 0;
    for (size_t row = 0; row < blocks.rows; row++)
        for (size_t j = 0; j < blocks.groups; j++)
            raw_groups += check_group(plan, tensor, trial, row, j);
    cr_assert(eq(u64, plan->found[0], raw_groups));
    cr_assert(raw_groups <= blocks.rows * blocks.groups / 8);
    cr_assert(raw_groups > 0 || trial->used == blocks.raw_at);
}

/* Returns whether the tensor was taken; then every group of it is right. */
static bool takes_blocks(struct mesa_plan *plan, const struct tensor *tensor) {
    struct trial trial = trial_run(plan, tensor);
    bool taken = trial.status == MESA_OK;
    if (taken)
        check_blocks(plan, tensor, &trial);
    else
        cr_assert(eq(int, (int)trial.status, (int)MESA_DECLINED));
    trial_done(&trial);
    return taken;
}

/* Rows that are a product of inner dims, as the planner has them; sometimes the whole tensor. */
static size_t random_row(struct chance *chance, const struct tensor *tensor) {
    size_t row = 1;
    int inner = 1 + (int)chance_below(chance, (size_t)tensor->source.ndim);
    for (int d = tensor->source.ndim - inner; d < tensor->source.ndim; d++)
        row *= (size_t)tensor->source.sizes[d];
    return row;
}

static void try_blocks(struct chance *chance, enum values values, size_t elements) {
    static const size_t groups[] = {16, 32, 48, 64, 100, 128, 256, 1024};
    struct tensor tensor;
    enum mesa_dtype dtype = (enum mesa_dtype)chance_below(chance, MESA_REAL_DTYPES);
    tensor_init(&tensor, chance, dtype, values, elements);
    struct mesa_plan plan = random_plan(chance);
    plan.grouping = MESA_GROUP_BLOCK;
    plan.row = random_row(chance, &tensor);
    plan.group = chance_in(chance, 5) ? plan.row : groups[chance_below(chance, 8)];
    takes_blocks(&plan, &tensor);
    tensor_done(&tensor);
}

Test(affine, blocks_of_all_kinds) {
    struct chance chance = {1};
    for (int values = 0; values < VALUES_COUNT; values++)
        for (int i = 0; i < 60; i++)
            try_blocks(&chance, (enum values)values, 1 + chance_below(&chance, 6000));
}

Test(affine, blocks_of_large_tensors) {
    struct chance chance = {2};
    for (int i = 0; i < 24; i++)
        try_blocks(&chance, chance_in(&chance, 2) ? VALUES_SPECIAL : VALUES_NORMAL,
                   300000 + chance_below(&chance, 100000));
}

/* Long rows are cut within; rows of 32 * k + 1 elements with groups of 48 are the hardest to cut. */
Test(affine, parts_of_long_rows) {
    struct chance chance = {3};
    static const int64_t rows[] = {262144, 262177, 300001, 400000};
    static const size_t groups[] = {48, 64, 96, 1000, 500000};
    for (size_t i = 0; i < 20; i++) {
        struct tensor tensor;
        const int64_t sizes[] = {1 + (int64_t)chance_below(&chance, 2), rows[i % 4]};
        tensor_init_sizes(&tensor, &chance, MESA_F32, VALUES_NORMAL, 2, sizes, true);
        float *elements = (float *)(uintptr_t)tensor.source.data;
        for (int j = 0; j < 20; j++) {
            size_t at = chance_below(&chance, tensor.source.elements);
            elements[at] = NAN;
            memcpy((float *)tensor.dense + at, &elements[at], sizeof *elements);
        }
        struct mesa_plan plan = random_plan(&chance);
        plan.strict_sign &= plan.bits > 1; /* one bit has no room for both signs */
        plan.row = (size_t)rows[i % 4];
        plan.group = groups[i % 5];
        bool taken = takes_blocks(&plan, &tensor);
        cr_assert(taken || plan.group == 500000);
        tensor_done(&tensor);
    }
}

/* q of a qkv tensor: (B, N, 3, H, D) seen as (B, N, H * D) with rows of D. */
Test(affine, heads_within_a_wider_row) {
    struct chance chance = {4};
    for (int i = 0; i < 20; i++) {
        const int64_t head = 8 + (int64_t)chance_below(&chance, 120), heads = 3;
        const int64_t sizes[] = {4, 50, heads * head};
        struct tensor tensor;
        tensor_init_sizes(&tensor, &chance, MESA_BF16, VALUES_NORMAL, 3, sizes, false);
        struct mesa_plan plan = random_plan(&chance);
        plan.row = (size_t)head;
        plan.group = 64;
        bool taken = takes_blocks(&plan, &tensor);
        cr_assert(taken || (plan.bits == 1 && plan.strict_sign)); /* no room for both signs */
        tensor_done(&tensor);
    }
}

/* Threads begin in the middle of an outer dim, and rows are equally far apart up to its end only. */
Test(affine, pieces_of_strided_tensors) {
    struct chance chance = {9};
    const int64_t sizes[] = {5, 500, 192};
    for (int i = 0; i < 8; i++) {
        struct tensor tensor;
        tensor_init_sizes(&tensor, &chance, MESA_F32, VALUES_NORMAL, 3, sizes, false);
        struct mesa_plan plan = random_plan(&chance);
        plan.row = i % 2 == 0 ? 64 : 192;
        plan.group = i % 2 == 0 ? 64 : 80;
        bool taken = takes_blocks(&plan, &tensor);
        cr_assert(taken || (plan.bits == 1 && plan.strict_sign));
        tensor_done(&tensor);
    }
}

Test(affine, too_many_raw_groups_are_declined) {
    struct chance chance = {5};
    const int64_t size = 64 * 80;
    for (int raw = 0; raw <= 14; raw++) {
        struct tensor tensor;
        tensor_init_sizes(&tensor, &chance, MESA_F32, VALUES_NORMAL, 1, &size, true);
        float *elements = (float *)(uintptr_t)tensor.source.data;
        for (int i = 0; i < raw; i++)
            elements[64 * (5 * i + 3) + (i * 17) % 64] = i % 2 == 0 ? NAN : -INFINITY;
        memcpy(tensor.dense, elements, (size_t)size * sizeof *elements);
        struct mesa_plan plan = {
            .codec = &mesa_codec_affine, .bits = 4, .row = (size_t)size, .group = 64};
        bool taken = takes_blocks(&plan, &tensor);
        cr_assert(taken == (raw <= 10));
        cr_assert(plan.found[0] == (uint64_t)raw || raw > 10);
        tensor_done(&tensor);
    }
}

/* A sentinel's group is kept as it is, so that its other elements are exact and the rest is coded. */
Test(affine, a_group_that_reaches_too_far_is_raw) {
    struct chance chance = {10};
    const int64_t size = 64 * 80;
    for (int i = 0; i < 20; i++) {
        struct tensor tensor;
        tensor_init_sizes(&tensor, &chance, MESA_F32, VALUES_NORMAL, 1, &size, true);
        float *elements = (float *)(uintptr_t)tensor.source.data;
        size_t at = chance_below(&chance, (size_t)size);
        elements[at] = i % 2 == 0 ? -1e9f : 1e9f;
        memcpy(tensor.dense, elements, (size_t)size * sizeof *elements);
        struct mesa_plan plan = {.codec = &mesa_codec_affine,
                                 .bits = 1 + (unsigned)chance_below(&chance, MESA_MOST_CODE_BITS),
                                 .row = (size_t)size,
                                 .group = 64,
                                 .widest = i % 4 < 2 ? 1e4f : 0};
        struct trial trial = trial_run(&plan, &tensor);
        cr_assert(eq(int, (int)trial.status, (int)MESA_OK));
        cr_assert(eq(u64, plan.found[0], (uint64_t)(plan.widest != 0)));
        bool same = same_bytes((const float *)trial.decoded + at / 64 * 64, elements + at / 64 * 64,
                               64 * sizeof *elements);
        cr_assert(same == (plan.widest != 0));
        trial_done(&trial);
        tensor_done(&tensor);
    }
}

Test(affine, a_cycle_that_reaches_too_far_is_declined) {
    struct chance chance = {11};
    const int64_t sizes[] = {50, 12, 64};
    for (int i = 0; i < 4; i++) {
        struct tensor tensor;
        tensor_init_sizes(&tensor, &chance, MESA_F32, VALUES_NORMAL, 3, sizes, true);
        if (i % 2 == 0)
            ((float *)(uintptr_t)tensor.source.data)[777] = 1e9f;
        memcpy(tensor.dense, tensor.source.data, tensor.source.elements * sizeof(float));
        struct mesa_plan plan = {.codec = &mesa_codec_affine,
                                 .bits = 8,
                                 .grouping = MESA_GROUP_CYCLE,
                                 .run = 64,
                                 .cycle = 12,
                                 .widest = i < 2 ? 1e4f : 0};
        struct trial trial = trial_run(&plan, &tensor);
        cr_assert(eq(int, (int)trial.status, (int)(i == 0 ? MESA_DECLINED : MESA_OK)));
        trial_done(&trial);
        tensor_done(&tensor);
    }
}

Test(affine, impossible_plans_are_declined) {
    struct mesa_plan good = {
        .codec = &mesa_codec_affine, .elements = 4096, .bits = 8, .row = 64, .group = 64};
    cr_assert(mesa_codec_affine.bound_bytes(&good) > 4096);
    struct mesa_plan plan = good;
    plan.bits = 0;
    cr_assert(eq(sz, mesa_codec_affine.bound_bytes(&plan), 0));
    plan.bits = MESA_MOST_CODE_BITS + 1;
    cr_assert(eq(sz, mesa_codec_affine.bound_bytes(&plan), 0));
    plan = good;
    plan.dtype = MESA_I32;
    cr_assert(eq(sz, mesa_codec_affine.bound_bytes(&plan), 0));
    plan = good;
    plan.row = 60;
    cr_assert(eq(sz, mesa_codec_affine.bound_bytes(&plan), 0));
    plan.row = 0;
    cr_assert(eq(sz, mesa_codec_affine.bound_bytes(&plan), 0));
    plan = good;
    plan.group = 0;
    cr_assert(eq(sz, mesa_codec_affine.bound_bytes(&plan), 0));
    plan = good;
    plan.grouping = MESA_GROUP_CYCLE;
    plan.run = 60;
    plan.cycle = 4;
    cr_assert(eq(sz, mesa_codec_affine.bound_bytes(&plan), 0));
    plan.run = 64;
    plan.cycle = 4;
    plan.period = 6;
    cr_assert(eq(sz, mesa_codec_affine.bound_bytes(&plan), 0));
    plan.period = 8;
    cr_assert(mesa_codec_affine.bound_bytes(&plan) > 4096);
}

/* ---- groups that are spread --------------------------------------------------------------------- */

static size_t group_of(const struct mesa_plan *plan, size_t element) {
    size_t run = element / plan->run;
    return run % plan->cycle + (plan->period == 0 ? 0 : plan->cycle * (run / plan->period));
}

/* The definition in codec.h, element by element. False if the tensor should be declined. */
static bool model_cycle(const struct mesa_plan *plan, const void *dense, void *ret_decoded) {
    size_t runs = plan->elements / plan->run;
    size_t groups =
        plan->cycle * (plan->period == 0 ? 1 : (runs + plan->period - 1) / plan->period);
    float *lo = malloc(groups * sizeof *lo), *hi = malloc(groups * sizeof *hi);
    bool possible = true;
    for (size_t group = 0; group < groups; group++) {
        lo[group] = INFINITY;
        hi[group] = -INFINITY;
    }
    for (size_t i = 0; i < plan->elements; i++) {
        float x = element_load(plan->dtype, dense, i);
        size_t group = group_of(plan, i);
        possible &= isfinite(x);
        lo[group] = fminf(lo[group], x);
        hi[group] = fmaxf(hi[group], x);
    }
    for (size_t i = 0; i < plan->elements && possible; i++) {
        size_t group = group_of(plan, i);
        uint32_t word =
            mesa_affine_word(lo[group], hi[group], plan->bits, plan->strict_sign, plan->rounding);
        float x = element_load(plan->dtype, dense, i), uniform = 0;
        unsigned code = 0;
        possible = word != MESA_GROUP_RAW;
        if (possible && word != 0) {
            struct affine_grid grid = affine_grid_of(word, plan->bits);
            uniform = affine_uniform(affine_key_of(plan->seed, i), (uint32_t)i);
            code = plan->rounding == MESA_ROUND_STOCHASTIC
                       ? affine_stochastic(x, grid, plan->strict_sign, uniform)
                       : affine_nearest(x, grid, plan->strict_sign);
        }
        if (possible) {
            element_store(plan->dtype, ret_decoded, i, affine_value(code, word));
            check_element(plan, value_at(plan->dtype, dense, i),
                          value_at(plan->dtype, ret_decoded, i), (double)lo[group],
                          (double)hi[group]);
        }
    }
    free(lo);
    free(hi);
    return possible;
}

static void check_cycle(struct mesa_plan *plan, const struct tensor *tensor) {
    size_t bytes = tensor->source.elements * mesa_dtype_bytes(tensor->source.dtype);
    struct trial trial = trial_run(plan, tensor);
    if (trial.bound != 0) {
        void *expected = malloc(bytes);
        bool possible = model_cycle(plan, tensor->dense, expected);
        cr_assert(eq(int, (int)trial.status, (int)(possible ? MESA_OK : MESA_DECLINED)));
        if (possible) {
            cr_assert(same_bytes(trial.decoded, expected, bytes));
            cr_assert(eq(sz, trial.used, trial.bound));
        }
        free(expected);
    }
    trial_done(&trial);
}

static void try_cycle(struct chance *chance, enum values values, size_t run, size_t cycle,
                      size_t turns) {
    static const size_t divisors[] = {1, 2, 3, 5};
    const int64_t sizes[] = {(int64_t)turns, (int64_t)cycle, (int64_t)run};
    struct tensor tensor;
    enum mesa_dtype dtype = (enum mesa_dtype)chance_below(chance, MESA_REAL_DTYPES);
    tensor_init_sizes(&tensor, chance, dtype, values, 3, sizes, chance_in(chance, 2));
    struct mesa_plan plan = random_plan(chance);
    plan.grouping = MESA_GROUP_CYCLE;
    plan.run = run;
    plan.cycle = cycle;
    size_t periods = divisors[chance_below(chance, 4)];
    if (turns % periods == 0 && chance_in(chance, 2))
        plan.period = turns / periods * cycle;
    check_cycle(&plan, &tensor);
    tensor_done(&tensor);
}

Test(affine, cycles_equal_their_definition) {
    struct chance chance = {6};
    static const size_t runs[] = {1, 1, 2, 3, 8, 15, 16, 17, 64, 197, 1000};
    for (int values = 0; values < VALUES_COUNT; values++) {
        for (int i = 0; i < 40; i++) {
            size_t run = runs[chance_below(&chance, sizeof runs / sizeof *runs)];
            size_t cycle = 1 + chance_below(&chance, chance_in(&chance, 4) ? 200 : 13);
            size_t most = 20000 / (run * cycle) + 1;
            try_cycle(&chance, (enum values)values, run, cycle, 1 + chance_below(&chance, most));
        }
    }
}

Test(affine, cycles_of_large_tensors) {
    struct chance chance = {7};
    static const size_t shapes[][3] = {
        {1, 64, 5000}, {1, 2048, 150}, {1, 2049, 150}, {1, 5000, 70}, {7, 500, 80},
        {196, 3, 500}, {50000, 3, 2},  {300001, 1, 1}, {8, 12, 3000}, {1, 1, 300000},
        {1, 1000, 7},  {3, 777, 130},  {16, 2000, 10},
    };
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
        const size_t *shape = shapes[i / 2];
        try_cycle(&chance, VALUES_NORMAL, shape[0], shape[1], shape[2]);
    }
}

/* Held bytes know nothing of where elements lay, nor of the processor. */
static void check_same_held(struct mesa_plan *plan, const struct tensor *tensor) {
    const size_t elements = tensor->source.elements, bytes = mesa_dtype_bytes(tensor->source.dtype);
    struct tensor dense = {.source = tensor->source};
    dense.source.data = tensor->dense;
    dense.source.ndim = 1;
    dense.source.sizes[0] = (int64_t)elements;
    dense.source.strides[0] = 1;
    struct trial first = trial_run(plan, &dense);
    for (enum mesa_isa isa = 0; isa < MESA_ISA_COUNT; isa++) {
        if (!mesa_isa_supported(isa))
            continue;
        mesa_kernels_init(isa);
        struct trial trial = trial_run(plan, tensor);
        cr_assert(eq(int, (int)trial.status, (int)first.status));
        if (first.status == MESA_OK) {
            cr_assert(eq(sz, trial.used, first.used));
            cr_assert(same_bytes(trial.held, first.held, first.used));
            cr_assert(same_bytes(trial.decoded, first.decoded, elements * bytes));
        }
        trial_done(&trial);
    }
    init_kernels();
    trial_done(&first);
}

/* Tokens of some sequences, three heads and more; large enough for threads. `shape` says which dims
 * there may be gaps between. */
static void try_heads(struct chance *chance, size_t run, size_t period_turns, size_t shape) {
    const int64_t heads = 3 + (int64_t)chance_below(chance, 10), sequences = 3;
    const int64_t row = heads * (int64_t)run, tokens = 30000 / row + 5;
    const struct {
        int ndim;
        int64_t sizes[4];
    } shapes[] = {
        {2, {sequences * tokens, row}},
        {3, {sequences, tokens, row}},
        {3, {sequences * tokens, heads, (int64_t)run}},
        {4, {sequences, tokens, heads, (int64_t)run}},
    };
    struct tensor tensor;
    enum mesa_dtype dtype = (enum mesa_dtype)chance_below(chance, MESA_REAL_DTYPES);
    tensor_init_sizes(&tensor, chance, dtype, chance_in(chance, 3) ? VALUES_RELU : VALUES_NORMAL,
                      shapes[shape].ndim, shapes[shape].sizes, false);
    struct mesa_plan plan = random_plan(chance);
    if (chance_in(chance, 2))
        plan.bits = 8;
    plan.grouping = MESA_GROUP_CYCLE;
    plan.run = run;
    plan.cycle = (size_t)heads;
    plan.period = period_turns * plan.cycle;
    check_same_held(&plan, &tensor);
    check_cycle(&plan, &tensor);
    tensor_done(&tensor);
}

Test(affine, cycles_do_not_depend_on_where_elements_lie) {
    struct chance chance = {12};
    static const size_t runs[] = {1, 3, 16, 17, 64, 80, 127, 128, 200};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        for (size_t shape = 0; shape < 4; shape++) {
            try_heads(&chance, runs[i], 512 / runs[i] + 1, shape);
            try_heads(&chance, runs[i], 50000 / runs[i], shape);
            try_heads(&chance, runs[i], 0, shape);
        }
    }
}

/* The last of many small periods, and whoever works at another one sees it. */
Test(affine, one_nan_declines_all_periods) {
    struct chance chance = {13};
    const int64_t sizes[] = {800, 3 * 64};
    for (int i = 0; i < 4; i++) {
        struct tensor tensor;
        tensor_init_sizes(&tensor, &chance, MESA_F32, VALUES_NORMAL, 2, sizes, true);
        float *elements = (float *)(uintptr_t)tensor.source.data;
        if (i < 3)
            elements[i == 0 ? 0 : i == 1 ? 70000 : tensor.source.elements - 1] = NAN;
        struct mesa_plan plan = {.codec = &mesa_codec_affine,
                                 .bits = 8,
                                 .grouping = MESA_GROUP_CYCLE,
                                 .run = 64,
                                 .cycle = 3,
                                 .period = 3 * 8};
        struct trial trial = trial_run(&plan, &tensor);
        cr_assert(eq(int, (int)trial.status, (int)(i < 3 ? MESA_DECLINED : MESA_OK)));
        trial_done(&trial);
        tensor_done(&tensor);
    }
}

Test(affine, one_nan_declines_a_cycle) {
    struct chance chance = {8};
    const int64_t sizes[] = {50, 12, 64};
    for (int i = 0; i < 30; i++) {
        struct tensor tensor;
        tensor_init_sizes(&tensor, &chance, MESA_F32, VALUES_NORMAL, 3, sizes, true);
        size_t at = chance_below(&chance, tensor.source.elements);
        float *elements = (float *)(uintptr_t)tensor.source.data;
        elements[at] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
        struct mesa_plan plan = {.codec = &mesa_codec_affine,
                                 .bits = 8,
                                 .grouping = MESA_GROUP_CYCLE,
                                 .run = i % 2 == 0 ? 64 : 1,
                                 .cycle = i % 2 == 0 ? 12 : 64};
        struct trial trial = trial_run(&plan, &tensor);
        cr_assert(trial.bound > 0);
        cr_assert(eq(int, (int)trial.status, (int)MESA_DECLINED));
        trial_done(&trial);
        tensor_done(&tensor);
    }
}
