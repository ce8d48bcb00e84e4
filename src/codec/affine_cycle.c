/* Affine codes whose groups are spread over the tensor: one for each head or channel. The elements of
 * a group lie in runs, and runs take turns. Held bytes: a uint32 word for each group (to a multiple
 * of 64 bytes), then the codes of all elements in dense order; of codes with more than 8 bits the upper
 * 8 of all, then the lower bits of all.
 *
 * A period's groups need nothing of other periods. Where it is small (some tokens of all heads), its
 * ranges, words and codes are made while it is in a near cache. Where it is large (a channel of the
 * whole tensor), there are two passes: first every group's range, then the codes. Until the words are
 * known, their place and the place of the first codes hold the ranges.
 *
 * There is no raw area: with groups as large as these a single NaN would keep too much, so it declines
 * the tensor. Must not know heads or channels, nor how a tile of elements is coded.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/affine.h"
#include "codec/affine_tile.h"
#include "codec/kernels/affine.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* Codes of less than a byte are packed so many at once, out of the stack. */
#define CODES_AT_ONCE 4096

/* Elements that are read twice in one pass: a share of the second cache. */
#define MOST_ITEM_BYTES (128u << 10)

struct layout {
    struct mesa_cycle cycle;
    size_t groups;
    size_t codes_at, bytes; /* place of the codes and size of all */
    size_t item;            /* elements that are coded in one pass: whole periods; 0: two passes */
};

/* So many periods that packed codes of two items never share a byte; 0 if they are too large. */
static size_t item_of(const struct mesa_plan *plan, const struct mesa_cycle *cycle) {
    size_t most = MOST_ITEM_BYTES / mesa_dtype_bytes(plan->dtype), periods = 1;
    if (cycle->groups_in_turn > MESA_TILE_GROUPS || cycle->period > most)
        return 0;
    while (plan->bits != 8 && cycle->period * periods % MESA_WALK_UNIT != 0)
        periods *= 2;
    return cycle->period * periods <= most ? cycle->period * periods : 0;
}

static bool lay_out(const struct mesa_plan *plan, struct layout *ret_layout) {
    if (!mesa_dtype_is_real(plan->dtype) || plan->bits < 1 || plan->bits > MESA_MOST_CODE_BITS ||
        plan->elements == 0 || plan->run == 0 || plan->cycle == 0 ||
        plan->elements % plan->run != 0 || plan->cycle > plan->elements / plan->run ||
        plan->period % plan->cycle != 0)
        return false;
    struct mesa_cycle cycle = {
        .run = plan->run,
        .turn = plan->run * plan->cycle,
        .period = plan->period != 0 ? plan->run * plan->period : plan->elements,
        .groups_in_turn = plan->cycle,
        .dtype = plan->dtype,
    };
    struct layout layout = {
        .cycle = cycle,
        .groups = plan->cycle * mesa_divide_up(plan->elements, cycle.period),
        .item = item_of(plan, &cycle),
    };
    size_t words_bytes = layout.groups * sizeof(uint32_t);
    size_t code_bytes = mesa_code_row_bytes(plan->elements, plan->bits);
    layout.codes_at = mesa_round_to_line(words_bytes);
    layout.bytes = layout.codes_at + code_bytes;
    *ret_layout = layout;
    /* Less than a code for a word would be no gain, and the ranges need that room. */
    return code_bytes >= words_bytes &&
           layout.bytes < plan->elements * mesa_dtype_bytes(plan->dtype);
}

size_t mesa_affine_cycle_bound_bytes(const struct mesa_plan *plan) {
    struct layout layout;
    return lay_out(plan, &layout) ? layout.bytes : 0;
}

/* Where the codes are, as kernels take them: bytes where they will stay, the rest packed. */
struct placement {
    uint8_t *bytes;       /* codes of 8 bits, or the upper 8 bits of codes with more; else NULL */
    uint8_t *packed;      /* codes of fewer bits, or the lower bits of codes with more */
    unsigned packed_bits; /* 0: none */
};

static struct placement placement_of(const struct mesa_plan *plan, uint8_t *codes) {
    bool has_bytes = plan->bits >= 8;
    return (struct placement){
        .bytes = has_bytes ? codes : NULL,
        .packed = has_bytes ? codes + plan->elements : codes,
        .packed_bits = has_bytes ? mesa_lower_bits(plan->bits) : plan->bits,
    };
}

/* Codes from element `begin` on; what is to be packed, or was, in `scratch`. */
static struct mesa_code_bytes unpacked_codes(const struct placement *placement, size_t begin,
                                             uint8_t *scratch) {
    if (placement->bytes == NULL)
        return (struct mesa_code_bytes){.upper = scratch};
    return (struct mesa_code_bytes){placement->bytes + begin, scratch};
}

static uint8_t *packed_codes(const struct placement *placement, size_t begin) {
    return placement->packed + mesa_code_row_bytes(begin, placement->packed_bits);
}

