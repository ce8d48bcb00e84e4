/* Codecs that give back other values: masks of reals, signs, short floats, sparse codes.
 *
 * SPDX-License-Identifier: MIT */
#include "trial.h"

#include "codec/kernels/element.h"
#include "codec/kernels/mask.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void init_kernels(void) {
    mesa_kernels_init(mesa_isa_best());
}

TestSuite(lossy, .init = init_kernels, .timeout = 100);

static size_t random_size(struct chance *chance) {
    return chance_in(chance, 15) ? 270000 + chance_below(chance, 100000)
                                 : 1 + chance_below(chance, 5000);
}

/* ---- masks -------------------------------------------------------------------------------------- */

static void check_mask(struct chance *chance, enum mesa_dtype dtype, enum values values,
                       enum mesa_predicate predicate, double lo, double hi) {
    struct tensor tensor;
    tensor_init(&tensor, chance, dtype, values, random_size(chance));
    struct mesa_plan plan = {.codec = &mesa_codec_mask, .predicate = predicate, .lo = lo, .hi = hi};
    struct trial trial = trial_run(&plan, &tensor);
    cr_assert(eq(int, (int)trial.status, (int)MESA_OK));
    cr_assert(eq(sz, trial.used, (tensor.source.elements + 7) / 8));
    for (size_t i = 0; i < tensor.source.elements; i++) {
        double x = value_at(dtype, tensor.dense, i), y = value_at(dtype, trial.decoded, i);
        cr_assert(isfinite(y));
        cr_assert(predicate_holds(predicate, x, lo, hi) == predicate_holds(predicate, y, lo, hi),
                  "%s, predicate %d of %g, %g: %g became %g", mesa_dtype_name(dtype),
                  (int)predicate, lo, hi, x, y);
        if ((predicate == MESA_ABOVE || predicate == MESA_GREATER) && lo == 0)
            cr_assert(y == 0 || y == 1);
    }
    trial_done(&trial);
    tensor_done(&tensor);
}

Test(lossy, masks_keep_the_comparison) {
    struct chance chance = {1};
    static const double bounds[][2] = {
        {0, 0.5}, {-1, 1},          {0.1, 0.2},     {0, 6},     {-0.0, 3}, {1, 2},
        {20, 21}, {-INFINITY, 0.5}, {-2, INFINITY}, {-3.5, -3}, {1e-8, 1},
    };
    for (int dtype = 0; dtype < MESA_REAL_DTYPES; dtype++)
        for (int predicate = 0; predicate < MESA_PREDICATE_COUNT; predicate++)
            for (int values = 0; values < VALUES_COUNT; values++) {
                const double *bound = bounds[chance_below(&chance, sizeof bounds / sizeof *bounds)];
                double lo = bound[0];
                if (isinf(lo) && predicate != MESA_BETWEEN && predicate != MESA_WITHIN)
                    lo = 0;
                check_mask(&chance, (enum mesa_dtype)dtype, (enum values)values,
                           (enum mesa_predicate)predicate, lo, bound[1]);
            }
}

/* relu's: what passes the gradient is what is positive, or NaN. */
Test(lossy, mask_of_relu) {
    struct chance chance = {2};
    for (int values = 0; values < VALUES_COUNT; values++)
        check_mask(&chance, MESA_F32, (enum values)values, MESA_ABOVE, 0, 0);
}

/* ---- intervals ---------------------------------------------------------------------------------- */

static int place_of(double x, double lo, double hi) {
    return (lo <= x && x <= hi) + (lo < x && x < hi) + (isinf(x) && x == lo) +
           (isinf(x) && x == hi);
}

/* Puts some elements onto the ends. */
static void put_on_ends(struct chance *chance, struct tensor *tensor, enum mesa_dtype dtype,
                        const double *ends) {
    /* A source of one run lies in memory as in dense order. */
    cr_assert(tensor->source.ndim == 1 && tensor->source.strides[0] == 1);
    for (size_t k = 0; k < 5; k++) {
        size_t i = chance_below(chance, tensor->source.elements);
        double end = ends[chance_below(chance, 2)];
        void *memory[2] = {(void *)(uintptr_t)tensor->source.data, tensor->dense};
        for (int j = 0; j < 2; j++) {
            if (dtype == MESA_F64)
                ((double *)memory[j])[i] = end;
            else
                element_store(dtype, memory[j], i, (float)end);
        }
    }
}

