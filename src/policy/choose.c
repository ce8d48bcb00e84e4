/* The rules of section 5 of the design as one table-like walk: what is read decides, the settings
 * only narrow it. A policy can ask for less precision than the table advises by naming a way; `auto`
 * and `exact` never go below it.
 *
 * SPDX-License-Identifier: MIT */
#include "policy/choose.h"

#include <string.h>

/* Where a group of values spreads further than this, some of them are not measurements but marks
 * (-1e9 for "masked"). */
#define WIDEST_VALUES 1e6f
/* exp(x) of an error of half a step: at 8 bits 24 / 255 / 2, about 5 % in the smallest of terms. */
#define WIDEST_EXPONENTS 24.0f

static void try_codec(struct mesa_choice *choice, const struct mesa_codec *codec) {
    choice->candidates[choice->count++] = codec;
}

bool mesa_predicate_is_sign(enum mesa_predicate predicate, double lo) {
    return predicate == MESA_NONZERO ||
           ((predicate == MESA_ABOVE || predicate == MESA_GREATER) && lo == 0.0);
}

static void use_predicate(struct mesa_choice *choice, const struct mesa_op_argument *row) {
    choice->predicate = row->predicate;
    choice->lo = row->lo;
    choice->hi = row->hi;
    choice->signs_only = mesa_predicate_is_sign(row->predicate, row->lo);
    try_codec(choice, row->ties_differ ? &mesa_codec_interval : &mesa_codec_mask);
}

/* Ways that give every bit back, for any dtype. */
static void choose_exact(struct mesa_choice *choice, enum mesa_dtype dtype) {
    if (dtype == MESA_BOOL) {
        try_codec(choice, &mesa_codec_mask);
    } else if (mesa_dtype_is_signed_integer(dtype)) {
        try_codec(choice, &mesa_codec_window);
        try_codec(choice, &mesa_codec_narrow);
    } else if (mesa_dtype_is_real(dtype)) {
        try_codec(choice, &mesa_codec_two);
        try_codec(choice, &mesa_codec_exponent); /* zeros included: before sparse */
        try_codec(choice, &mesa_codec_sparse);
    }
    choice->exact = true;
}

/* 16 bits instead of codes: of floats that have no more of them, every bit. float16 has more digits,
 * bfloat16 loses neither a zero nor a sign. */
static void choose_short_float(struct mesa_choice *choice, enum mesa_dtype dtype) {
    if (dtype != MESA_F32) {
        choose_exact(choice, dtype);
        return;
    }
    try_codec(choice, &mesa_codec_two);
    try_codec(choice, choice->keep_signs ? &mesa_codec_bfloat16 : &mesa_codec_float16);
}

/* Values to an absolute error. float64 is somebody's wish for precision: only a rule that says
 * `affine` touches it. The program's data is a small share of what is saved and alive anyway in most
 * programs, while its rounding goes into the first layer's gradient as a whole: it gets up to 16 bits
 * once it is seen to die. */
static void choose_value(struct mesa_choice *choice, enum mesa_dtype dtype) {
    if (choice->settings.bits == MESA_SHORT_FLOAT_BITS && dtype != MESA_F64) {
        choose_short_float(choice, dtype);
        return;
    }
    try_codec(choice, &mesa_codec_two);
    if (dtype == MESA_F64) {
        try_codec(choice, &mesa_codec_sparse);
        choice->kept = MESA_KEPT_DTYPE;
        return;
    }
    try_codec(choice, &mesa_codec_sparse_affine);
    if (choice->settings.bits >= 8 && !choice->keep_signs) {
        choice->data_only = dtype == MESA_F32 ? &mesa_codec_float16 : &mesa_codec_exponent;
        try_codec(choice, choice->data_only);
    }
    try_codec(choice, &mesa_codec_affine);
}