struct encoder {
    const struct mesa_plan *plan;
    const struct mesa_source *source;
    struct layout layout;
    uint32_t *words;
    uint8_t *codes;
    _Atomic uint32_t *lo, *hi; /* ranges, ordered; where words and first codes will be */
    atomic_bool declined;
};

static bool is_declined(const struct encoder *encoder) {
    return atomic_load_explicit(&encoder->declined, memory_order_relaxed);
}

static void decline(struct encoder *encoder) {
    atomic_store_explicit(&encoder->declined, true, memory_order_relaxed);
}

/* False if the group has none. */
static bool find_word(const struct mesa_plan *plan, float lo, float hi, uint32_t *ret_word) {
    *ret_word = mesa_affine_word(lo, hi, plan->bits, plan->strict_sign, plan->rounding);
    return *ret_word != MESA_GROUP_RAW && mesa_affine_mark_wide(plan, ret_word, 1) == 0;
}

static struct mesa_tile_reader reader_of(const struct encoder *encoder, void *scratch) {
    return (struct mesa_tile_reader){
        .cycle = &encoder->layout.cycle, .source = encoder->source, .scratch = scratch};
}

/* Elements [begin, end), with words that are known. `begin` is a multiple of 8, unless codes are
 * bytes. */
static void code_elements(const struct encoder *encoder, struct mesa_tile_reader *reader,
                          size_t begin, size_t end) {
    struct placement placement = placement_of(encoder->plan, encoder->codes);
    uint8_t scratch[CODES_AT_ONCE];
    while (begin < end) {
        size_t next = placement.packed_bits == 0 ? end : mesa_smaller(end, begin + CODES_AT_ONCE);
        struct mesa_code_bytes codes = unpacked_codes(&placement, begin, scratch);
        for (size_t at = begin; at < next;) {
            struct mesa_tile tile = mesa_tile_of_source(reader, at, next);
            mesa_tile_quantize(encoder->plan, reader->cycle, &tile, encoder->words + tile.group,
                               codes_from(codes, encoder->plan->bits, at - begin));
            at += mesa_tile_elements(&tile);
        }
        if (placement.packed_bits != 0)
            mesa_kernels.pack_bits(scratch, next - begin, placement.packed_bits,
                                   packed_codes(&placement, begin));
        begin = next;
    }
}

/* ---- one pass ---------------------------------------------------------------------------------- */

/* The words of the period that elements [begin, end) are. False if a group has none. */
static bool word_period(const struct encoder *encoder, struct mesa_tile_reader *reader,
                        size_t begin, size_t end) {
    size_t groups = reader->cycle->groups_in_turn;
    size_t first = begin / reader->cycle->period * groups;
    float lo[MESA_TILE_GROUPS], hi[MESA_TILE_GROUPS];
    mesa_tile_start_ranges(groups, lo, hi);
    for (size_t at = begin; at < end;) {
        struct mesa_tile tile = mesa_tile_of_source(reader, at, end);
        if (!mesa_tile_range(reader->cycle, &tile, lo + (tile.group - first),
                             hi + (tile.group - first)))
            return false;
        at += mesa_tile_elements(&tile);
    }
    bool found = true;
    for (size_t i = 0; i < groups; i++)
        found &= find_word(encoder->plan, lo[i], hi[i], &encoder->words[first + i]);
    return found;
}

static void encode_items(void *context, size_t begin, size_t end) {
    struct encoder *encoder = context;
    const struct layout *layout = &encoder->layout;
    _Alignas(64) unsigned char scratch[MESA_SCRATCH_BYTES];
    struct mesa_tile_reader reader = reader_of(encoder, scratch);
    for (; begin < end && !is_declined(encoder); begin++) {
        size_t first = begin * layout->item;
        size_t next = mesa_smaller(first + layout->item, encoder->plan->elements);
        bool found = true;
        for (size_t at = first; at < next && found; at += layout->cycle.period)
            found =
                word_period(encoder, &reader, at, mesa_smaller(at + layout->cycle.period, next));
        if (found)
            code_elements(encoder, &reader, first, next);
        else
            decline(encoder);
    }
}

/* ---- two passes -------------------------------------------------------------------------------- */

/* Floats (no NaN) as integers in the same order, so that threads can widen a range by compare and
 * exchange. */
