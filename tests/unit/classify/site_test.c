/* Sites: from the stack of a save to (op, argument).
 *
 * SPDX-License-Identifier: MIT */
#include "classify/site.h"

#include "classify/symbol.h"
#include "fake_torch.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <string.h>

enum { ALL = 31 };

static struct mesa_site *site(int k) {
    cr_assert_lt(k, fake_saves.count);
    return fake_saves.sites[k];
}

static void check_site(int k, enum mesa_site_kind kind, const char *op, const char *argument) {
    struct mesa_site *found = site(k);
    cr_assert_not_null(found);
    cr_assert_str_eq(found->op, op);
    cr_assert_str_eq(found->argument, argument, "%s.%s", op, argument);
    cr_assert_eq(found->kind, kind, "%s.%s", op, argument);
    cr_assert_eq(mesa_site_at(found->index), found);
}

/* Calls an op in a frame that is always the same, with fresh results. */
static void run(void (*op)(unsigned), unsigned saved) {
    fake_reset();
    op(saved);
    __asm__ volatile("" : : : "memory");
}

static void check_layer_norm(void) {
    static const char *const arguments[] = {"bias", "input", "weight", "result1", "result2"};
    cr_assert_eq(fake_saves.count, 5);
    for (int k = 0; k < 5; k++) {
        check_site(k, MESA_SITE_OP, "native_layer_norm", arguments[k]);
        cr_assert_eq(site(k)->row->order, k);
    }
}

Test(site, unguarded_op_is_known_from_its_first_call) {
    run(fake_layer_norm, ALL);
    check_layer_norm();
    struct fake_saves first = fake_saves;
    for (int i = 0; i < 10; i++) {
        run(fake_layer_norm, ALL);
        check_layer_norm();
        for (int k = 0; k < 5; k++)
            cr_assert_eq(site(k), first.sites[k]);
    }
    cr_assert_null(mesa_site_at(5));
}

Test(site, noted_saves_take_their_place) {
    for (int i = 0; i < 10; i++) {
        fake_reset();
        fake_noted = 1u << 0 | 1u << 2; /* bias and weight undefined */
        fake_layer_norm(ALL);
        check_site(1, MESA_SITE_OP, "native_layer_norm", "input");
        check_site(3, MESA_SITE_OP, "native_layer_norm", "result1");
    }
    run(fake_layer_norm, ALL);
    check_layer_norm();
}

/* The first save of a process starts libmesa. */
Test(site, what_follows_a_missed_save_is_not_the_first) {
    for (unsigned missed = 1; missed <= 2; missed++) {
        fake_reset();
        fake_missed = (1u << missed) - 1;
        fake_layer_norm(ALL);
        for (int k = (int)missed; k < 3; k++)
            check_site(k, MESA_SITE_PARTIAL, "native_layer_norm", "?");
    }
    run(fake_relu, ALL); /* or the next call has the same frame as the missed save */
    run(fake_layer_norm, ALL);
    check_layer_norm();
}

Test(site, caller_may_keep_its_own_record) {
    int mine;
    run(fake_relu, ALL);
    cr_assert_null(atomic_load(&site(0)->use));
    atomic_store(&site(0)->use, &mine);
    run(fake_relu, ALL);
    cr_assert_eq(atomic_load(&site(0)->use), &mine);
}

Test(site, inplace_variants_are_places_of_their_own) {
    run(fake_relu, ALL);
    struct mesa_site *relu = site(0);
    check_site(0, MESA_SITE_OP, "relu", "result");
    cr_assert_not(relu->is_inplace);
    run(fake_relu_inplace, ALL);
    check_site(0, MESA_SITE_OP, "relu", "result");
    cr_assert_neq(site(0), relu);
    cr_assert(site(0)->is_inplace);
}

Test(site, overloads_have_rows_of_their_own) {
    run(fake_max_dim, ALL);
    check_site(0, MESA_SITE_OP, "max", "indices");
}

