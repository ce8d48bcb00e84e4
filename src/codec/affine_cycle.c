/* Affine codes whose groups are spread over the tensor: one for each head or channel. The elements of
 * a group lie in runs, and runs take turns. Held bytes: a uint32 word for each group (to a multiple
 * of 64 bytes), then the codes of all elements in dense order.
 *
 * Two passes: first every group's range, then the codes. Until the words are known, their place and
 * the place of the first codes hold the ranges. There is no raw area: with groups as large as these
 * a single NaN would keep too much, so it declines the tensor.
 *
 * Runs of a few elements (one, where channels are innermost) would cost a kernel call each. They are
 * taken as columns instead: a turn of the cycle is a row, and element i of a row belongs to group
 * i / run. Must not know heads or channels.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/affine.h"
#include "codec/kernels/affine.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* Shorter runs are taken as columns, always, and if a turn fits what is looked at together. */
#define SHORT_RUN               16
#define SHORT_RUN_IN_SHORT_TURN 128

/* Columns, and elements in short runs, that are looked at together: what fits on the stack. */
#define MOST_COLUMNS  2048
#define CODES_AT_ONCE 4096

struct cycle {
    size_t run, turn, period; /* elements in a run, in a turn of the cycle, in a period */
    size_t groups_in_turn;
    size_t groups;
    size_t codes_at, bytes; /* place of the codes and size of all */
    bool short_runs;
};

static bool lay_out(const struct mesa_plan *plan, struct cycle *ret_cycle) {
    if (!mesa_dtype_is_real(plan->dtype) || plan->bits < 1 || plan->bits > 8 ||
        plan->elements == 0 || plan->run == 0 || plan->cycle == 0 ||
        plan->elements % plan->run != 0 || plan->cycle > plan->elements / plan->run ||
        plan->period % plan->cycle != 0)
        return false;
    struct cycle cycle = {
        .run = plan->run,
        .turn = plan->run * plan->cycle,
        .period = plan->period != 0 ? plan->run * plan->period : plan->elements,
        .groups_in_turn = plan->cycle,
    };
    cycle.short_runs = cycle.run < SHORT_RUN ||
                       (cycle.run < SHORT_RUN_IN_SHORT_TURN && cycle.turn <= MOST_COLUMNS);
    cycle.groups = plan->cycle * mesa_divide_up(plan->elements, cycle.period);
    size_t words_bytes = cycle.groups * sizeof(uint32_t);
    size_t code_bytes = mesa_code_row_bytes(plan->elements, plan->bits);
    cycle.codes_at = mesa_round_to_line(words_bytes);
    cycle.bytes = cycle.codes_at + code_bytes;
    *ret_cycle = cycle;
    /* Less than a code for a word would be no gain, and the ranges need that room. */
    return code_bytes >= words_bytes &&
           cycle.bytes < plan->elements * mesa_dtype_bytes(plan->dtype);
}

size_t mesa_affine_cycle_bound_bytes(const struct mesa_plan *plan) {
    struct cycle cycle;
    return lay_out(plan, &cycle) ? cycle.bytes : 0;
}

/* Elements that one kernel call takes: part of one run, or rows of columns. */
struct span {
    size_t group;         /* of the first element */
    size_t column;        /* of the first element in its turn */
    size_t rows, columns; /* rows == 1 where runs are long */
};

static struct span span_at(const struct cycle *cycle, size_t at, size_t end) {
    size_t in_period = at % cycle->period;
    size_t column = in_period % cycle->turn;
    size_t left = end - at;
    struct span span = {
        .group = at / cycle->period * cycle->groups_in_turn + column / cycle->run,
        .column = column,
        .rows = 1,
    };
    if (!cycle->short_runs) {
        span.columns = mesa_smaller(cycle->run - column % cycle->run, left);
    } else if (column != 0 || left < cycle->turn || cycle->turn > MOST_COLUMNS) {
        span.columns = mesa_smaller(mesa_smaller(cycle->turn - column, left), MOST_COLUMNS);
    } else {
        span.columns = cycle->turn;
        span.rows = mesa_smaller(left, cycle->period - in_period) / cycle->turn;
    }
    return span;
}

