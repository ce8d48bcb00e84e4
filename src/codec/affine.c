/* Reals as codes of 1..12 bits with a scale and a zero point for each group (kernels.h has the format).
 * This file: groups that are contiguous stretches of rows. Held bytes:
 *
 *     words    uint32 for each group                      (then to a multiple of 64 bytes)
 *     codes    mesa_code_row_bytes() for each row         (then to a multiple of 64 bytes)
 *     raw      the groups that codes cannot hold (NaN, Inf, ...), in order, as they are; the first
 *              four code bytes of such a group are its index here
 *
 * The one idea: where all groups of a row are equally long in whole units, rows do not matter to the
 * bytes, and the tensor is one long row that may be cut between any two groups. Only other rows
 * (of 100 elements, say) are cut with more care. Must not know heads or policies.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/affine.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

/* More than one raw group in this many, and the tensor is better kept as it is. */
#define GROUPS_FOR_A_RAW_ONE 8

/* A group's codes must have room for the index of a raw group. */
#define LEAST_CODE_BYTES 4

/* Rows, groups and the places of the parts in the held bytes. */
struct grid {
    size_t rows, row, groups; /* `rows` rows of `row` elements in `groups` groups each */
    bool even;                /* all groups are equally long, of whole units */
    size_t words;             /* rows * groups */
    size_t code_row_bytes;
    size_t codes_at, raw_at; /* bytes from the start */
    size_t raw_limit, raw_group_bytes;
    size_t element_bytes;
};

static size_t group_elements(size_t row, size_t groups, size_t j) {
    return mesa_group_begin(row, groups, j + 1) - mesa_group_begin(row, groups, j);
}

static size_t largest_group(size_t row, size_t groups) {
    size_t inner = mesa_divide_up(row / MESA_GROUP_UNIT, groups) * MESA_GROUP_UNIT;
    size_t last = group_elements(row, groups, groups - 1);
    return last > inner ? last : inner;
}

/* False if the plan cannot be carried out. */
static bool lay_out(const struct mesa_plan *plan, struct grid *ret_grid) {
    size_t row = plan->row;
    if (!mesa_dtype_is_real(plan->dtype) || plan->bits < 1 || plan->bits > MESA_MOST_CODE_BITS ||
        row == 0 || plan->group == 0 || plan->elements == 0 || plan->elements % row != 0)
        return false;
    if (row < MESA_GROUP_UNIT)
        row = plan->elements;
    size_t groups = mesa_group_count(row, plan->group);
    struct grid grid = {
        .rows = plan->elements / row,
        .row = row,
        .groups = groups,
        .even = row % MESA_GROUP_UNIT == 0 && row / MESA_GROUP_UNIT % groups == 0,
        .element_bytes = mesa_dtype_bytes(plan->dtype),
    };
    grid.words = grid.rows * groups;
    if (grid.even) {
        grid.row = plan->elements;
        grid.groups = grid.words;
        grid.rows = 1;
    }
    grid.code_row_bytes = mesa_code_row_bytes(grid.row, plan->bits);
    if (grid.code_row_bytes < LEAST_CODE_BYTES)
        return false;
    grid.codes_at = mesa_round_to_line(grid.words * sizeof(uint32_t));
    grid.raw_at = grid.codes_at + mesa_round_to_line(grid.rows * grid.code_row_bytes);
    grid.raw_limit = grid.words / GROUPS_FOR_A_RAW_ONE;
    grid.raw_group_bytes = largest_group(row, groups) * grid.element_bytes;
    *ret_grid = grid;
    return grid.raw_limit <= UINT32_MAX;
}

static size_t affine_bound_bytes(const struct mesa_plan *plan) {
    struct grid grid;
    if (plan->grouping == MESA_GROUP_CYCLE)
        return mesa_affine_cycle_bound_bytes(plan);
    if (!lay_out(plan, &grid) || grid.raw_at >= plan->elements * grid.element_bytes)
        return 0;
    return grid.raw_at + grid.raw_limit * grid.raw_group_bytes;
}

/* End of the groups from j on, up to `end`, that are as long as group j. With row = k * groups + r
 * units, r of the groups have k + 1: group j does if r*j/groups and r*(j+1)/groups differ, rounded
 * down. */
static size_t even_groups_end(size_t row, size_t groups, size_t j, size_t end) {
    size_t units = row / MESA_GROUP_UNIT, longer = units % groups;
    if (group_elements(row, groups, j) != units / groups * MESA_GROUP_UNIT)
        return j + 1;
    size_t next = groups;
    if (longer != 0)
        next = mesa_divide_up((longer * j / groups + 1) * groups, longer) - 1;
    else if (row % MESA_GROUP_UNIT != 0)
        next = groups - 1; /* the last one has the tail */
    return mesa_smaller(next, end);
}