Test(site, guarded_arguments_stay_partial_until_calibrated) {
    for (int i = 0; i < 10; i++) {
        run(fake_mm, 2); /* self alone, then mat2 alone: together they look like a full set */
        check_site(0, MESA_SITE_PARTIAL, "mm", "?");
        cr_assert_eq(site(0)->row->reads, MESA_READS_VALUE); /* true of both */
        run(fake_mm, 1);
        check_site(0, MESA_SITE_PARTIAL, "mm", "?");
    }
    mesa_site_calibrate_begin(mesa_op_find("mm", 2));
    run(fake_mm, 3);
    mesa_site_calibrate_end();
    run(fake_mm, 2);
    check_site(0, MESA_SITE_OP, "mm", "self");
    run(fake_mm, 1);
    check_site(0, MESA_SITE_OP, "mm", "mat2");
}

Test(site, calibration_first) {
    mesa_site_calibrate_begin(mesa_op_find("mul", 3));
    fake_reset();
    fake_noted = 1;
    fake_mul(3);
    mesa_site_calibrate_end();
    mesa_site_calibrate_begin(mesa_op_find("mul", 3));
    run(fake_mul_inplace, 3);
    mesa_site_calibrate_end();
    cr_assert_null(mesa_site_at(0)); /* calibration makes no sites */
    for (int i = 0; i < 10; i++) {
        run(fake_mul, 2);
        check_site(0, MESA_SITE_OP, "mul", "self");
        cr_assert_not(site(0)->is_inplace);
        run(fake_mul_inplace, 3);
        check_site(0, MESA_SITE_OP, "mul", "other");
        check_site(1, MESA_SITE_OP, "mul", "self");
        cr_assert(site(0)->is_inplace);
    }
}

Test(site, calibration_with_a_missing_save_is_ignored) {
    mesa_site_calibrate_begin(mesa_op_find("mm", 2));
    run(fake_mm, 2);
    mesa_site_calibrate_end();
    run(fake_mm, 2);
    check_site(0, MESA_SITE_PARTIAL, "mm", "?");
}

Test(site, calibration_that_ran_another_op_is_ignored) {
    mesa_site_calibrate_begin(mesa_op_find("mm", 2));
    run(fake_div, 3);
    mesa_site_calibrate_end();
    for (int i = 0; i < 10; i++) {
        run(fake_div, 1);
        cr_assert_str_eq(site(0)->op, "div");
        cr_assert(strcmp(site(0)->argument, "?") == 0 || strcmp(site(0)->argument, "other") == 0);
    }
}

Test(site, full_set_labels_where_it_is_proof) {
    for (int i = 0; i < 3; i++) {
        run(fake_div, 1);
        check_site(0, MESA_SITE_PARTIAL, "div", "?");
        cr_assert_eq(site(0)->row->reads, MESA_READS_RELATIVE); /* `self` and `other` agree */
    }
    run(fake_div, 3);
    run(fake_div, 3);
    check_site(0, MESA_SITE_OP, "div", "other");
    check_site(1, MESA_SITE_OP, "div", "self");
}

Test(site, helper_for_lists_is_traced_each_time) {
    struct mesa_site *index = NULL;
    for (int i = 0; i < 6; i++) {
        run(fake_index, 3);
        for (int k = 0; k < 3; k++)
            check_site(k, MESA_SITE_OP, "index", "indices");
        cr_assert(index == NULL || index == site(0));
        index = site(0);
        run(fake_index_put, 1);
        check_site(0, MESA_SITE_OP, "index_put", "indices");
        run(fake_foreach, 2);
        check_site(1, MESA_SITE_UNKNOWN, "_foreach_mul_List", "?");
        cr_assert_null(site(1)->row);
    }
    cr_assert_null(mesa_site_at(3));
}

Test(site, code_that_turns_out_to_be_shared) {
    run(fake_gelu, 1);
    check_site(0, MESA_SITE_OP, "gelu", "self");
    for (int i = 0; i < 6; i++) {
        run(fake_silu, 1);
        check_site(0, MESA_SITE_PARTIAL, "silu", "?");
        run(fake_gelu, 1);
        check_site(0, MESA_SITE_PARTIAL, "gelu", "?");
    }
}