static void check_interval(struct chance *chance, enum mesa_dtype dtype, enum values values,
                           double lo, double hi, bool with_ends) {
    struct tensor tensor;
    if (with_ends) {
        const int64_t size = (int64_t)random_size(chance);
        tensor_init_sizes(&tensor, chance, dtype, values, 1, &size, true);
        const double ends[2] = {isinf(lo) ? hi : lo, isinf(hi) ? lo : hi};
        put_on_ends(chance, &tensor, dtype, ends);
    } else {
        tensor_init(&tensor, chance, dtype, values, random_size(chance));
    }
    struct mesa_plan plan = {.codec = &mesa_codec_interval, .lo = lo, .hi = hi};
    struct trial trial = trial_run(&plan, &tensor);
    cr_assert(eq(int, (int)trial.status, (int)MESA_OK));
    bool any = false;
    for (size_t i = 0; i < tensor.source.elements; i++) {
        double x = value_at(dtype, tensor.dense, i), y = value_at(dtype, trial.decoded, i);
        any |= place_of(x, lo, hi) == 1;
        cr_assert(isfinite(y));
        cr_assert(place_of(x, lo, hi) == place_of(y, lo, hi), "%s, [%g, %g]: %g became %g",
                  mesa_dtype_name(dtype), lo, hi, x, y);
    }
    cr_assert(any || !with_ends);
    size_t bytes = (tensor.source.elements + 7) / 8;
    cr_assert(any ? trial.used <= 2 * bytes + 63 : trial.used == bytes);
    trial_done(&trial);
    tensor_done(&tensor);
}

Test(lossy, intervals_keep_inside_ends_and_outside) {
    struct chance chance = {9};
    static const double bounds[][2] = {
        {0, INFINITY}, {-INFINITY, 0},  {-1, 1},           {0.5, 6},
        {-0.0, 3},     {-INFINITY, -2}, {0.125, INFINITY},
    };
    for (int dtype = 0; dtype < MESA_REAL_DTYPES; dtype++)
        for (int values = 0; values < VALUES_COUNT; values++)
            for (int ends = 0; ends < 2; ends++) {
                const double *bound = bounds[chance_below(&chance, sizeof bounds / sizeof *bounds)];
                check_interval(&chance, (enum mesa_dtype)dtype, (enum values)values, bound[0],
                               bound[1], ends != 0);
            }
}

Test(lossy, intervals_without_an_inside_are_declined) {
    struct mesa_plan plan = {
        .codec = &mesa_codec_interval, .elements = 100, .dtype = MESA_F32, .lo = 1, .hi = 1};
    cr_assert(eq(sz, mesa_codec_interval.bound_bytes(&plan), 0));
    plan.lo = 2;
    cr_assert(eq(sz, mesa_codec_interval.bound_bytes(&plan), 0));
    plan.lo = NAN;
    cr_assert(eq(sz, mesa_codec_interval.bound_bytes(&plan), 0));
    plan.lo = -INFINITY;
    plan.hi = INFINITY;
    cr_assert(eq(sz, mesa_codec_interval.bound_bytes(&plan), 0));
    plan.hi = 0.1; /* not a float: no element lies on it */
    cr_assert(eq(sz, mesa_codec_interval.bound_bytes(&plan), 0));
    plan.hi = 0.5;
    cr_assert(ne(sz, mesa_codec_interval.bound_bytes(&plan), 0));
    plan.dtype = MESA_I32;
    cr_assert(eq(sz, mesa_codec_interval.bound_bytes(&plan), 0));
}

/* ---- masks -------------------------------------------------------------------------------------- */