/* Work is cut into items: rows, or parts of long rows. */
static size_t parts_of_row(const struct grid *grid) {
    size_t parts = mesa_divide_up(grid->row * grid->element_bytes, MESA_PIECE_BYTES);
    return mesa_smaller(parts, grid->groups);
}

static size_t part_begin(const struct grid *grid, size_t parts, size_t part) {
    return grid->groups / parts * part + grid->groups % parts * part / parts;
}

static void walk_grid(const struct grid *grid, mesa_parallel_for *parallel,
                      void (*body)(void *context, size_t begin, size_t end), void *context) {
    size_t parts = parts_of_row(grid);
    mesa_walk_items(grid->rows * parts, grid->row / parts * grid->element_bytes, parallel, body,
                    context);
}

/* ---- encode ------------------------------------------------------------------------------------ */

struct encoder {
    const struct mesa_plan *plan;
    const struct mesa_source *source;
    struct grid grid;
    uint32_t *words;
    uint8_t *codes;
    bool stream; /* the codes will not be found in the caches: write past them */
    atomic_size_t raw_groups;
    atomic_bool declined;
};

/* Equal units that follow each other in dense order: rows of groups, or single groups. */
struct stretch {
    size_t first, end;        /* elements */
    size_t unit, unit_groups; /* elements and groups in each */
    bool joins;               /* bytes of many units are those of one long row */
    uint32_t *words;          /* of the first */
    uint8_t *codes;
};

size_t mesa_affine_mark_wide(const struct mesa_plan *plan, uint32_t *words, size_t n) {
    size_t marked = 0;
    if (plan->widest == 0)
        return 0;
    float widest_scale = plan->widest / (float)((1u << plan->bits) - 1);
    for (size_t i = 0; i < n; i++) {
        uint32_t scale_bits = words[i] & 0xffff0000u; /* of the marks: subnormal, so never wide */
        float scale;
        memcpy(&scale, &scale_bits, sizeof scale);
        if (scale > widest_scale) {
            words[i] = MESA_GROUP_RAW;
            marked++;
        }
    }
    return marked;
}

static void encode_block(struct encoder *encoder, const struct stretch *stretch, size_t at,
                         struct mesa_source_rows block) {
    const struct mesa_plan *plan = encoder->plan;
    size_t units_before = (at - stretch->first) / stretch->unit;
    size_t units_in_row = block.row / stretch->unit;
    uint32_t *words = stretch->words + units_before * stretch->unit_groups;
    uint8_t *codes = stretch->codes + units_before * mesa_code_row_bytes(stretch->unit, plan->bits);
    struct mesa_affine_rows rows = {
        .rows = block.rows,
        .row = block.row,
        .row_stride = block.stride,
        .groups = units_in_row * stretch->unit_groups,
        .bits = plan->bits,
        .strict_sign = plan->strict_sign,
        .rounding = plan->rounding,
        .seed = plan->seed,
        .first_element = at,
        .stream = encoder->stream,
    };
    size_t calls = 1;
    if (!stretch->joins && units_in_row > 1) { /* a call for each stored row, its units as rows */
        calls = block.rows;
        rows.rows = units_in_row;
        rows.row = stretch->unit;
        rows.row_stride = (ptrdiff_t)stretch->unit;
        rows.groups = stretch->unit_groups;
    }
    const char *from = block.first;
    size_t raw_groups = 0;
    for (size_t call = 0; call < calls; call++) {
        raw_groups += mesa_kernels.affine_encode[plan->dtype](&rows, from, words, codes);
        raw_groups += mesa_affine_mark_wide(plan, words, rows.rows * rows.groups);
        from += block.stride * (ptrdiff_t)encoder->grid.element_bytes;
        rows.first_element += rows.rows * rows.row;
        words += rows.rows * rows.groups;
        codes += rows.rows * mesa_code_row_bytes(rows.row, plan->bits);
    }
    if (raw_groups != 0)
        atomic_fetch_add_explicit(&encoder->raw_groups, raw_groups, memory_order_relaxed);
}

/* Codes from where the elements lie as far as units are contiguous, else from a copy. False if a
 * unit is neither contiguous nor fits `scratch`. */
static bool encode_stretch(struct encoder *encoder, const struct stretch *stretch, void *scratch) {
    size_t units_in_scratch =
        MESA_SCRATCH_BYTES / encoder->grid.element_bytes / stretch->unit * stretch->unit;
    for (size_t at = stretch->first; at < stretch->end;) {
        struct mesa_source_rows block;
        if (!mesa_source_rows(encoder->source, at, stretch->end, stretch->unit, &block)) {
            if (units_in_scratch == 0)
                return false;
            block.first = scratch;
            block.rows = 1;
            block.row = mesa_smaller(units_in_scratch, stretch->end - at);
            block.stride = (ptrdiff_t)block.row;
            mesa_source_gather(encoder->source, at, at + block.row, scratch);
        }
        encode_block(encoder, stretch, at, block);
        at += block.rows * block.row;
    }
    return true;
}