static void choose_by_reading(struct mesa_choice *choice, const struct mesa_op_argument *row,
                              enum mesa_dtype dtype, bool lossy) {
    enum mesa_reads reads = row->reads;
    bool real = mesa_dtype_is_real(dtype);
    choice->keep_signs = row->keep_zeros;
    choice->kept = MESA_KEPT_EXACT;
    if (reads == MESA_READS_WEIGHT) {
        choice->kept = MESA_KEPT_PARAMETER;
    } else if (reads == MESA_READS_UNKNOWN) {
        choice->kept = MESA_KEPT_UNKNOWN_OP;
    } else if (reads == MESA_READS_GEOMETRY) {
        choice->geometry = true;
    } else if (reads == MESA_READS_MASK && real && row->thresholds_known) {
        use_predicate(choice, row);
    } else if (reads == MESA_READS_SIGN && real) {
        choice->signs_only = true;
        try_codec(choice, &mesa_codec_sign);
    } else if (reads == MESA_READS_COMPARE && real) {
        try_codec(choice, &mesa_codec_compare);
        choose_exact(choice, dtype);
    } else if ((reads == MESA_READS_VALUE || reads == MESA_READS_EXP) && real && lossy) {
        choose_value(choice, dtype);
        choice->widest = reads == MESA_READS_EXP ? WIDEST_EXPONENTS : WIDEST_VALUES;
    } else if (reads == MESA_READS_RELATIVE && dtype == MESA_F32 && lossy &&
               choice->settings.bits != MESA_SHORT_FLOAT_BITS) { /* bfloat16: three digits */
        try_codec(choice, &mesa_codec_two);
        try_codec(choice, &mesa_codec_bfloat16);
    } else {
        choose_exact(choice, dtype);
    }
}

/* The rule names a way. It is followed where the dtype allows it; a way that would throw away what the
 * backward reads (shape, mask) only where the table says so. */
static void choose_named(struct mesa_choice *choice, const struct mesa_op_argument *row,
                         enum mesa_dtype dtype) {
    bool real = mesa_dtype_is_real(dtype);
    choice->kept = MESA_KEPT_DTYPE;
    choice->keep_signs = row != NULL && row->keep_zeros;
    switch (choice->settings.way) {
    case MESA_WAY_SHAPE:
        choice->geometry = row != NULL && row->reads == MESA_READS_GEOMETRY;
        choice->kept = MESA_KEPT_EXACT;
        break;
    case MESA_WAY_MASK:
        if (dtype == MESA_BOOL)
            try_codec(choice, &mesa_codec_mask);
        else if (real && row != NULL && row->reads == MESA_READS_MASK && row->thresholds_known)
            use_predicate(choice, row);
        else if (real && row != NULL && row->reads == MESA_READS_SIGN)
            try_codec(choice, &mesa_codec_sign);
        else if (real && row != NULL && row->reads == MESA_READS_COMPARE)
            try_codec(choice, &mesa_codec_compare);
        else
            try_codec(choice, &mesa_codec_two);
        break;
    case MESA_WAY_NARROW:
        if (mesa_dtype_is_signed_integer(dtype))
            try_codec(choice, &mesa_codec_narrow);
        break;
    case MESA_WAY_SPARSE:
        if (real)
            try_codec(choice, &mesa_codec_sparse);
        break;
    case MESA_WAY_AFFINE:
        if (real && choice->settings.bits == MESA_SHORT_FLOAT_BITS) {
            choose_short_float(choice, dtype);
        } else if (real) {
            try_codec(choice, &mesa_codec_two);
            try_codec(choice, &mesa_codec_sparse_affine);
            try_codec(choice, &mesa_codec_affine);
        }
        break;
    case MESA_WAY_FLOAT16:
        if (dtype == MESA_F32)
            try_codec(choice, &mesa_codec_float16);
        break;
    case MESA_WAY_BFLOAT16:
        if (dtype == MESA_F32)
            try_codec(choice, &mesa_codec_bfloat16);
        break;
    default:
        choice->kept = MESA_KEPT_POLICY;
    }
}

void mesa_policy_choose(const struct mesa_settings *settings, const struct mesa_place *place,
                        const struct mesa_op_argument *row, enum mesa_dtype dtype,
                        struct mesa_choice *ret_choice) {
    memset(ret_choice, 0, sizeof *ret_choice);
    ret_choice->settings = *settings;
    ret_choice->place = *place;
    ret_choice->off = settings->way == MESA_WAY_OFF;
    if (settings->way == MESA_WAY_OFF || settings->way == MESA_WAY_KEEP)
        ret_choice->kept = MESA_KEPT_POLICY;
    else if (row != NULL && row->saved_before_filled)
        ret_choice->kept = MESA_KEPT_EXACT;
    else if (dtype == MESA_DTYPE_OTHER)
        ret_choice->kept = MESA_KEPT_DTYPE;
    else if (settings->way != MESA_WAY_AUTO && settings->way != MESA_WAY_EXACT)
        choose_named(ret_choice, row, dtype);
    else if (row == NULL)
        ret_choice->kept = MESA_KEPT_UNKNOWN_OP;
    else
        choose_by_reading(ret_choice, row, dtype, settings->way == MESA_WAY_AUTO);
    ret_choice->exact |= settings->way == MESA_WAY_EXACT;
}
