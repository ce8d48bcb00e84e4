/* Codecs that give back the same bits, and reading of strided sources.
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

TestSuite(exact, .init = init_kernels);

/* Around the borders of units, of chunks and of what is split over threads. */
static size_t size_of_trial(struct chance *chance) {
    static const size_t borders[] = {1, 8, 31, 32, 64, 512, 2048, 4096, 8192, 262144};
    if (chance_in(chance, 12))
        return 250000 + chance_below(chance, 200000);
    size_t border = borders[chance_below(chance, sizeof borders / sizeof *borders - 1)];
    return border - 1 + chance_below(chance, 3) == 0 ? 1 : border - 1 + chance_below(chance, 3);
}

static size_t bytes_of(const struct tensor *tensor) {
    return tensor->source.elements * mesa_dtype_bytes(tensor->source.dtype);
}

/* Runs `codec` on tensors of all dtypes and values; what it takes must come back. Returns how many
 * it took. */
static int count_taken(const struct mesa_codec *codec, enum mesa_dtype dtype, enum values values,
                       uint64_t seed, int trials) {
    struct chance chance = {seed + 1000 * (uint64_t)dtype + 100000 * (uint64_t)values};
    int taken = 0;
    for (int i = 0; i < trials; i++) {
        struct tensor tensor;
        tensor_init(&tensor, &chance, dtype, values, size_of_trial(&chance));
        struct mesa_plan plan = {.codec = codec};
        struct trial trial = trial_run(&plan, &tensor);
        if (trial.status == MESA_OK) {
            taken++;
            cr_assert(same_bytes(trial.decoded, tensor.dense, bytes_of(&tensor)),
                      "%s, %s, values %d, %zu elements", codec->name, mesa_dtype_name(dtype),
                      (int)values, tensor.source.elements);
        } else {
            cr_assert(eq(int, (int)trial.status, (int)MESA_DECLINED));
        }
        trial_done(&trial);
        tensor_done(&tensor);
    }
    return taken;
}

static void check_all(const struct mesa_codec *codec, uint64_t seed) {
    for (int dtype = 0; dtype < MESA_DTYPE_OTHER; dtype++)
        for (int values = 0; values < VALUES_COUNT; values++)
            count_taken(codec, (enum mesa_dtype)dtype, (enum values)values, seed, 4);
}

Test(exact, codecs_are_found_by_name) {
    for (const struct mesa_codec *const *codec = mesa_codecs; *codec != NULL; codec++)
        cr_assert(
            eq(ptr, (void *)(uintptr_t)mesa_codec_find((*codec)->name), (void *)(uintptr_t)*codec));
    cr_assert(mesa_codec_find("lossy") == NULL);
    cr_assert(mesa_codec_find("") == NULL);
}

Test(exact, any_part_of_a_source_is_gathered) {
    struct chance chance = {1};
    for (int i = 0; i < 2000; i++) {
        struct tensor tensor;
        enum mesa_dtype dtype = (enum mesa_dtype)chance_below(&chance, MESA_DTYPE_OTHER);
        tensor_init(&tensor, &chance, dtype, VALUES_BITS, 1 + chance_below(&chance, 3000));
        size_t bytes = mesa_dtype_bytes(dtype);
        size_t end = chance_below(&chance, tensor.source.elements + 1);
        size_t begin = chance_below(&chance, end + 1);
        const char *expected = (const char *)tensor.dense + begin * bytes;
        char *gathered = malloc((end - begin) * bytes + 1);
        gathered[(end - begin) * bytes] = 77;
        mesa_source_gather(&tensor.source, begin, end, gathered);
        cr_assert(same_bytes(gathered, expected, (end - begin) * bytes));
        cr_assert(gathered[(end - begin) * bytes] == 77);

        const void *first;
        if (mesa_source_contiguous(&tensor.source, begin, end, &first))
            cr_assert(same_bytes(first, expected, (end - begin) * bytes));
        else
            cr_assert(end - begin > 1);
        free(gathered);
        tensor_done(&tensor);
    }
}