/* Groups [begin, end) of one row, in stretches of equal length. */
static bool encode_groups(struct encoder *encoder, size_t row, size_t begin, size_t end,
                          void *scratch) {
    const struct grid *grid = &encoder->grid;
    bool possible = true;
    for (size_t j = begin; j < end && possible;) {
        size_t next = even_groups_end(grid->row, grid->groups, j, end);
        size_t offset = mesa_group_begin(grid->row, grid->groups, j);
        struct stretch stretch = {
            .first = row * grid->row + offset,
            .end = row * grid->row + mesa_group_begin(grid->row, grid->groups, next),
            .unit = group_elements(grid->row, grid->groups, j),
            .unit_groups = 1,
            .joins = true, /* unless it is the last with its tail, which stands alone */
            .words = encoder->words + row * grid->groups + j,
            .codes = encoder->codes + row * grid->code_row_bytes +
                     mesa_code_row_bytes(offset, encoder->plan->bits),
        };
        possible = encode_stretch(encoder, &stretch, scratch);
        j = next;
    }
    return possible;
}

static bool encode_rows(struct encoder *encoder, size_t begin, size_t end, void *scratch) {
    const struct grid *grid = &encoder->grid;
    struct stretch stretch = {
        .first = begin * grid->row,
        .end = end * grid->row,
        .unit = grid->row,
        .unit_groups = grid->groups,
        .words = encoder->words + begin * grid->groups,
        .codes = encoder->codes + begin * grid->code_row_bytes,
    };
    const void *first;
    bool fits = grid->row * grid->element_bytes <= MESA_SCRATCH_BYTES;
    if (fits || mesa_source_contiguous(encoder->source, stretch.first, stretch.end, &first))
        return encode_stretch(encoder, &stretch, scratch);
    bool possible = true;
    for (size_t row = begin; row < end && possible; row++)
        possible = encode_groups(encoder, row, 0, grid->groups, scratch);
    return possible;
}

static bool is_hopeless(struct encoder *encoder) {
    return atomic_load_explicit(&encoder->declined, memory_order_relaxed) ||
           atomic_load_explicit(&encoder->raw_groups, memory_order_relaxed) >
               encoder->grid.raw_limit;
}

static void encode_items(void *context, size_t begin, size_t end) {
    struct encoder *encoder = context;
    const struct grid *grid = &encoder->grid;
    _Alignas(64) unsigned char scratch[MESA_SCRATCH_BYTES];
    size_t parts = parts_of_row(grid);
    bool possible = true;
    while (begin < end && possible && !is_hopeless(encoder)) {
        if (!grid->even && parts == 1) { /* few enough rows to look up in between */
            size_t some = MESA_PIECE_BYTES / (grid->row * grid->element_bytes) + 1;
            size_t next = begin + mesa_smaller(some, end - begin);
            possible = encode_rows(encoder, begin, next, scratch);
            begin = next;
        } else {
            size_t row = begin / parts, part = begin % parts;
            possible = encode_groups(encoder, row, part_begin(grid, parts, part),
                                     part_begin(grid, parts, part + 1), scratch);
            begin++;
        }
    }
    if (!possible)
        atomic_store_explicit(&encoder->declined, true, memory_order_relaxed);
}

/* Appends the raw groups and writes their indices where their codes would be. In order, whatever
 * thread met them first: held bytes depend on the data only. */
static void append_raw_groups(struct encoder *encoder, uint8_t *raw) {
    const struct grid *grid = &encoder->grid;
    uint32_t index = 0;
    for (size_t word = 0; word < grid->words; word++) {
        if (encoder->words[word] != MESA_GROUP_RAW)
            continue;
        size_t row = word / grid->groups, j = word % grid->groups;
        size_t begin = mesa_group_begin(grid->row, grid->groups, j);
        size_t elements = group_elements(grid->row, grid->groups, j);
        size_t bytes = elements * grid->element_bytes;
        uint8_t *to = raw + index * grid->raw_group_bytes;
        mesa_source_gather(encoder->source, row * grid->row + begin,
                           row * grid->row + begin + elements, to);
        memset(to + bytes, 0, grid->raw_group_bytes - bytes);

        uint8_t *codes = encoder->codes + row * grid->code_row_bytes +
                         mesa_code_row_bytes(begin, encoder->plan->bits);
        for (unsigned i = 0; i < LEAST_CODE_BYTES; i++)
            codes[i] = (uint8_t)(index >> 8 * i);
        index++;
    }
}

