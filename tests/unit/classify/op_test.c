/* The op table: its form, look-ups by name and by symbol, and the rows on which a wrong gradient would
 * hang.
 *
 * SPDX-License-Identifier: MIT */
#include "classify/calibration.h"
#include "classify/op.h"
#include "classify/symbol.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct mesa_op *find(const char *name) {
    return mesa_op_find(name, strlen(name));
}

static const struct mesa_op *of_symbol(const char *name, bool *ret_inplace) {
    return mesa_op_of_symbol(name, strlen(name), ret_inplace);
}

/* The row "op[.overload]" / argument; the test fails if there is none. */
static const struct mesa_op_argument *row(const char *name, const char *argument) {
    const struct mesa_op *op = find(name);
    cr_assert(op != NULL, "no op %s", name);
    for (size_t i = 0; i < op->count; i++)
        if (strcmp(op->arguments[i].argument, argument) == 0)
            return &op->arguments[i];
    cr_assert_fail("no argument %s.%s", name, argument);
    abort();
}

Test(op, table_has_all_ops_in_order) {
    cr_assert_eq(mesa_op_count(), 312);
    cr_assert_eq(mesa_op_at(mesa_op_count()), NULL);
    for (size_t i = 1; i < mesa_op_count(); i++) {
        const struct mesa_op *last = mesa_op_at(i - 1);
        const struct mesa_op *op = mesa_op_at(i);
        int names = strcmp(last->name, op->name);
        cr_assert(names < 0 || (names == 0 && strcmp(last->overload, op->overload) <= 0),
                  "%s.%s before %s.%s", last->name, last->overload, op->name, op->overload);
    }
}

Test(op, rows_are_in_order_of_saves) {
    size_t rows = 0;
    for (size_t i = 0; i < mesa_op_count(); i++) {
        const struct mesa_op *op = mesa_op_at(i);
        cr_assert(op->count > 0 && op->inputs <= op->count);
        rows += op->count;
        for (size_t k = 0; k < op->count; k++) {
            const struct mesa_op_argument *argument = &op->arguments[k];
            cr_assert_str_eq(argument->op, op->name);
            cr_assert_eq(argument->order, k);
            cr_assert_eq(argument->total, op->count);
            cr_assert(argument->is_result == (k >= op->inputs));
            cr_assert(argument->is_guarded == (argument->guard != 0));
            cr_assert(!(argument->is_result && argument->is_guarded));
            cr_assert(argument->channel_dim == 1 || argument->channel_dim == -1);
            if (k > 0 && argument->is_result == argument[-1].is_result)
                cr_assert(strcmp(argument[-1].argument, argument->argument) < 0, "%s", op->name);
        }
    }
    cr_assert_eq(rows, 675);
}

Test(op, thresholds_go_with_masks) {
    for (size_t i = 0; i < mesa_op_count(); i++)
        for (size_t k = 0; k < mesa_op_at(i)->count; k++) {
            const struct mesa_op_argument *argument = &mesa_op_at(i)->arguments[k];
            if (argument->thresholds_known)
                cr_assert(argument->reads == MESA_READS_MASK);
            else
                cr_assert(argument->lo == 0 && argument->hi == 0);
        }
}

/* An unknown argument must be treated no worse than any that it may be. */
static void check_any(const struct mesa_op *op, const struct mesa_op_argument *any, size_t begin,
                      size_t end) {
    cr_assert((any != NULL) == (begin < end));
    for (size_t k = begin; k < end; k++) {
        const struct mesa_op_argument *argument = &op->arguments[k];
        cr_assert_str_eq(any->argument, "?");
        cr_assert(any->is_result == argument->is_result);
        cr_assert(any->reads == MESA_READS_EXACT || any->reads == argument->reads, "%s", op->name);
        cr_assert(any->keep_zeros || !argument->keep_zeros);
        cr_assert(any->saved_before_filled || !argument->saved_before_filled);
        cr_assert(any->heads == MESA_HEADS_NONE || any->heads == argument->heads);
        if (any->reads == MESA_READS_MASK) {
            cr_assert(any->predicate == argument->predicate);
            cr_assert(any->lo == argument->lo && any->hi == argument->hi);
        }
    }
}

Test(op, any_rows_are_safe_for_all) {
    for (size_t i = 0; i < mesa_op_count(); i++) {
        const struct mesa_op *op = mesa_op_at(i);
        check_any(op, op->any_input, 0, op->inputs);
        check_any(op, op->any_result, op->inputs, op->count);
    }
}