Test(exact, dense_sources_are_contiguous) {
    struct chance chance = {2};
    struct tensor tensor;
    const int64_t sizes[] = {3, 1, 5, 7};
    const void *first;
    tensor_init_sizes(&tensor, &chance, MESA_F32, VALUES_NORMAL, 4, sizes, true);
    cr_assert(mesa_source_contiguous(&tensor.source, 0, 105, &first));
    cr_assert(first == tensor.source.data);
    tensor_done(&tensor);
}

Test(exact, copy_takes_everything) {
    for (int dtype = 0; dtype < MESA_DTYPE_OTHER; dtype++)
        cr_assert(
            eq(int, count_taken(&mesa_codec_copy, (enum mesa_dtype)dtype, VALUES_BITS, 3, 10), 10));
}

Test(exact, mask_takes_booleans) {
    for (int values = 0; values < VALUES_COUNT; values++)
        cr_assert(
            eq(int, count_taken(&mesa_codec_mask, MESA_BOOL, (enum values)values, 4, 10), 10));
    cr_assert(eq(int, count_taken(&mesa_codec_mask, MESA_U8, VALUES_TWO, 4, 4), 0));
}

Test(exact, two_takes_two_patterns_of_any_dtype) {
    check_all(&mesa_codec_two, 5);
    for (int dtype = 0; dtype < MESA_C128; dtype++) {
        cr_assert(
            eq(int, count_taken(&mesa_codec_two, (enum mesa_dtype)dtype, VALUES_TWO, 6, 10), 10));
        cr_assert(
            eq(int, count_taken(&mesa_codec_two, (enum mesa_dtype)dtype, VALUES_ZEROS, 6, 10), 10));
    }
}

Test(exact, two_declines_a_third_pattern_wherever_it_is) {
    struct chance chance = {7};
    for (int i = 0; i < 200; i++) {
        struct tensor tensor;
        const int64_t size = 3 + (int64_t)chance_below(&chance, 300000);
        tensor_init_sizes(&tensor, &chance, MESA_F32, VALUES_ZEROS, 1, &size, true);
        float *elements = (float *)(uintptr_t)tensor.source.data;
        elements[(size_t)size / 2] = 1;
        size_t odd_one = (size_t)size - 1 - chance_below(&chance, (size_t)size / 3);
        elements[odd_one] = -0.0f;
        struct mesa_plan plan = {.codec = &mesa_codec_two};
        struct trial trial = trial_run(&plan, &tensor);
        cr_assert(eq(int, (int)trial.status,
                     odd_one == (size_t)size / 2 ? (int)MESA_OK : (int)MESA_DECLINED));
        trial_done(&trial);
        tensor_done(&tensor);
    }
}

Test(exact, a_constant_takes_next_to_nothing) {
    struct chance chance = {8};
    struct tensor tensor;
    tensor_init(&tensor, &chance, MESA_F32, VALUES_CONSTANT, 10000);
    struct mesa_plan plan = {.codec = &mesa_codec_two};
    struct trial trial = trial_run(&plan, &tensor);
    cr_assert(eq(sz, trial.used, 1));
    trial_done(&trial);
    tensor_done(&tensor);
}

Test(exact, narrow_takes_integers_of_little_range) {
    check_all(&mesa_codec_narrow, 9);
    for (int dtype = MESA_I8; dtype <= MESA_I64; dtype++) {
        cr_assert(eq(int,
                     count_taken(&mesa_codec_narrow, (enum mesa_dtype)dtype, VALUES_OFFSET, 10, 10),
                     10));
        cr_assert(eq(
            int, count_taken(&mesa_codec_narrow, (enum mesa_dtype)dtype, VALUES_CONSTANT, 10, 10),
            10));
    }
    cr_assert(eq(int, count_taken(&mesa_codec_narrow, MESA_F32, VALUES_ZEROS, 10, 4), 0));
    cr_assert(eq(int, count_taken(&mesa_codec_narrow, MESA_BOOL, VALUES_ZEROS, 10, 4), 0));
}