static enum mesa_status affine_encode(struct mesa_plan *plan, const struct mesa_source *source,
                                      mesa_parallel_for *parallel, void *held, size_t *ret_bytes) {
    if (plan->grouping == MESA_GROUP_CYCLE)
        return mesa_affine_cycle_encode(plan, source, parallel, held, ret_bytes);

    struct encoder encoder = {.plan = plan, .source = source};
    struct grid *grid = &encoder.grid;
    if (!lay_out(plan, grid))
        return MESA_DECLINED;
    uint8_t *bytes = held;
    encoder.words = held;
    encoder.codes = bytes + grid->codes_at;
    encoder.stream = plan->far || grid->rows * grid->code_row_bytes > mesa_cache_bytes();
    walk_grid(grid, parallel, encode_items, &encoder);
    if (is_hopeless(&encoder))
        return MESA_DECLINED;

    size_t words_end = grid->words * sizeof(uint32_t);
    size_t codes_end = grid->codes_at + grid->rows * grid->code_row_bytes;
    memset(bytes + words_end, 0, grid->codes_at - words_end);
    memset(bytes + codes_end, 0, grid->raw_at - codes_end);
    size_t raw_groups = atomic_load_explicit(&encoder.raw_groups, memory_order_relaxed);
    if (raw_groups > 0)
        append_raw_groups(&encoder, bytes + grid->raw_at);
    plan->found[0] = raw_groups;
    *ret_bytes = grid->raw_at + raw_groups * grid->raw_group_bytes;
    return MESA_OK;
}

/* ---- decode ------------------------------------------------------------------------------------ */

struct decoder {
    const struct mesa_plan *plan;
    struct grid grid;
    const uint32_t *words;
    const uint8_t *codes, *raw;
    bool stream;
    char *elements;
};

/* `rows` dense rows of the given geometry, the first of which begins at element `at`. */
static void decode_dense(const struct decoder *decoder, size_t at, size_t rows, size_t row,
                         size_t groups, const uint32_t *words, const uint8_t *codes) {
    const struct mesa_plan *plan = decoder->plan;
    struct mesa_affine_rows geometry = {
        .rows = rows,
        .row = row,
        .row_stride = (ptrdiff_t)row,
        .groups = groups,
        .bits = plan->bits,
        .strict_sign = plan->strict_sign,
        .rounding = plan->rounding,
        .seed = plan->seed,
        .first_element = at,
    };
    mesa_kernels.affine_decode[plan->dtype](&geometry, words, codes, decoder->raw,
                                            decoder->grid.raw_group_bytes, decoder->stream,
                                            decoder->elements + at * decoder->grid.element_bytes);
}

static void decode_groups(const struct decoder *decoder, size_t row, size_t begin, size_t end) {
    const struct grid *grid = &decoder->grid;
    for (size_t j = begin; j < end;) {
        size_t next = even_groups_end(grid->row, grid->groups, j, end);
        size_t from = mesa_group_begin(grid->row, grid->groups, j);
        size_t to = mesa_group_begin(grid->row, grid->groups, next);
        decode_dense(decoder, row * grid->row + from, 1, to - from, next - j,
                     decoder->words + row * grid->groups + j,
                     decoder->codes + row * grid->code_row_bytes +
                         mesa_code_row_bytes(from, decoder->plan->bits));
        j = next;
    }
}

static void decode_items(void *context, size_t begin, size_t end) {
    const struct decoder *decoder = context;
    const struct grid *grid = &decoder->grid;
    size_t parts = parts_of_row(grid);
    if (parts == 1) {
        decode_dense(decoder, begin * grid->row, end - begin, grid->row, grid->groups,
                     decoder->words + begin * grid->groups,
                     decoder->codes + begin * grid->code_row_bytes);
        return;
    }
    for (; begin < end; begin++)
        decode_groups(decoder, begin / parts, part_begin(grid, parts, begin % parts),
                      part_begin(grid, parts, begin % parts + 1));
}

static void affine_decode(const struct mesa_plan *plan, const void *held,
                          mesa_parallel_for *parallel, void *ret_elements) {
    if (plan->grouping == MESA_GROUP_CYCLE) {
        mesa_affine_cycle_decode(plan, held, parallel, ret_elements);
        return;
    }
    struct decoder decoder = {.plan = plan, .words = held, .elements = ret_elements};
    bool possible = lay_out(plan, &decoder.grid);
    assert(possible); /* it was encoded */
    (void)possible;
    decoder.codes = (const uint8_t *)held + decoder.grid.codes_at;
    decoder.raw = (const uint8_t *)held + decoder.grid.raw_at;
    decoder.stream = plan->elements * decoder.grid.element_bytes > mesa_cache_bytes();
    walk_grid(&decoder.grid, parallel, decode_items, &decoder);
}

const struct mesa_codec mesa_codec_affine = {
    .name = "affine",
    .exact = false,
    .bound_bytes = affine_bound_bytes,
    .encode = affine_encode,
    .decode = affine_decode,
};