Test(op, each_op_is_found) {
    for (size_t i = 0; i < mesa_op_count(); i++) {
        const struct mesa_op *op = mesa_op_at(i);
        char name[128];
        int length = snprintf(name, sizeof name, "%s.%sXX", op->name, op->overload);
        const struct mesa_op *found = mesa_op_find(name, (size_t)length - 2);
        if (!op->is_inplace_only && op->overload[0])
            cr_assert_eq(found, op, "%s", name);
        found = mesa_op_find(op->name, strlen(op->name));
        cr_assert_str_eq(found->name, op->name);
    }
    cr_assert_str_eq(find("max")->overload, "");
    cr_assert_str_eq(find("max.dim")->overload, "dim");
    cr_assert_str_eq(find("mul")->overload, "Tensor");
    cr_assert_not(find("leaky_relu")->is_inplace_only);
    const char *unknown[] = {"", ".", "ma", "maxx", "max.dimm", "max.nope", "add", "zzz", "_"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        cr_assert_eq(find(unknown[i]), NULL, "%s", unknown[i]);
}

/* Spellings taken from libtorch_cpu.so's at::_ops::NAME::redispatch symbols. */
Test(op, symbols_are_told_apart) {
    static const struct {
        const char *symbol, *name, *overload;
        bool is_inplace;
    } known[] = {
        {"mul_Tensor", "mul", "Tensor", false},
        {"mul__Tensor", "mul", "Tensor", true},
        {"div_Tensor", "div", "Tensor", false},
        {"div_Tensor_mode", "div", "Tensor_mode", false},
        {"div__Tensor_mode", "div", "Tensor_mode", true},
        {"relu", "relu", "", false},
        {"relu_", "relu", "", true},
        {"leaky_relu", "leaky_relu", "", false},
        {"leaky_relu_", "leaky_relu", "", true},
        {"elu_", "elu", "", true},
        {"norm_ScalarOpt_dim", "norm", "ScalarOpt_dim", false},
        {"norm_ScalarOpt_dim_dtype", "norm", "ScalarOpt_dim_dtype", false},
        {"linalg_vector_norm", "linalg_vector_norm", "", false},
        {"max", "max", "", false},
        {"max_dim", "max", "dim", false},
        {"max_pool2d_with_indices", "max_pool2d_with_indices", "", false},
        {"_softmax", "_softmax", "", false},
        {"_log_softmax", "_log_softmax", "", false},
        {"native_layer_norm", "native_layer_norm", "", false},
        {"native_batch_norm", "native_batch_norm", "", false},
        {"convolution", "convolution", "", false},
        {"_convolution", "_convolution", "", false},
        {"convolution_overrideable", "convolution_overrideable", "", false},
        {"_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention", "", false},
        {"_scaled_dot_product_flash_attention_for_cpu",
         "_scaled_dot_product_flash_attention_for_cpu", "", false},
        {"_fused_rms_norm", "_fused_rms_norm", "", false},
        {"pow_Tensor_Scalar", "pow", "Tensor_Scalar", false},
        {"pow_Tensor_Tensor", "pow", "Tensor_Tensor", false},
        {"pow_Scalar", "pow", "Scalar", false},
        {"xlogy_Scalar_Self", "xlogy", "Scalar_Self", false},
        {"index_Tensor", "index", "Tensor", false},
        {"index_put", "index_put", "", false},
        {"index_put_", "index_put", "", true},
        {"_index_put_impl_", "_index_put_impl", "", true},
        {"scatter_reduce_two", "scatter_reduce", "two", false},
        {"where_self", "where", "self", false},
        {"clamp_Tensor", "clamp", "Tensor", false},
        {"clamp_min_", "clamp_min", "", true},
        {"addmm_", "addmm", "", true},
        {"std_correction", "std", "correction", false},
        {"mkldnn_rnn_layer", "mkldnn_rnn_layer", "", false},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        bool is_inplace;
        const struct mesa_op *op = of_symbol(known[i].symbol, &is_inplace);
        cr_assert(op != NULL, "%s", known[i].symbol);
        cr_assert_str_eq(op->name, known[i].name);
        cr_assert_str_eq(op->overload, known[i].overload);
        cr_assert(is_inplace == known[i].is_inplace, "%s", known[i].symbol);
    }
    static const char *const unknown[] = {"add_Tensor",
                                          "add__Tensor",
                                          "__lshift___Tensor",
                                          "gelu_backward",
                                          "_softmax_backward_data",
                                          "mul_Scalar",
                                          "_fused_adam_",
                                          "_foreach_mul_List",
                                          "relu6",
                                          "",
                                          "relu__",
                                          "sum_dim_IntList"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        bool is_inplace;
        cr_assert_eq(of_symbol(unknown[i], &is_inplace), NULL, "%s", unknown[i]);
    }
    bool is_inplace;
    cr_assert(mesa_op_of_symbol("relu_XYZ", 5, &is_inplace) != NULL, "not terminated");
}

Test(op, inplace_variants_with_a_formula_of_their_own) {
    bool is_inplace;
    const struct mesa_op *op = of_symbol("leaky_relu_", &is_inplace);
    cr_assert(op->is_inplace_only);
    cr_assert_str_eq(op->arguments[0].argument, "result");
    cr_assert(op->arguments[0].predicate == MESA_GREATER);
    op = of_symbol("rrelu_with_noise_", &is_inplace);
    cr_assert_eq(op->count, 2);
    cr_assert(op->arguments[0].saved_before_filled);
}

/* Rows whose values are compared, selected by, divided by small differences, or not numbers at all. */
Test(op, values_that_must_keep_every_bit) {
    static const char *const exact[][2] = {
        {"amax", "self"},
        {"amax", "result"},
        {"amin", "self"},
        {"max", "self"},
        {"max", "result"},
        {"min", "self"},
        {"median", "self"},
        {"scatter_reduce.two", "self"},
        {"scatter_reduce.two", "result"},
        {"index_reduce", "self"},
        {"segment_reduce", "data"},
        {"grid_sampler_2d", "grid"},
        {"grid_sampler_3d", "grid"},
        {"logsumexp", "self"},
        {"logsumexp", "result"},
        {"logcumsumexp", "result"},
        {"native_layer_norm", "result1"},
        {"native_layer_norm", "result2"},
        {"native_batch_norm", "running_mean"},
        {"native_batch_norm", "running_var"},
        {"native_batch_norm", "result2"},
        {"_scaled_dot_product_flash_attention_for_cpu", "logsumexp"},
        {"_scaled_dot_product_flash_attention_for_cpu", "attn_mask"},
        {"_scaled_dot_product_flash_attention", "rng_state"},
        {"_scaled_dot_product_efficient_attention", "philox_seed"},
        {"_scaled_dot_product_efficient_attention", "log_sumexp"},
        {"mkldnn_rnn_layer", "result3"},
        {"_cudnn_rnn", "result3"},
        {"_cudnn_rnn", "result4"},
        {"cudnn_batch_norm", "result3"},
        {"_ctc_loss", "log_probs"},
        {"_ctc_loss", "result1"},
        {"_linalg_svd", "S"},
        {"_linalg_eigh", "eigenvectors"},
        {"linalg_qr", "R"},
        {"_linalg_solve_ex", "A"},
        {"_linalg_slogdet", "A"},
        {"cholesky", "result"},
        {"prod", "self"},
        {"cumprod", "result"},
        {"pow.Tensor_Scalar", "self"},
        {"pow.Tensor_Tensor", "self"},
        {"acos", "self"},
        {"digamma", "self"},
        {"erfinv", "self"},
        {"igamma", "other"},
        {"linalg_vector_norm", "self"},
        {"linalg_vector_norm", "result"},
        {"norm.ScalarOpt_dim", "self"},
        {"_cdist_forward", "x1"},
        {"nextafter", "self"},
        {"smooth_l1_loss", "self"},
        {"fmod.Tensor", "self"},
        {"clamp.Tensor", "self"},
        {"rrelu_with_noise", "noise"},
        {"special_i1e", "self"},
    };
    for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++)
        cr_assert(row(exact[i][0], exact[i][1])->reads == MESA_READS_EXACT, "%s.%s", exact[i][0],
                  exact[i][1]);
}