/* lo and hi at the ends of the type, at which hi - lo does not fit it. */
Test(exact, narrow_knows_each_width) {
    static const struct {
        int64_t lo, hi;
        size_t bits; /* 0: declined */
    } cases[] = {
        {5, 5, 1},
        {0, 1, 1},
        {-1, 2, 2},
        {-5, 2, 3},
        {0, 255, 8},
        {0, 256, 16},
        {INT64_MIN, INT64_MIN + 3, 2},
        {INT64_MAX - 65535, INT64_MAX, 16},
        {-1, 65535, 32},
        {-2147483648LL, 2147483647LL, 32},
        {-2147483648LL, 2147483648LL, 0},
        {INT64_MIN, INT64_MAX, 0},
        {-1, INT64_MAX, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct chance chance = {11};
        struct tensor tensor;
        const int64_t size = 1000;
        tensor_init_sizes(&tensor, &chance, MESA_I64, VALUES_CONSTANT, 1, &size, true);
        int64_t *elements = (int64_t *)(uintptr_t)tensor.source.data;
        for (int64_t j = 0; j < size; j++)
            elements[j] = j % 3 == 0 ? cases[i].hi : cases[i].lo;
        memcpy(tensor.dense, elements, (size_t)size * 8);
        struct mesa_plan plan = {.codec = &mesa_codec_narrow};
        struct trial trial = trial_run(&plan, &tensor);
        if (cases[i].bits == 0) {
            cr_assert(eq(int, (int)trial.status, (int)MESA_DECLINED));
        } else {
            cr_assert(eq(sz, trial.used, (size_t)size * cases[i].bits / 8));
            cr_assert(same_bytes(trial.decoded, tensor.dense, (size_t)size * 8));
        }
        trial_done(&trial);
        tensor_done(&tensor);
    }
}

Test(exact, narrow_declines_without_a_gain) {
    cr_assert(eq(int, count_taken(&mesa_codec_narrow, MESA_I8, VALUES_BITS, 12, 1), 0));
    cr_assert(eq(int, count_taken(&mesa_codec_narrow, MESA_I64, VALUES_BITS, 12, 1), 0));
}

Test(exact, sparse_takes_many_zeros_and_keeps_other_bits) {
    check_all(&mesa_codec_sparse, 13);
    struct chance chance = {14};
    for (int dtype = 0; dtype < MESA_C128; dtype++) {
        struct tensor tensor;
        tensor_init(&tensor, &chance, (enum mesa_dtype)dtype, VALUES_RARE, 300000);
        struct mesa_plan plan = {.codec = &mesa_codec_sparse};
        struct trial trial = trial_run(&plan, &tensor);
        cr_assert(eq(int, (int)trial.status, (int)MESA_OK));
        /* a bit for each, about one in fifty elements, the table */
        size_t bytes = bytes_of(&tensor);
        cr_assert(trial.used < tensor.source.elements / 8 + bytes / 40 + bytes / 200 + 2000);
        trial_done(&trial);
        tensor_done(&tensor);
    }
}

Test(exact, sparse_declines_unless_a_tenth_is_saved) {
    struct chance chance = {15};
    for (size_t percent = 0; percent <= 40; percent++) {
        struct tensor tensor;
        const int64_t size = 100000;
        tensor_init_sizes(&tensor, &chance, MESA_F32, VALUES_OFFSET, 1, &size, true);
        float *elements = (float *)(uintptr_t)tensor.source.data;
        for (int64_t i = 0; i < size; i++)
            if ((size_t)(i % 100) < percent)
                elements[i] = 0;
        struct mesa_plan plan = {.codec = &mesa_codec_sparse};
        struct trial trial = trial_run(&plan, &tensor);
        cr_assert(percent > 10 || trial.status == MESA_DECLINED);
        cr_assert(percent < 15 || trial.status == MESA_OK);
        cr_assert(trial.status != MESA_OK || trial.used <= (size_t)size * 4 * 9 / 10);
        trial_done(&trial);
        tensor_done(&tensor);
    }
}