Test(site, lists_between_saves_do_not_disturb) {
    for (int i = 0; i < 6; i++) {
        run(fake_index, 2);
        fake_layer_norm(ALL);
        fake_index(1);
        check_site(3, MESA_SITE_OP, "native_layer_norm", "input");
        check_site(7, MESA_SITE_OP, "index", "indices");
    }
}

Test(site, unknown_op_is_shown_by_its_name) {
    for (int i = 0; i < 6; i++) {
        run(fake_unheard_of, 3);
        check_site(0, MESA_SITE_UNKNOWN, "frobnicate_Tensor", "?");
        check_site(1, MESA_SITE_UNKNOWN, "frobnicate_Tensor", "?");
    }
    cr_assert_null(mesa_site_at(2));
}

Test(site, cpp_functions_are_told_apart_by_class) {
    for (int i = 0; i < 6; i++) {
        run(fake_cpp_function, 3);
        check_site(0, MESA_SITE_CUSTOM, "MyNorm", "saved");
        run(fake_other_cpp_function, 3);
        check_site(1, MESA_SITE_CUSTOM, "Rotate", "saved");
    }
}

Test(site, no_op_in_sight) {
    run(fake_mm_boxed, 3);
    check_site(0, MESA_SITE_UNKNOWN, "unknown", "?");
    cr_assert_null(site(0)->row);
    run(fake_mm_from_python, 3); /* `outer` stands behind the interpreter: not the op */
    check_site(0, MESA_SITE_UNKNOWN, "unknown", "?");
    for (int i = 0; i < 20; i++)
        run(fake_mm, 3);
    check_site(0, MESA_SITE_PARTIAL, "mm", "?");
    run(fake_mm_boxed, 3);
    check_site(0, MESA_SITE_PARTIAL, "mm", "?");
}

Test(site, boxed_calls_of_a_calibrated_op) {
    mesa_site_calibrate_begin(mesa_op_find("mm", 2));
    run(fake_mm_boxed, 3);
    mesa_site_calibrate_end();
    for (int i = 0; i < 10; i++) {
        run(i % 2 ? fake_mm_boxed : fake_mm, 3);
        check_site(0, MESA_SITE_OP, "mm", "mat2");
        check_site(1, MESA_SITE_OP, "mm", "self");
    }
}

Test(site, careful_labels_after_the_first_call) {
    mesa_site_be_careful();
    run(fake_layer_norm, ALL);
    check_site(1, MESA_SITE_PARTIAL, "native_layer_norm", "?");
    cr_assert_eq(site(1)->row->reads, MESA_READS_EXACT);
    run(fake_layer_norm, ALL);
    check_layer_norm();
}

Test(site, ops_that_save_less_than_the_table_says_are_not_trusted) {
    run(fake_layer_norm, 6); /* bias is gone */
    for (int i = 0; i < 5; i++) {
        run(fake_layer_norm, 6);
        for (int k = 0; k < 2; k++)
            check_site(k, MESA_SITE_PARTIAL, "native_layer_norm", "?");
    }
}

/* Of a library that is loaded by the test. */
static void (*foreign_kernel)(void (*construct)(bool is_output));

static void call_foreign(unsigned saved) {
    (void)saved;
    foreign_kernel(fake_construct);
    __asm__ volatile("" : : : "memory");
}

__attribute__((visibility("default"))) void
foreign_op(unsigned saved) __asm__("_ZN2at4_ops4gelu4callERKNS_6TensorE");
__attribute__((noinline)) void foreign_op(unsigned saved) {
    call_foreign(saved);
    __asm__ volatile("" : : : "memory");
}

static void check_foreign(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    cr_assert_not_null(library, "%s", dlerror());
    *(void **)&foreign_kernel = dlsym(library, "foreign_kernel");
    cr_assert_not_null(foreign_kernel);
    void (*volatile op)(unsigned) = foreign_op; /* not a copy of it without that name */
    for (int i = 0; i < 6; i++) {
        run(op, 1);
        check_site(0, MESA_SITE_CUSTOM, "custom", "saved");
    }
}