Test(lossy, masks_that_no_value_fits_are_declined) {
    struct mesa_plan plan = {.codec = &mesa_codec_mask,
                             .elements = 100,
                             .dtype = MESA_F32,
                             .predicate = MESA_BETWEEN,
                             .lo = 1,
                             .hi = 1};
    cr_assert(eq(sz, mesa_codec_mask.bound_bytes(&plan), 0));
    plan.lo = 2;
    cr_assert(eq(sz, mesa_codec_mask.bound_bytes(&plan), 0));
    plan.lo = NAN;
    cr_assert(eq(sz, mesa_codec_mask.bound_bytes(&plan), 0));
    plan.lo = -INFINITY;
    plan.hi = INFINITY;
    cr_assert(eq(sz, mesa_codec_mask.bound_bytes(&plan), 0));
    plan.lo = 1e300;
    cr_assert(eq(sz, mesa_codec_mask.bound_bytes(&plan), 0));
    plan.lo = 0.1;
    plan.hi = 0.10005;
    plan.predicate = MESA_BETWEEN;
    cr_assert(eq(sz, mesa_codec_mask.bound_bytes(&plan), 13));
    plan.dtype = MESA_BF16; /* none of its values lies between */
    cr_assert(eq(sz, mesa_codec_mask.bound_bytes(&plan), 0));
    plan.dtype = MESA_I32;
    cr_assert(eq(sz, mesa_codec_mask.bound_bytes(&plan), 0));
}

/* ---- signs -------------------------------------------------------------------------------------- */

Test(lossy, signs_are_kept) {
    struct chance chance = {3};
    for (int dtype = 0; dtype < MESA_REAL_DTYPES; dtype++) {
        for (int values = 0; values < VALUES_COUNT; values++) {
            struct tensor tensor;
            tensor_init(&tensor, &chance, (enum mesa_dtype)dtype, (enum values)values,
                        random_size(&chance));
            struct mesa_plan plan = {.codec = &mesa_codec_sign};
            struct trial trial = trial_run(&plan, &tensor);
            cr_assert(eq(int, (int)trial.status, (int)MESA_OK));
            cr_assert(eq(sz, trial.used, (tensor.source.elements + 3) / 4));
            for (size_t i = 0; i < tensor.source.elements; i++) {
                double x = value_at(plan.dtype, tensor.dense, i);
                double y = value_at(plan.dtype, trial.decoded, i);
                cr_assert(isnan(x) ? isnan(y) : y == (x > 0) - (x < 0), "%g became %g", x, y);
            }
            trial_done(&trial);
            tensor_done(&tensor);
        }
    }
    cr_assert(
        eq(sz, mesa_codec_sign.bound_bytes(&(struct mesa_plan){.dtype = MESA_I32, .elements = 100}),
           0));
}

/* ---- comparisons -------------------------------------------------------------------------------- */

/* Another tensor with the same geometry: many elements equal `tensor`'s. Owned. */
static void *partner_of(struct tensor *tensor, enum values values, struct chance *chance) {
    const struct mesa_source *source = &tensor->source;
    size_t span = 1, bytes = mesa_dtype_bytes(source->dtype);
    for (int d = 0; d < source->ndim; d++)
        span += (size_t)(source->sizes[d] - 1) * (size_t)source->strides[d];
    char *partner = malloc(span * bytes);
    cr_assert(ne(ptr, partner, NULL));
    values_fill(chance, values, source->dtype, span, partner);
    for (size_t i = 0; i < span; i++)
        if (chance_in(chance, 3))
            memcpy(partner + i * bytes, (const char *)source->data + i * bytes, bytes);
    tensor->source.against = partner;
    return partner;
}

static bool any_nan(const struct mesa_source *source, const void *a, const void *b) {
    for (size_t i = 0; i < source->elements; i++)
        if (isnan(value_at(source->dtype, a, i)) || isnan(value_at(source->dtype, b, i)))
            return true;
    return false;
}

static void check_comparison(enum mesa_dtype dtype, enum values values, struct chance *chance) {
    struct tensor tensor;
    tensor_init(&tensor, chance, dtype, values, random_size(chance));
    void *partner = partner_of(&tensor, values, chance);
    struct mesa_source other = tensor.source;
    other.data = partner;
    char *others = malloc(other.elements * mesa_dtype_bytes(dtype));
    mesa_source_gather(&other, 0, other.elements, others);
    struct mesa_plan plan = {.codec = &mesa_codec_compare};
    struct trial trial = trial_run(&plan, &tensor);
    bool declined = any_nan(&tensor.source, tensor.dense, others);
    cr_assert(eq(int, (int)trial.status, (int)(declined ? MESA_DECLINED : MESA_OK)));
    if (!declined)
        cr_assert(eq(sz, trial.used, (tensor.source.elements + 3) / 4));
    for (size_t i = 0; i < tensor.source.elements && !declined; i++) {
        double x = value_at(dtype, tensor.dense, i), y = value_at(dtype, others, i);
        double got = value_at(dtype, trial.decoded, i);
        cr_assert(got == (x > y) - (x < y), "%g against %g became %g", x, y, got);
    }
    trial_done(&trial);
    tensor_done(&tensor);
    free(partner);
    free(others);
}

