/* What may be done with a saved tensor, asked of every row of the op table and every dtype: the rules
 * that keep gradients right, whatever the table and the settings say.
 *
 * SPDX-License-Identifier: MIT */
#include "policy/choose.h"

#include <criterion/criterion.h>

#include <string.h>

static const struct mesa_settings defaults = {
    .way = MESA_WAY_AUTO, .bits = 8, .by = MESA_BY_BLOCK, .group = 128};
static const struct mesa_place nowhere;

static bool is_rounding(const struct mesa_codec *codec) {
    return codec == &mesa_codec_affine || codec == &mesa_codec_sparse_affine ||
           codec == &mesa_codec_bfloat16 || codec == &mesa_codec_float16;
}

static bool is_comparison(const struct mesa_codec *codec, enum mesa_dtype dtype) {
    return codec == &mesa_codec_sign || codec == &mesa_codec_compare ||
           (codec == &mesa_codec_mask && dtype != MESA_BOOL);
}

/* Calls `check` for each row, dtype and way. */
static void for_all(void (*check)(const struct mesa_op_argument *row, enum mesa_dtype dtype,
                                  enum mesa_way way, const struct mesa_choice *choice)) {
    for (size_t i = 0; i < mesa_op_count(); i++)
        for (size_t j = 0; j < mesa_op_at(i)->count; j++)
            for (int dtype = 0; dtype < MESA_DTYPE_COUNT; dtype++)
                for (int way = 0; way < MESA_WAY_COUNT; way++) {
                    struct mesa_settings settings = defaults;
                    settings.way = (enum mesa_way)way;
                    const struct mesa_op_argument *row = &mesa_op_at(i)->arguments[j];
                    struct mesa_choice choice;
                    mesa_policy_choose(&settings, &nowhere, row, (enum mesa_dtype)dtype, &choice);
                    check(row, (enum mesa_dtype)dtype, (enum mesa_way)way, &choice);
                }
}

static void values_not_there_yet(const struct mesa_op_argument *row, enum mesa_dtype dtype,
                                 enum mesa_way way, const struct mesa_choice *choice) {
    (void)dtype;
    (void)way;
    if (row->saved_before_filled)
        cr_assert(choice->count == 0 && !choice->geometry, "%s.%s", row->op, row->argument);
}

Test(choose, a_tensor_that_is_not_filled_yet_is_never_held) {
    for_all(values_not_there_yet);
}

static void nothing_rounds(const struct mesa_op_argument *row, enum mesa_dtype dtype,
                           enum mesa_way way, const struct mesa_choice *choice) {
    for (unsigned i = 0; i < choice->count && way == MESA_WAY_EXACT; i++) {
        cr_assert(!is_rounding(choice->candidates[i]), "%s.%s", row->op, row->argument);
        cr_assert(choice->candidates[i]->exact || is_comparison(choice->candidates[i], dtype));
    }
}

Test(choose, exact_never_rounds) {
    for_all(nothing_rounds);
}

static void auto_respects_reading(const struct mesa_op_argument *row, enum mesa_dtype dtype,
                                  enum mesa_way way, const struct mesa_choice *choice) {
    if (way != MESA_WAY_AUTO)
        return;
    for (unsigned i = 0; i < choice->count; i++) {
        const struct mesa_codec *codec = choice->candidates[i];
        bool affine = codec == &mesa_codec_affine || codec == &mesa_codec_sparse_affine;
        if (affine)
            cr_assert(row->reads == MESA_READS_VALUE || row->reads == MESA_READS_EXP, "%s.%s",
                      row->op, row->argument);
        if (is_rounding(codec))
            cr_assert(dtype == MESA_F32 || dtype == MESA_BF16 || dtype == MESA_F16, "%s.%s of %s",
                      row->op, row->argument, mesa_dtype_name(dtype));
    }
}

Test(choose, auto_rounds_only_what_may_be_rounded) {
    for_all(auto_respects_reading);
}

static void pairs_are_compared_first(const struct mesa_op_argument *row, enum mesa_dtype dtype,
                                     enum mesa_way way, const struct mesa_choice *choice) {
    bool expected = row->reads == MESA_READS_COMPARE && mesa_dtype_is_real(dtype) &&
                    (way == MESA_WAY_AUTO || way == MESA_WAY_EXACT || way == MESA_WAY_MASK);
    for (unsigned i = 0; i < choice->count; i++)
        cr_assert((choice->candidates[i] == &mesa_codec_compare) == (expected && i == 0), "%s.%s",
                  row->op, row->argument);
    if (expected)
        cr_assert(choice->count > 0);
}

Test(choose, two_inputs_are_compared_where_the_backward_does_it) {
    for_all(pairs_are_compared_first);
}

static void weights_are_kept(const struct mesa_op_argument *row, enum mesa_dtype dtype,
                             enum mesa_way way, const struct mesa_choice *choice) {
    (void)dtype;
    if (row->reads == MESA_READS_WEIGHT && (way == MESA_WAY_AUTO || way == MESA_WAY_EXACT))
        cr_assert(choice->count == 0 && !choice->geometry);
}