Test(op, only_rows_that_were_measured_are_geometry) {
    size_t count = 0;
    for (size_t i = 0; i < mesa_op_count(); i++)
        for (size_t k = 0; k < mesa_op_at(i)->count; k++)
            count += mesa_op_at(i)->arguments[k].reads == MESA_READS_GEOMETRY;
    cr_assert_eq(count, 27);
    cr_assert(row("max_pool2d_with_indices", "self")->reads == MESA_READS_GEOMETRY);
    cr_assert(row("nll_loss_forward", "self")->reads == MESA_READS_GEOMETRY);
    cr_assert(row("gather", "self")->reads == MESA_READS_GEOMETRY);
}

Test(op, masks_name_their_comparison) {
    const struct mesa_op_argument *relu = row("relu", "result");
    cr_assert(relu->reads == MESA_READS_MASK && relu->predicate == MESA_ABOVE);
    cr_assert(relu->thresholds_known && relu->lo == 0);
    const struct mesa_op_argument *hardsigmoid = row("hardsigmoid", "self");
    cr_assert(hardsigmoid->predicate == MESA_BETWEEN && hardsigmoid->thresholds_known);
    cr_assert(hardsigmoid->lo == -3 && hardsigmoid->hi == 3);
    cr_assert(row("leaky_relu", "self")->predicate == MESA_GREATER);
    cr_assert_not(row("hardtanh", "self")->thresholds_known);
    cr_assert_not(row("threshold", "self")->thresholds_known);
    cr_assert(row("clamp", "self")->predicate == MESA_WITHIN);
    cr_assert(row("abs", "self")->reads == MESA_READS_SIGN);
}

