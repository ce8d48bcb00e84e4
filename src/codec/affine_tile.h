/* Tiles: how elements whose groups take turns are handed to kernels. A tile has rows, each a turn of
 * the cycle, and the columns that belong to one group are its runs: a kernel call takes all of them.
 * A part of a turn is a tile of one row.
 *
 * Runs of a few elements (one, where channels are innermost) would cost a kernel call each. Of those
 * a tile is dense, and kernels take it column by column. Private to affine_cycle.c.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_AFFINE_TILE_H
#define MESA_CODEC_AFFINE_TILE_H

#include "codec/walk.h"

/* No tile has elements of more groups: what is kept for each of them fits the stack. */
#define MESA_TILE_GROUPS 2048

struct mesa_cycle {
    size_t run, turn, period; /* elements in a run, in a turn of the cycle, in a period */
    size_t groups_in_turn;
    enum mesa_dtype dtype;
};

/* In one period. */
struct mesa_tile {
    const char *first;    /* where its elements lie, see mesa_tile_of_source() */
    size_t at;            /* number of the first element in dense order */
    size_t group, column; /* of the first element; `column` is its place in its turn */
    size_t rows, columns; /* more than one row only if `columns` is all of a turn */
    ptrdiff_t stride;     /* elements from a row to the next */
};

static inline size_t mesa_tile_elements(const struct mesa_tile *tile) {
    return tile->rows * tile->columns;
}

/* How many groups have elements in it: `group` and those that follow. */
size_t mesa_tile_groups(const struct mesa_cycle *cycle, const struct mesa_tile *tile);

/* The first tile of elements [at, end). Where kernels take runs, one after the other, it is no larger
 * than MESA_SCRATCH_BYTES unless it is one row, so that it stays in the nearest cache.
 * `first` and `stride` are left out. */
struct mesa_tile mesa_tile_at(const struct mesa_cycle *cycle, size_t at, size_t end);

struct mesa_tile_reader {
    const struct mesa_cycle *cycle;
    const struct mesa_source *source;
    void *scratch;         /* MESA_SCRATCH_BYTES */
    struct mesa_tile last; /* zeros to start with */
};

/* The same, where it lies in the source or gathered into the scratch, which stays as it is until the
 * next call. May be shorter. */
struct mesa_tile mesa_tile_of_source(struct mesa_tile_reader *reader, size_t at, size_t end);

/* Ranges of nothing yet. */
void mesa_tile_start_ranges(size_t n, float *ret_lo, float *ret_hi);

/* Widens the ranges of the tile's groups. False if an element is not finite. */
bool mesa_tile_range(const struct mesa_cycle *cycle, const struct mesa_tile *tile, float *lo,
                     float *hi);

/* Codes in dense order from the tile's first on. words: of the tile's groups. */
void mesa_tile_quantize(const struct mesa_plan *plan, const struct mesa_cycle *cycle,
                        const struct mesa_tile *tile, const uint32_t *words,
                        struct mesa_code_bytes ret_codes);

/* Inverse; the elements are dense. */
void mesa_tile_dequantize(const struct mesa_cycle *cycle, const struct mesa_tile *tile,
                          const uint32_t *words, struct mesa_code_bytes codes, unsigned bits,
                          void *ret_elements);

#endif
