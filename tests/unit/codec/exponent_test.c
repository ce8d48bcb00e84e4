/* Exponents in fewer bits: any bit pattern comes back, floats of similar magnitude get smaller, and
 * every instruction set holds the same bytes.
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

TestSuite(exponent, .init = init_kernels);

static const enum mesa_dtype dtypes[] = {MESA_F32, MESA_BF16, MESA_F16};

static size_t bytes_of(const struct tensor *tensor) {
    return tensor->source.elements * mesa_dtype_bytes(tensor->source.dtype);
}

/* Thousandths of the source that were held; 0 if it was declined. Checks what comes back. */
static size_t permille_held(const struct tensor *tensor) {
    struct mesa_plan plan = {.codec = &mesa_codec_exponent};
    struct trial trial = trial_run(&plan, tensor);
    size_t permille = 0;
    if (trial.status == MESA_OK) {
        cr_assert(trial.used * 10 <= bytes_of(tensor) * 9);
        cr_assert(same_bytes(trial.decoded, tensor->dense, bytes_of(tensor)));
        permille = trial.used * 1000 / bytes_of(tensor) + 1;
    } else {
        cr_assert(eq(int, (int)trial.status, (int)MESA_DECLINED));
    }
    trial_done(&trial);
    return permille;
}

/* Around the borders of chunks and of what is split over threads. */
static size_t size_of_trial(struct chance *chance) {
    if (chance_in(chance, 12))
        return 250000 + chance_below(chance, 400000);
    if (chance_in(chance, 6))
        return 1 + chance_below(chance, 40000);
    return 2048 * (16 + chance_below(chance, 4)) + chance_below(chance, 3) - 1;
}

Test(exponent, all_values_come_back_from_all_layouts) {
    struct chance chance = {31};
    for (int dtype = 0; dtype < MESA_DTYPE_OTHER; dtype++)
        for (int values = 0; values < VALUES_COUNT; values++)
            for (int i = 0; i < 8; i++) {
                struct tensor tensor;
                tensor_init(&tensor, &chance, (enum mesa_dtype)dtype, (enum values)values,
                            size_of_trial(&chance));
                size_t permille = permille_held(&tensor);
                cr_assert(dtype <= MESA_F16 || permille == 0);
                tensor_done(&tensor);
            }
}

Test(exponent, floats_of_similar_magnitude_get_smaller) {
    static const struct {
        enum values values;
        size_t most[3]; /* permille for float32, bfloat16, float16 */
    } cases[] = {
        {VALUES_NORMAL, {860, 715, 900}},    {VALUES_SPECIAL, {860, 715, 900}},
        {VALUES_OFFSET, {800, 600, 800}},    {VALUES_RELU, {470, 430, 525}},
        {VALUES_RARE, {60, 90, 90}},         {VALUES_CONSTANT, {800, 600, 800}},
        {VALUES_SUBNORMAL, {860, 720, 900}},
    };
    struct chance chance = {32};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t d = 0; d < 3; d++) {
            struct tensor tensor;
            tensor_init(&tensor, &chance, dtypes[d], cases[i].values, 100000);
            size_t permille = permille_held(&tensor);
            cr_assert(permille > 0 && permille <= cases[i].most[d], "values %d, %s: %zu",
                      (int)cases[i].values, mesa_dtype_name(dtypes[d]), permille);
            tensor_done(&tensor);
        }
}

Test(exponent, declines_what_is_small) {
    struct chance chance = {37};
    for (size_t d = 0; d < 3; d++) {
        const int64_t least = (64 << 10) / (int64_t)mesa_dtype_bytes(dtypes[d]);
        for (int64_t size = least - 1; size <= least; size++) {
            struct tensor tensor;
            tensor_init_sizes(&tensor, &chance, dtypes[d], VALUES_OFFSET, 1, &size, true);
            bool held = permille_held(&tensor) > 0;
            cr_assert(held == (size == least));
            tensor_done(&tensor);
        }
    }
}

Test(exponent, declines_random_bits) {
    struct chance chance = {33};
    for (size_t d = 0; d < 3; d++)
        for (size_t size = 1; size < 1000000; size = size * 3 + 1) {
            struct tensor tensor;
            tensor_init(&tensor, &chance, dtypes[d], VALUES_BITS, size);
            cr_assert(permille_held(&tensor) == 0 || size < 2048 || d == 1);
            tensor_done(&tensor);
        }
}

/* What the sample does not show: the rest of the tensor is another kind, from some place on. */
Test(exponent, values_may_change_anywhere) {
    struct chance chance = {34};
    for (int i = 0; i < 300; i++) {
        struct tensor tensor;
        enum mesa_dtype dtype = dtypes[chance_below(&chance, 3)];
        const int64_t size = 1 + (int64_t)chance_below(&chance, i % 10 == 0 ? 300000 : 50000);
        tensor_init_sizes(&tensor, &chance, dtype, VALUES_NORMAL, 1, &size, true);
        size_t bytes = mesa_dtype_bytes(dtype);
        for (int part = 0; part < 4; part++) {
            size_t begin = chance_below(&chance, (size_t)size);
            size_t n = 1 + chance_below(&chance, (size_t)size - begin);
            enum values values = (enum values)chance_below(&chance, VALUES_COUNT);
            values_fill(&chance, values, dtype, n,
                        (char *)(uintptr_t)tensor.source.data + begin * bytes);
        }
        memcpy(tensor.dense, tensor.source.data, (size_t)size * bytes);
        permille_held(&tensor);
        tensor_done(&tensor);
    }
}

/* Every exponent, with either sign and several mantissas. */
Test(exponent, every_half_comes_back) {
    for (size_t d = 1; d < 3; d++) {
        struct chance chance = {35};
        struct tensor tensor;
        const int64_t size = 1 << 17;
        tensor_init_sizes(&tensor, &chance, dtypes[d], VALUES_NORMAL, 1, &size, true);
        uint16_t *elements = (uint16_t *)(uintptr_t)tensor.source.data;
        for (size_t i = 0; i < 1 << 16; i++) /* slowly through the exponents, so that it pays */
            elements[i] = (uint16_t)(i % 2 << 15 | i >> 1);
        memcpy(tensor.dense, elements, (size_t)size * 2);
        cr_assert(permille_held(&tensor) > 0);
        tensor_done(&tensor);
    }
}

Test(exponent, every_instruction_set_holds_the_same) {
    struct chance chance = {36};
    for (int i = 0; i < 150; i++) {
        struct tensor tensor;
        tensor_init(&tensor, &chance, dtypes[chance_below(&chance, 3)],
                    (enum values)chance_below(&chance, VALUES_COUNT), size_of_trial(&chance));
        struct mesa_plan plan = {.codec = &mesa_codec_exponent};
        mesa_kernels_init(MESA_ISA_SCALAR);
        struct trial plain = trial_run(&plan, &tensor);
        for (int isa = 0; isa < MESA_ISA_COUNT; isa++) {
            if (!mesa_isa_supported((enum mesa_isa)isa))
                continue;
            mesa_kernels_init((enum mesa_isa)isa);
            struct trial other = trial_run(&plan, &tensor);
            cr_assert(eq(int, (int)other.status, (int)plain.status));
            if (plain.status == MESA_OK) {
                cr_assert(eq(sz, other.used, plain.used));
                cr_assert(same_bytes(other.held, plain.held, plain.used));
                cr_assert(same_bytes(other.decoded, tensor.dense, bytes_of(&tensor)));
            }
            trial_done(&other);
        }
        trial_done(&plain);
        tensor_done(&tensor);
    }
}
