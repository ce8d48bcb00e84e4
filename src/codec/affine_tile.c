/* See affine_tile.h. Must not know passes, threads or held bytes.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/affine_tile.h"

#include "codec/kernels/affine.h"

#include <math.h>
#include <string.h>

/* Shorter runs are taken as columns. */
#define SHORT_RUN 16

/* Less than this is gathered rather than looked up piece by piece. */
#define LEAST_PIECE_BYTES 4096

static bool takes_columns(const struct mesa_cycle *cycle) {
    return cycle->run < SHORT_RUN;
}

static size_t most_elements(const struct mesa_cycle *cycle) {
    return MESA_SCRATCH_BYTES / mesa_dtype_bytes(cycle->dtype);
}

static size_t most_rows(const struct mesa_cycle *cycle) {
    size_t rows = most_elements(cycle) / cycle->turn;
    return rows == 0 ? 1 : rows;
}

/* In one row: kernels keep something for each column, callers for each group. */
static size_t most_columns(const struct mesa_cycle *cycle) {
    return takes_columns(cycle) ? MESA_TILE_GROUPS : cycle->run * (MESA_TILE_GROUPS - 1);
}

/* Those of the tile's first group. */
static size_t first_columns(const struct mesa_cycle *cycle, const struct mesa_tile *tile) {
    return mesa_smaller(cycle->run - tile->column % cycle->run, tile->columns);
}

size_t mesa_tile_groups(const struct mesa_cycle *cycle, const struct mesa_tile *tile) {
    return 1 + mesa_divide_up(tile->columns - first_columns(cycle, tile), cycle->run);
}

/* ---- where tiles are --------------------------------------------------------------------------- */

struct mesa_tile mesa_tile_at(const struct mesa_cycle *cycle, size_t at, size_t end) {
    size_t in_period = at % cycle->period, column = in_period % cycle->turn;
    size_t left = mesa_smaller(end - at, cycle->period - in_period);
    struct mesa_tile tile = {
        .at = at,
        .group = at / cycle->period * cycle->groups_in_turn + column / cycle->run,
        .column = column,
        .rows = 1,
        .columns = mesa_smaller(cycle->turn - column, left),
    };
    if (tile.columns > most_columns(cycle))
        tile.columns = most_columns(cycle);
    if (tile.columns == cycle->turn)
        tile.rows = left / cycle->turn;
    if (!takes_columns(cycle)) /* each group reads all of it */
        tile.rows = mesa_smaller(tile.rows, most_rows(cycle));
    return tile;
}

/* Shortens the tile to rows that lie in the source as a kernel may take them. False if that is not
 * worth it. */
static bool find_rows(const struct mesa_tile_reader *reader, struct mesa_tile *tile) {
    const struct mesa_cycle *cycle = reader->cycle;
    size_t wanted = mesa_tile_elements(tile), unit = tile->rows > 1 ? cycle->turn : 1;
    struct mesa_source_rows rows;
    if (!mesa_source_rows(reader->source, tile->at, tile->at + wanted, unit, &rows))
        return false;
    tile->first = rows.first;
    tile->stride = (ptrdiff_t)cycle->turn;
    if (tile->rows == 1) {
        tile->columns = rows.row;
    } else if (rows.row > cycle->turn || (takes_columns(cycle) && rows.stride != tile->stride)) {
        tile->rows = rows.row / cycle->turn;
    } else {
        tile->rows = rows.rows;
        tile->stride = rows.stride;
    }
    size_t found = mesa_tile_elements(tile);
    return found == wanted || found * mesa_dtype_bytes(cycle->dtype) >= LEAST_PIECE_BYTES;
}

struct mesa_tile mesa_tile_of_source(struct mesa_tile_reader *reader, size_t at, size_t end) {
    const struct mesa_cycle *cycle = reader->cycle;
    if (reader->last.at == at && mesa_tile_elements(&reader->last) == end - at)
        return reader->last;
    struct mesa_tile tile = mesa_tile_at(cycle, at, end);
    reader->last = tile;
    if (!find_rows(reader, &reader->last)) {
        tile.rows = mesa_smaller(tile.rows, most_rows(cycle));
        tile.columns = mesa_smaller(tile.columns, most_elements(cycle));
        tile.first = reader->scratch;
        tile.stride = (ptrdiff_t)cycle->turn;
        mesa_source_gather(reader->source, at, at + mesa_tile_elements(&tile), reader->scratch);
        reader->last = tile;
    }
    return reader->last;
}

/* ---- ranges ------------------------------------------------------------------------------------ */

void mesa_tile_start_ranges(size_t n, float *ret_lo, float *ret_hi) {
    for (size_t i = 0; i < n; i++) {
        ret_lo[i] = INFINITY;
        ret_hi[i] = -INFINITY;
    }
}

static bool range_columns(const struct mesa_cycle *cycle, const struct mesa_tile *tile, float *lo,
                          float *hi) {
    float least[MESA_TILE_GROUPS], most[MESA_TILE_GROUPS];
    mesa_tile_start_ranges(tile->columns, least, most);
    if (!mesa_kernels.affine_range_columns[cycle->dtype](tile->first, tile->rows, tile->columns,
                                                         least, most))
        return false;
    size_t next = first_columns(cycle, tile); /* first column of the next group */
    for (size_t i = 0; i < tile->columns; next += cycle->run, lo++, hi++)
        for (; i < next && i < tile->columns; i++) {
            *lo = least[i] < *lo ? least[i] : *lo;
            *hi = most[i] > *hi ? most[i] : *hi;
        }
    return true;
}