static uint32_t ordered_of_float(float value) {
    uint32_t bits = float_bits(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static float float_of_ordered(uint32_t ordered) {
    return float_of_bits(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

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

static void range_piece(void *context, size_t begin, size_t end) {
    struct encoder *encoder = context;
    const struct mesa_cycle *cycle = &encoder->layout.cycle;
    _Alignas(64) unsigned char scratch[MESA_SCRATCH_BYTES];
    struct mesa_tile_reader reader = reader_of(encoder, scratch);
    float lo[MESA_TILE_GROUPS], hi[MESA_TILE_GROUPS];
    while (begin < end && !is_declined(encoder)) {
        struct mesa_tile tile = mesa_tile_of_source(&reader, begin, end);
        size_t groups = mesa_tile_groups(cycle, &tile);
        mesa_tile_start_ranges(groups, lo, hi);
        if (!mesa_tile_range(cycle, &tile, lo, hi)) {
            decline(encoder);
            return;
        }
        for (size_t i = 0; i < groups; i++)
            widen(&encoder->lo[tile.group + i], &encoder->hi[tile.group + i], lo[i], hi[i]);
        begin += mesa_tile_elements(&tile);
    }
}

/* Ranges become words in place. False if a group has no word. */
static bool make_words(struct encoder *encoder) {
    bool found = true;
    for (size_t i = 0; i < encoder->layout.groups && found; i++) {
        uint32_t lo = atomic_load_explicit(&encoder->lo[i], memory_order_relaxed);
        uint32_t hi = atomic_load_explicit(&encoder->hi[i], memory_order_relaxed);
        found = find_word(encoder->plan, float_of_ordered(lo), float_of_ordered(hi),
                          &encoder->words[i]);
    }
    return found;
}

static void code_piece(void *context, size_t begin, size_t end) {
    const struct encoder *encoder = context;
    _Alignas(64) unsigned char scratch[MESA_SCRATCH_BYTES];
    struct mesa_tile_reader reader = reader_of(encoder, scratch);
    code_elements(encoder, &reader, begin, end);
}

static void encode_in_two_passes(struct encoder *encoder, mesa_parallel_for *parallel) {
    size_t elements = encoder->plan->elements, bytes = mesa_dtype_bytes(encoder->plan->dtype);
    encoder->lo = (void *)encoder->words;
    encoder->hi = (void *)encoder->codes;
    for (size_t i = 0; i < encoder->layout.groups; i++) {
        atomic_init(&encoder->lo[i], ordered_of_float(INFINITY));
        atomic_init(&encoder->hi[i], ordered_of_float(-INFINITY));
    }
    mesa_walk_result(elements, bytes, parallel, range_piece, encoder);
    if (is_declined(encoder) || !make_words(encoder))
        decline(encoder);
    else
        mesa_walk_result(elements, bytes, parallel, code_piece, encoder);
}

enum mesa_status mesa_affine_cycle_encode(struct mesa_plan *plan, const struct mesa_source *source,
                                          mesa_parallel_for *parallel, void *held,
                                          size_t *ret_bytes) {
    struct encoder encoder = {.plan = plan, .source = source, .words = held};
    struct layout *layout = &encoder.layout;
    if (!lay_out(plan, layout))
        return MESA_DECLINED;
    encoder.codes = (uint8_t *)held + layout->codes_at;
    if (layout->item != 0)
        mesa_walk_items(mesa_divide_up(plan->elements, layout->item),
                        layout->item * mesa_dtype_bytes(plan->dtype), parallel, encode_items,
                        &encoder);
    else
        encode_in_two_passes(&encoder, parallel);
    if (is_declined(&encoder))
        return MESA_DECLINED;
    size_t words_bytes = layout->groups * sizeof *encoder.words;
    memset((uint8_t *)held + words_bytes, 0, layout->codes_at - words_bytes);
    plan->found[0] = 0; /* raw groups */
    *ret_bytes = layout->bytes;
    return MESA_OK;
}

/* ---- decode ------------------------------------------------------------------------------------ */

struct decoder {
    const struct mesa_plan *plan;
    struct layout layout;
    const uint32_t *words;
    uint8_t *codes; /* only read */
    char *elements;
};

static void decode_elements(void *context, size_t begin, size_t end) {
    const struct decoder *decoder = context;
    const struct mesa_cycle *cycle = &decoder->layout.cycle;
    const struct placement placement = placement_of(decoder->plan, decoder->codes);
    unsigned bits = decoder->plan->bits;
    size_t bytes = mesa_dtype_bytes(cycle->dtype);
    uint8_t scratch[CODES_AT_ONCE];
    while (begin < end) {
        size_t next = placement.packed_bits == 0 ? end : mesa_smaller(end, begin + CODES_AT_ONCE);
        struct mesa_code_bytes codes = unpacked_codes(&placement, begin, scratch);
        if (placement.packed_bits != 0)
            mesa_kernels.unpack_bits(packed_codes(&placement, begin), next - begin,
                                     placement.packed_bits, scratch);
        for (size_t at = begin; at < next;) {
            struct mesa_tile tile = mesa_tile_at(cycle, at, next);
            mesa_tile_dequantize(cycle, &tile, decoder->words + tile.group,
                                 codes_from(codes, bits, at - begin), bits,
                                 decoder->elements + at * bytes);
            at += mesa_tile_elements(&tile);
        }
        begin = next;
    }
}

void mesa_affine_cycle_decode(const struct mesa_plan *plan, const void *held,
                              mesa_parallel_for *parallel, void *ret_elements) {
    struct decoder decoder = {.plan = plan, .words = held, .elements = ret_elements};
    (void)!lay_out(plan, &decoder.layout); /* it was encoded: it can be laid out */
    decoder.codes = (uint8_t *)held + decoder.layout.codes_at;
    mesa_walk_result(plan->elements, mesa_dtype_bytes(plan->dtype), parallel, decode_elements,
                     &decoder);
}