Test(lossy, comparisons_are_kept) {
    struct chance chance = {31};
    for (int round = 0; round < 3; round++)
        for (int dtype = 0; dtype < MESA_REAL_DTYPES; dtype++)
            for (int values = 0; values < VALUES_COUNT; values++)
                check_comparison((enum mesa_dtype)dtype, (enum values)values, &chance);
}

Test(lossy, one_tensor_alone_cannot_be_compared) {
    struct chance chance = {32};
    struct tensor tensor;
    tensor_init(&tensor, &chance, MESA_F32, VALUES_NORMAL, 100);
    struct mesa_plan plan = {
        .codec = &mesa_codec_compare, .dtype = MESA_F32, .elements = tensor.source.elements};
    cr_assert(not(mesa_codec_compare.may_fit(&plan, &tensor.source)));
    tensor_done(&tensor);
}

/* ---- short floats ------------------------------------------------------------------------------- */

static void check_short(const struct mesa_codec *codec, enum values values, struct chance *chance) {
    struct tensor tensor;
    bool to_bfloat16 = codec == &mesa_codec_bfloat16, overflows = false;
    tensor_init(&tensor, chance, MESA_F32, values, random_size(chance));
    const float *from = tensor.dense;
    for (size_t i = 0; i < tensor.source.elements; i++)
        overflows |= isfinite(from[i]) && !isfinite(f16_widen(f16_round(from[i])));
    struct mesa_plan plan = {.codec = codec};
    struct trial trial = trial_run(&plan, &tensor);
    cr_assert(
        eq(int, (int)trial.status, (int)(overflows && !to_bfloat16 ? MESA_DECLINED : MESA_OK)));
    if (trial.status == MESA_OK) {
        const float *back = trial.decoded;
        cr_assert(eq(sz, trial.used, tensor.source.elements * 2));
        for (size_t i = 0; i < tensor.source.elements; i++) {
            float expected =
                to_bfloat16 ? bf16_widen(bf16_round(from[i])) : f16_widen(f16_round(from[i]));
            cr_assert(isnan(from[i]) ? isnan(back[i])
                                     : float_bits(expected) == float_bits(back[i]));
        }
    }
    trial_done(&trial);
    tensor_done(&tensor);
}

Test(lossy, short_floats_are_rounded) {
    struct chance chance = {4};
    for (int values = 0; values < VALUES_COUNT; values++) {
        for (int i = 0; i < 5; i++) {
            check_short(&mesa_codec_bfloat16, (enum values)values, &chance);
            check_short(&mesa_codec_float16, (enum values)values, &chance);
        }
    }
}

Test(lossy, short_floats_take_float32_only) {
    for (int dtype = 0; dtype < MESA_DTYPE_COUNT; dtype++) {
        struct mesa_plan plan = {.dtype = (enum mesa_dtype)dtype, .elements = 100};
        size_t expected = dtype == MESA_F32 ? 200 : 0;
        cr_assert(eq(sz, mesa_codec_bfloat16.bound_bytes(&plan), expected));
        cr_assert(eq(sz, mesa_codec_float16.bound_bytes(&plan), expected));
    }
}

/* ---- sparse codes ------------------------------------------------------------------------------- */

static void check_sparse_element(double x, double y, double step) {
    if (!isfinite(x)) {
        cr_assert(isnan(x) ? isnan(y) : x == y, "%g became %g", x, y);
        return;
    }
    bool sign_kept = (x > 0) == (y > 0) && (x < 0) == (y < 0);
    cr_assert(sign_kept, "%g became %g", x, y);
    cr_assert(fabs(x - y) <= step, "%g became %g", x, y);
}

static struct trial run_sparse(const struct tensor *tensor, struct mesa_plan *plan, unsigned bits,
                               size_t group) {
    *plan = (struct mesa_plan){.codec = &mesa_codec_sparse_affine,
                               .bits = bits,
                               .row = tensor->source.elements,
                               .group = group};
    return trial_run(plan, tensor);
}