Test(choose, weights_are_never_held) {
    for_all(weights_are_kept);
}

static void data_is_rounded_less(const struct mesa_op_argument *row, enum mesa_dtype dtype,
                                 enum mesa_way way, const struct mesa_choice *choice) {
    bool codes = choice->count > 0 && choice->candidates[choice->count - 1] == &mesa_codec_affine;
    bool expected = codes && way == MESA_WAY_AUTO && !row->keep_zeros;
    const struct mesa_codec *fine = dtype == MESA_F32 ? &mesa_codec_float16 : &mesa_codec_exponent;
    cr_assert(choice->data_only == (expected ? fine : NULL), "%s.%s", row->op, row->argument);
    for (unsigned i = 0; i < choice->count && way == MESA_WAY_AUTO; i++)
        if (choice->candidates[i] == &mesa_codec_float16)
            cr_assert(choice->data_only == &mesa_codec_float16);
}

Test(choose, fine_codes_are_for_data) {
    for_all(data_is_rounded_less);
    struct mesa_settings settings = defaults;
    settings.bits = 4; /* wants it small */
    struct mesa_choice choice;
    mesa_policy_choose(&settings, &nowhere, mesa_op_find("gelu", 4)->arguments, MESA_F32, &choice);
    cr_assert_null(choice.data_only);
}

Test(choose, sixteen_bits_are_a_short_float) {
    struct mesa_settings settings = defaults;
    settings.bits = MESA_SHORT_FLOAT_BITS;
    const struct mesa_op_argument *gelu = mesa_op_find("gelu", 4)->arguments;
    struct mesa_choice choice;
    mesa_policy_choose(&settings, &nowhere, gelu, MESA_F32, &choice);
    cr_assert_eq(choice.count, 2); /* two values: fewer bits, and exact */
    cr_assert(choice.candidates[1] == &mesa_codec_float16 && !choice.exact);
    mesa_policy_choose(&settings, &nowhere, gelu, MESA_BF16, &choice);
    cr_assert(choice.exact); /* has no more than 16 bits */
    settings.way = MESA_WAY_AFFINE;
    mesa_policy_choose(&settings, &nowhere, gelu, MESA_F32, &choice);
    cr_assert(choice.count == 2 && choice.candidates[1] == &mesa_codec_float16);

    struct mesa_op_argument with_zeros = *gelu; /* float16 would round small values to zero */
    with_zeros.keep_zeros = true;
    mesa_policy_choose(&settings, &nowhere, &with_zeros, MESA_F32, &choice);
    cr_assert(choice.candidates[1] == &mesa_codec_bfloat16);
}

static void values_survive(const struct mesa_op_argument *row, enum mesa_dtype dtype,
                           enum mesa_way way, const struct mesa_choice *choice) {
    (void)way;
    if (choice->geometry)
        cr_assert(row->reads == MESA_READS_GEOMETRY, "%s.%s", row->op, row->argument);
    for (unsigned i = 0; i < choice->count; i++)
        if (is_comparison(choice->candidates[i], dtype)) {
            bool of_two = row->reads == MESA_READS_COMPARE;
            cr_assert(of_two || row->reads == MESA_READS_MASK || row->reads == MESA_READS_SIGN,
                      "%s.%s", row->op, row->argument);
            cr_assert(of_two || row->reads == MESA_READS_SIGN || row->thresholds_known);
        }
}

Test(choose, no_way_drops_values_that_are_read) {
    for_all(values_survive);
}

Test(choose, keep_and_off_hold_nothing) {
    for (int way = MESA_WAY_OFF; way <= MESA_WAY_KEEP; way++) {
        struct mesa_settings settings = defaults;
        settings.way = (enum mesa_way)way;
        struct mesa_choice choice;
        mesa_policy_choose(&settings, &nowhere, mesa_op_find("gelu", 4)->arguments, MESA_F32,
                           &choice);
        cr_assert(choice.count == 0 && !choice.geometry);
        cr_assert(choice.off == (way == MESA_WAY_OFF));
        cr_assert(choice.kept == MESA_KEPT_POLICY);
    }
}

Test(choose, custom_ops_need_a_named_way) {
    struct mesa_settings settings = defaults;
    struct mesa_choice choice;
    mesa_policy_choose(&settings, &nowhere, NULL, MESA_F32, &choice);
    cr_assert(choice.count == 0 && choice.kept == MESA_KEPT_UNKNOWN_OP);
    settings.way = MESA_WAY_AFFINE;
    mesa_policy_choose(&settings, &nowhere, NULL, MESA_F32, &choice);
    cr_assert(choice.candidates[choice.count - 1] == &mesa_codec_affine);
}

Test(choose, only_comparisons_with_zero_are_signs) {
    cr_assert(mesa_predicate_is_sign(MESA_ABOVE, 0));
    cr_assert(mesa_predicate_is_sign(MESA_GREATER, 0));
    cr_assert(mesa_predicate_is_sign(MESA_NONZERO, 5));
    cr_assert(!mesa_predicate_is_sign(MESA_ABOVE, 0.5));
    cr_assert(!mesa_predicate_is_sign(MESA_BETWEEN, 0));
}