Test(op, the_usual_activations) {
    static const char *const sdpa = "_scaled_dot_product_flash_attention_for_cpu";
    cr_assert(row(sdpa, "query")->reads == MESA_READS_VALUE);
    cr_assert(row(sdpa, "output")->heads == MESA_HEADS_BHND);
    cr_assert(row(sdpa, "attn_mask")->is_optional);
    cr_assert(row("bmm", "self")->heads == MESA_HEADS_FOLDED);
    cr_assert(row("addmm", "mat1")->heads == MESA_HEADS_LINEAR);
    cr_assert(row("addmm", "mat2")->heads == MESA_HEADS_NONE);
    cr_assert(row("native_batch_norm", "input")->heads == MESA_HEADS_CHANNELS);
    cr_assert(row("_softmax", "result")->heads == MESA_HEADS_MAP);
    cr_assert(!row("_softmax", "result")->keep_zeros); /* a tiny one may round to 0 */
    cr_assert(row("hardswish", "self")->keep_zeros);
    cr_assert(row("_log_softmax", "result")->reads == MESA_READS_EXP);
    cr_assert(row("div", "other")->reads == MESA_READS_RELATIVE);
    cr_assert(row("div", "self")->reads == MESA_READS_RELATIVE);
    cr_assert(row("convolution", "input")->channel_dim == 1);
    cr_assert(row("convolution", "weight")->reads == MESA_READS_WEIGHT);
    cr_assert(row("native_layer_norm", "bias")->reads == MESA_READS_WEIGHT);
    cr_assert(row("embedding", "indices")->reads == MESA_READS_INTEGERS);
    cr_assert(row("where.self", "condition")->reads == MESA_READS_BOOL);
    cr_assert(row("index", "indices")->is_list);
}

static unsigned count_guards(const struct mesa_op *op) {
    unsigned seen = 0;
    for (size_t i = 0; i < op->inputs; i++)
        seen |= 1u << op->arguments[i].guard;
    return (unsigned)__builtin_popcount(seen);
}

Test(calibration, entries_agree_with_the_table) {
    const struct mesa_calibration *entry;
    for (size_t i = 0; (entry = mesa_calibration_at(i)); i++) {
        const struct mesa_op *op = mesa_calibration_op(entry);
        cr_assert(op != NULL, "%s", entry->name);
        cr_assert(count_guards(op) > 1, "%s needs no calibration", entry->name);
        struct mesa_symbol symbol = {0};
        cr_assert(mesa_symbol_parse(entry->symbol, &symbol));
        bool is_inplace;
        cr_assert_eq(mesa_op_of_symbol(symbol.name, symbol.length, &is_inplace), op);
        cr_assert(is_inplace == entry->is_inplace);
        for (unsigned k = 0; k < MESA_CALIBRATION_MOST_TENSORS; k++)
            cr_assert((entry->shapes[k] != NULL) == (k < entry->tensors));
    }
}

/* Ops that need calibration and cannot easily be run: their arguments stay unlabelled until a full set
 * was seen (put, _embedding_bag, div by mode), or for ever (the rest). */
Test(calibration, misses_only_what_is_known) {
    static const char *const missing[] = {"_embedding_bag",
                                          "_grouped_mm",
                                          "_trilinear",
                                          "div.Tensor_mode",
                                          "put",
                                          "nextafter",
                                          "_unsafe_masked_index_put_accumulate"};
    for (size_t i = 0; i < mesa_op_count(); i++) {
        const struct mesa_op *op = mesa_op_at(i);
        bool is_covered = count_guards(op) < 2;
        for (size_t k = 0; mesa_calibration_at(k); k++)
            is_covered |= mesa_calibration_op(mesa_calibration_at(k)) == op;
        for (size_t k = 0; k < sizeof missing / sizeof missing[0]; k++)
            is_covered |= find(missing[k]) == op;
        cr_assert(is_covered, "%s.%s", op->name, op->overload);
    }
}