/* ---- ranges ------------------------------------------------------------------------------------ */

/* Floats (no NaN) as integers in the same order, so that threads can widen a range by compare and
 * exchange. */
static uint32_t ordered_of_float(float value) {
    uint32_t bits = float_bits(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static float float_of_ordered(uint32_t ordered) {
    return float_of_bits(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

struct encoder {
    const struct mesa_plan *plan;
    struct cycle cycle;
    _Atomic uint32_t *lo, *hi; /* ranges, ordered; where words and first codes will be */
    const uint32_t *words;
    uint8_t *codes;
};

static void widen(_Atomic uint32_t *lo, _Atomic uint32_t *hi, float new_lo, float new_hi) {
    uint32_t wanted = ordered_of_float(new_lo);
    uint32_t seen = atomic_load_explicit(lo, memory_order_relaxed);
    while (wanted < seen && !atomic_compare_exchange_weak(lo, &seen, wanted))
        ;
    wanted = ordered_of_float(new_hi);
    seen = atomic_load_explicit(hi, memory_order_relaxed);
    while (wanted > seen && !atomic_compare_exchange_weak(hi, &seen, wanted))
        ;
}

static bool range_of_columns(struct encoder *encoder, const void *elements, struct span span) {
    float lo[MOST_COLUMNS], hi[MOST_COLUMNS];
    for (size_t i = 0; i < span.columns; i++) {
        lo[i] = INFINITY;
        hi[i] = -INFINITY;
    }
    if (!mesa_kernels.affine_range_columns[encoder->plan->dtype](elements, span.rows, span.columns,
                                                                 lo, hi))
        return false;
    /* First within the columns of each group, as widening is dear. */
    size_t run = encoder->cycle.run, group = span.group;
    size_t next = run - span.column % run; /* first column of the next group */
    for (size_t i = 0; i < span.columns; next += run, group++) {
        float least = lo[i], most = hi[i];
        for (i++; i < next && i < span.columns; i++) {
            least = lo[i] < least ? lo[i] : least;
            most = hi[i] > most ? hi[i] : most;
        }
        widen(&encoder->lo[group], &encoder->hi[group], least, most);
    }
    return true;
}

static bool range_window(void *context, const void *elements, size_t first, size_t n) {
    struct encoder *encoder = context;
    size_t bytes = mesa_dtype_bytes(encoder->plan->dtype);
    for (size_t at = 0; at < n;) {
        struct span span = span_at(&encoder->cycle, first + at, first + n);
        const char *from = (const char *)elements + at * bytes;
        float lo = INFINITY, hi = -INFINITY;
        if (encoder->cycle.short_runs) {
            if (!range_of_columns(encoder, from, span))
                return false;
        } else {
            const struct mesa_affine_runs runs = {.runs = 1, .run = span.columns};
            if (!mesa_kernels.affine_range[encoder->plan->dtype](&runs, from, &lo, &hi))
                return false;
            widen(&encoder->lo[span.group], &encoder->hi[span.group], lo, hi);
        }
        at += span.rows * span.columns;
    }
    return true;
}

/* Ranges become words in place. False if a group has no word. */
static bool make_words(struct encoder *encoder, uint32_t *ret_words) {
    const struct mesa_plan *plan = encoder->plan;
    for (size_t group = 0; group < encoder->cycle.groups; group++) {
        float lo =
            float_of_ordered(atomic_load_explicit(&encoder->lo[group], memory_order_relaxed));
        float hi =
            float_of_ordered(atomic_load_explicit(&encoder->hi[group], memory_order_relaxed));
        uint32_t word = mesa_affine_word(lo, hi, plan->bits, plan->strict_sign, plan->rounding);
        if (word == MESA_GROUP_RAW || mesa_affine_mark_wide(plan, &word, 1) != 0)
            return false;
        ret_words[group] = word;
    }
    encoder->words = ret_words;
    return true;
}

/* ---- codes ------------------------------------------------------------------------------------- */

/* The words of the columns of `span`, one each, into `ret_words` unless they stand like that. */
static const uint32_t *words_of_columns(const struct cycle *cycle, const uint32_t *words,
                                        struct span span, uint32_t *ret_words) {
    if (cycle->run == 1)
        return words + span.group;
    const uint32_t *word = words + span.group;
    size_t next = cycle->run - span.column % cycle->run; /* first column of the next group */
    for (size_t i = 0; i < span.columns; next += cycle->run, word++)
        for (; i < next && i < span.columns; i++)
            ret_words[i] = *word;
    return ret_words;
}

/* There is no kernel that rounds stochastically with a given word: it is asked for rarely, and for
 * heads or channels hardly ever. The uniforms are those of the other grouping. */
static void quantize_stochastic(const struct mesa_plan *plan, const void *elements,
                                size_t first_element, size_t n, uint32_t word, uint8_t *ret_codes) {
    if (word == 0) {
        memset(ret_codes, 0, n);
        return;
    }
    struct affine_grid grid = affine_grid_of(word, plan->bits);
    for (size_t i = 0; i < n; i++) {
        uint64_t element = first_element + i;
        float uniform = affine_uniform(affine_key_of(plan->seed, element), (uint32_t)element);
        ret_codes[i] = affine_stochastic(element_load(plan->dtype, elements, i), grid,
                                         plan->strict_sign, uniform);
    }
}

static void quantize_span(const struct encoder *encoder, const void *elements, size_t at,
                          struct span span, uint8_t *ret_codes) {
    const struct mesa_plan *plan = encoder->plan;
    const struct cycle *cycle = &encoder->cycle;
    size_t bytes = mesa_dtype_bytes(plan->dtype);
    uint32_t scratch[MOST_COLUMNS];
    if (!cycle->short_runs) {
        uint32_t word = encoder->words[span.group];
        if (plan->rounding == MESA_ROUND_STOCHASTIC)
            quantize_stochastic(plan, elements, at, span.columns, word, ret_codes);
        else
            mesa_kernels.affine_quantize[plan->dtype](
                &(struct mesa_affine_runs){.runs = 1, .run = span.columns}, elements, word,
                plan->bits, plan->strict_sign, ret_codes);
        return;
    }
    const uint32_t *words = words_of_columns(cycle, encoder->words, span, scratch);
    if (plan->rounding != MESA_ROUND_STOCHASTIC) {
        mesa_kernels.affine_quantize_columns[plan->dtype](elements, span.rows, span.columns, words,
                                                          plan->bits, plan->strict_sign, ret_codes);
        return;
    }
    for (size_t i = 0; i < span.rows * span.columns; i++)
        quantize_stochastic(plan, (const char *)elements + i * bytes, at + i, 1,
                            words[i % span.columns], ret_codes + i);
}

static bool code_window(void *context, const void *elements, size_t first, size_t n) {
    const struct encoder *encoder = context;
    const struct mesa_plan *plan = encoder->plan;
    size_t bytes = mesa_dtype_bytes(plan->dtype);
    uint8_t scratch[CODES_AT_ONCE];
    for (size_t chunk = 0; chunk < n; chunk += CODES_AT_ONCE) {
        size_t end = mesa_smaller(n, chunk + CODES_AT_ONCE);
        uint8_t *packed = encoder->codes + (first + chunk) / 8 * plan->bits;
        uint8_t *codes = plan->bits == 8 ? packed : scratch;
        for (size_t at = chunk; at < end;) {
            struct span span = span_at(&encoder->cycle, first + at, first + end);
            quantize_span(encoder, (const char *)elements + at * bytes, first + at, span,
                          codes + (at - chunk));
            at += span.rows * span.columns;
        }
        if (plan->bits != 8)
            mesa_kernels.pack_bits(codes, end - chunk, plan->bits, packed);
    }
    return true;
}

enum mesa_status mesa_affine_cycle_encode(struct mesa_plan *plan, const struct mesa_source *source,
                                          mesa_parallel_for *parallel, void *held,
                                          size_t *ret_bytes) {
    struct encoder encoder = {.plan = plan};
    struct cycle *cycle = &encoder.cycle;
    if (!lay_out(plan, cycle))
        return MESA_DECLINED;
    uint32_t *words = held;
    encoder.codes = (uint8_t *)held + cycle->codes_at;
    encoder.lo = held;
    encoder.hi = (void *)encoder.codes;
    for (size_t group = 0; group < cycle->groups; group++) {
        atomic_init(&encoder.lo[group], ordered_of_float(INFINITY));
        atomic_init(&encoder.hi[group], ordered_of_float(-INFINITY));
    }
    if (!mesa_walk_source(source, parallel, range_window, &encoder) || !make_words(&encoder, words))
        return MESA_DECLINED;
    size_t words_bytes = cycle->groups * sizeof *words;
    memset((uint8_t *)held + words_bytes, 0, cycle->codes_at - words_bytes);
    mesa_walk_source(source, parallel, code_window, &encoder);
    plan->found[0] = 0; /* raw groups */
    *ret_bytes = cycle->bytes;
    return MESA_OK;
}

/* ---- decode ------------------------------------------------------------------------------------ */

struct decoder {
    const struct mesa_plan *plan;
    struct cycle cycle;
    const uint32_t *words;
    const uint8_t *codes;
    char *elements;
};

static void dequantize_span(const struct decoder *decoder, struct span span, const uint8_t *codes,
                            void *ret_elements) {
    enum mesa_dtype dtype = decoder->plan->dtype;
    uint32_t scratch[MOST_COLUMNS];
    if (!decoder->cycle.short_runs)
        mesa_kernels.affine_dequantize[dtype](
            &(struct mesa_affine_runs){.runs = 1, .run = span.columns}, codes,
            decoder->words[span.group], ret_elements);
    else
        mesa_kernels.affine_dequantize_columns[dtype](
            codes, span.rows, span.columns,
            words_of_columns(&decoder->cycle, decoder->words, span, scratch), ret_elements);
}

static void decode_elements(void *context, size_t begin, size_t end) {
    const struct decoder *decoder = context;
    unsigned bits = decoder->plan->bits;
    size_t bytes = mesa_dtype_bytes(decoder->plan->dtype);
    uint8_t scratch[CODES_AT_ONCE];
    for (; begin < end; begin = mesa_smaller(end, begin + CODES_AT_ONCE)) {
        size_t chunk_end = mesa_smaller(end, begin + CODES_AT_ONCE);
        const uint8_t *codes = decoder->codes + begin / 8 * bits;
        if (bits != 8) {
            mesa_kernels.unpack_bits(codes, chunk_end - begin, bits, scratch);
            codes = scratch;
        }
        for (size_t at = begin; at < chunk_end;) {
            struct span span = span_at(&decoder->cycle, at, chunk_end);
            dequantize_span(decoder, span, codes + (at - begin), decoder->elements + at * bytes);
            at += span.rows * span.columns;
        }
    }
}

void mesa_affine_cycle_decode(const struct mesa_plan *plan, const void *held,
                              mesa_parallel_for *parallel, void *ret_elements) {
    struct decoder decoder = {.plan = plan, .words = held, .elements = ret_elements};
    (void)!lay_out(plan, &decoder.cycle); /* it was encoded: it can be laid out */
    decoder.codes = (const uint8_t *)held + decoder.cycle.codes_at;
    mesa_walk_result(plan->elements, mesa_dtype_bytes(plan->dtype), parallel, decode_elements,
                     &decoder);
}