Test(site, kernels_of_extensions_are_not_the_tables) {
    check_foreign(EXTENSION_PATH);
}

Test(site, python_functions_are_custom) {
    check_foreign(BINDING_PATH);
    run(call_foreign, 1);
    check_site(0, MESA_SITE_CUSTOM, "custom", "saved");
    for (int i = 0; i < 2; i++) {
        mesa_site_function("MyFunction, of which the class", strlen("MyFunction"));
        run(call_foreign, 1);
        check_site(0, MESA_SITE_CUSTOM, "MyFunction", "saved");
        mesa_site_function("My", 2);
        run(call_foreign, 1);
        check_site(0, MESA_SITE_CUSTOM, "My", "saved");
        mesa_site_function("", 0);
        run(call_foreign, 1);
        check_site(0, MESA_SITE_CUSTOM, "custom", "saved");
    }
    /* The class of a Python function is nothing to what is written in C++. */
    mesa_site_function("MyFunction", strlen("MyFunction"));
    run(fake_cpp_function, 1);
    check_site(0, MESA_SITE_CUSTOM, "MyNorm", "saved");
}

Test(site, a_save_without_an_address_is_survived) {
    struct mesa_save save = {.return_address = 0};
    cr_assert_eq(mesa_site_of(&save)->kind, MESA_SITE_UNKNOWN);
    mesa_site_note(&save);
    save.return_address = 1; /* in no object, in no frame */
    cr_assert_eq(mesa_site_of(&save)->kind, MESA_SITE_UNKNOWN);
    save.return_address = UINTPTR_MAX;
    cr_assert_eq(mesa_site_of(&save)->kind, MESA_SITE_UNKNOWN);
    cr_assert_null(mesa_site_at(UINT32_MAX));
}

Test(symbol, mangled_names) {
    static const struct {
        const char *mangled;
        enum mesa_symbol_kind kind;
        const char *name;
    } known[] = {
        {"_ZN2at4_ops2mm4callERKNS_6TensorES4_", MESA_SYMBOL_OP, "mm"},
        {"_ZN2at4_ops11mul__Tensor10redispatchEN3c1014DispatchKeySetERNS_6TensorERKS4_",
         MESA_SYMBOL_OP, "mul__Tensor"},
        {"_ZN2at4_ops18__lshift___Scalar_4callE", MESA_SYMBOL_OP, "__lshift___Scalar_"},
        {"_ZN5torch8autograd8FunctionI3FooE5applyE", MESA_SYMBOL_CPP_FUNCTION, "Foo"},
        {"_ZN5torch8autograd8FunctionIN1a1b3BarEE5applyE", MESA_SYMBOL_CPP_FUNCTION, "Bar"},
        {"_PyEval_EvalFrameDefault", MESA_SYMBOL_INTERPRETER, ""},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct mesa_symbol symbol = {0};
        cr_assert(mesa_symbol_parse(known[i].mangled, &symbol), "%s", known[i].mangled);
        cr_assert_eq(symbol.kind, known[i].kind);
        cr_assert_eq(symbol.length, strlen(known[i].name));
        cr_assert_eq(strncmp(symbol.name ? symbol.name : "", known[i].name, symbol.length), 0);
    }
    static const char *const others[] = {"",
                                         "_ZN2at4_ops",
                                         "_ZN2at4_ops2mm",
                                         "_ZN2at4_ops2mm8schema_strE",
                                         "_ZN2at4_ops99mm4callE",
                                         "_ZN2at4_opsmm4callE",
                                         "_ZN2at4_ops0",
                                         "_ZN2at4_ops99999999999999999999999mm4callE",
                                         "_ZN5torch8autograd8FunctionI",
                                         "_ZN5torch8autograd8FunctionIS1_E5applyE",
                                         "malloc"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        struct mesa_symbol symbol = {0};
        cr_assert_not(mesa_symbol_parse(others[i], &symbol), "%s", others[i]);
    }
}