bool mesa_tile_range(const struct mesa_cycle *cycle, const struct mesa_tile *tile, float *lo,
                     float *hi) {
    if (takes_columns(cycle))
        return range_columns(cycle, tile, lo, hi);
    size_t bytes = mesa_dtype_bytes(cycle->dtype);
    struct mesa_affine_runs runs = {.runs = tile->rows, .stride = tile->stride};
    runs.run = first_columns(cycle, tile);
    for (size_t i = 0; i < tile->columns; lo++, hi++) {
        if (!mesa_kernels.affine_range[cycle->dtype](&runs, tile->first + i * bytes, lo, hi))
            return false;
        i += runs.run;
        runs.run = mesa_smaller(cycle->run, tile->columns - i);
    }
    return true;
}

/* ---- codes ------------------------------------------------------------------------------------- */

/* The words of the tile's columns, one each, into `ret_words` unless they stand like that. */
static const uint32_t *words_of_columns(const struct mesa_cycle *cycle,
                                        const struct mesa_tile *tile, const uint32_t *words,
                                        uint32_t *ret_words) {
    if (cycle->run == 1)
        return words;
    size_t next = first_columns(cycle, tile); /* first column of the next group */
    for (size_t i = 0; i < tile->columns; next += cycle->run, words++)
        for (; i < next && i < tile->columns; i++)
            ret_words[i] = *words;
    return ret_words;
}

/* There is no kernel that rounds stochastically with a given word: it is asked for rarely, and for
 * heads or channels hardly ever. The uniforms are those of the other grouping. */
static void quantize_stochastic(const struct mesa_plan *plan, const struct mesa_tile *tile,
                                size_t row, size_t column, uint32_t word,
                                struct mesa_code_bytes ret_codes) {
    size_t at = row * tile->columns + column;
    if (word == 0) {
        code_store(ret_codes, plan->bits, at, 0);
        return;
    }
    uint64_t element = tile->at + at;
    float uniform = affine_uniform(affine_key_of(plan->seed, element), (uint32_t)element);
    ptrdiff_t offset = (ptrdiff_t)row * tile->stride + (ptrdiff_t)column;
    const char *from = tile->first + offset * (ptrdiff_t)mesa_dtype_bytes(plan->dtype);
    code_store(ret_codes, plan->bits, at,
               affine_stochastic(element_load(plan->dtype, from, 0),
                                 affine_grid_of(word, plan->bits), plan->strict_sign, uniform));
}

static void quantize_tile_stochastic(const struct mesa_plan *plan, const struct mesa_cycle *cycle,
                                     const struct mesa_tile *tile, const uint32_t *words,
                                     struct mesa_code_bytes ret_codes) {
    size_t lead = tile->column % cycle->run;
    for (size_t row = 0; row < tile->rows; row++)
        for (size_t i = 0; i < tile->columns; i++)
            quantize_stochastic(plan, tile, row, i, words[(lead + i) / cycle->run], ret_codes);
}

void mesa_tile_quantize(const struct mesa_plan *plan, const struct mesa_cycle *cycle,
                        const struct mesa_tile *tile, const uint32_t *words,
                        struct mesa_code_bytes ret_codes) {
    if (plan->rounding == MESA_ROUND_STOCHASTIC) {
        quantize_tile_stochastic(plan, cycle, tile, words, ret_codes);
        return;
    }
    if (takes_columns(cycle)) {
        uint32_t scratch[MESA_TILE_GROUPS];
        mesa_kernels.affine_quantize_columns[plan->dtype](
            tile->first, tile->rows, tile->columns, words_of_columns(cycle, tile, words, scratch),
            plan->bits, plan->strict_sign, ret_codes);
        return;
    }
    size_t bytes = mesa_dtype_bytes(cycle->dtype);
    struct mesa_affine_runs runs = {
        .runs = tile->rows, .stride = tile->stride, .code_stride = cycle->turn};
    runs.run = first_columns(cycle, tile);
    for (size_t i = 0; i < tile->columns;) {
        mesa_kernels.affine_quantize[plan->dtype](&runs, tile->first + i * bytes, *words++,
                                                  plan->bits, plan->strict_sign,
                                                  codes_from(ret_codes, plan->bits, i));
        i += runs.run;
        runs.run = mesa_smaller(cycle->run, tile->columns - i);
    }
}

void mesa_tile_dequantize(const struct mesa_cycle *cycle, const struct mesa_tile *tile,
                          const uint32_t *words, struct mesa_code_bytes codes, unsigned bits,
                          void *ret_elements) {
    if (takes_columns(cycle)) {
        uint32_t scratch[MESA_TILE_GROUPS];
        mesa_kernels.affine_dequantize_columns[cycle->dtype](
            codes, bits, tile->rows, tile->columns, words_of_columns(cycle, tile, words, scratch),
            ret_elements);
        return;
    }
    size_t bytes = mesa_dtype_bytes(cycle->dtype);
    struct mesa_affine_runs runs = {
        .runs = tile->rows, .stride = (ptrdiff_t)cycle->turn, .code_stride = cycle->turn};
    runs.run = first_columns(cycle, tile);
    for (size_t i = 0; i < tile->columns;) {
        mesa_kernels.affine_dequantize[cycle->dtype](&runs, codes_from(codes, bits, i), bits,
                                                     *words++, (char *)ret_elements + i * bytes);
        i += runs.run;
        runs.run = mesa_smaller(cycle->run, tile->columns - i);
    }
}