Test(lossy, sparse_codes_keep_zeros_and_signs) {
    struct chance chance = {5};
    static const size_t groups[] = {16, 32, 64, 100, 1024};
    int taken = 0;
    for (int i = 0; i < 300; i++) {
        static const enum values kinds[] = {VALUES_RELU, VALUES_RARE, VALUES_ZEROS, VALUES_BITS,
                                            VALUES_NORMAL};
        enum values values = kinds[i % 5];
        struct tensor tensor;
        tensor_init(&tensor, &chance, (enum mesa_dtype)chance_below(&chance, MESA_REAL_DTYPES),
                    values, random_size(&chance));
        struct mesa_plan plan;
        unsigned bits = 2 + (unsigned)chance_below(&chance, MESA_MOST_CODE_BITS - 1);
        struct trial trial = run_sparse(&tensor, &plan, bits, groups[chance_below(&chance, 5)]);
        if (trial.status == MESA_OK) {
            taken++;
            /* Values lie in (-2, 2); a strict sign costs up to a step. */
            double step = (2 + 2) / ((double)(1u << bits) - 2) * 1.02;
            for (size_t j = 0; j < tensor.source.elements; j++)
                check_sparse_element(value_at(plan.dtype, tensor.dense, j),
                                     value_at(plan.dtype, trial.decoded, j), step);
        } else {
            cr_assert(eq(int, (int)trial.status, (int)MESA_DECLINED));
        }
        cr_assert(values != VALUES_NORMAL || trial.status == MESA_DECLINED);
        trial_done(&trial);
        tensor_done(&tensor);
    }
    cr_assert(taken > 80, "%d taken", taken);
}

Test(lossy, sparse_codes_are_taken_where_they_are_smaller) {
    struct chance chance = {6};
    for (size_t percent = 0; percent <= 90; percent += 5) {
        struct tensor tensor;
        const int64_t size = 400000;
        tensor_init_sizes(&tensor, &chance, MESA_F32, VALUES_OFFSET, 1, &size, true);
        float *elements = (float *)(uintptr_t)tensor.source.data;
        for (int64_t i = 0; i < size; i++)
            if (chance_below(&chance, 100) < percent)
                elements[i] = 0;
        struct mesa_plan plain = {
            .codec = &mesa_codec_affine, .bits = 8, .row = 400000, .group = 64};
        struct mesa_plan plan;
        struct trial dense = trial_run(&plain, &tensor);
        struct trial sparse = run_sparse(&tensor, &plan, 8, 64);
        cr_assert(eq(int, (int)dense.status, (int)MESA_OK));
        if (percent <= 10)
            cr_assert(eq(int, (int)sparse.status, (int)MESA_DECLINED));
        if (percent >= 20)
            cr_assert(eq(int, (int)sparse.status, (int)MESA_OK));
        cr_assert(sparse.status != MESA_OK || sparse.used < dense.used);
        trial_done(&sparse);
        trial_done(&dense);
        tensor_done(&tensor);
    }
}

/* NaN and infinity in some chunks, so that raw groups have indices beyond the first. */
Test(lossy, sparse_codes_keep_raw_groups) {
    struct chance chance = {7};
    struct tensor tensor;
    const int64_t size = 300000;
    tensor_init_sizes(&tensor, &chance, MESA_F32, VALUES_RELU, 1, &size, true);
    float *elements = (float *)(uintptr_t)tensor.source.data;
    for (int i = 0; i < 100; i++)
        elements[chance_below(&chance, (size_t)size)] = i % 2 == 0 ? NAN : INFINITY;
    memcpy(tensor.dense, elements, (size_t)size * sizeof *elements);
    struct mesa_plan plan;
    struct trial trial = run_sparse(&tensor, &plan, 8, 64);
    cr_assert(eq(int, (int)trial.status, (int)MESA_OK));
    cr_assert(plan.found[0] > 80 && plan.found[0] <= 100);
    const float *back = trial.decoded;
    for (size_t i = 0; i < (size_t)size; i++)
        check_sparse_element((double)elements[i], (double)back[i], 2.1 / 254);
    trial_done(&trial);

    for (size_t i = 0; i < (size_t)size; i += 100)
        elements[i] = NAN;
    trial = run_sparse(&tensor, &plan, 8, 64);
    cr_assert(eq(int, (int)trial.status, (int)MESA_DECLINED));
    trial_done(&trial);
    tensor_done(&tensor);
}
