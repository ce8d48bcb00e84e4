/* Blocks that a slab of the arena is cut into, and lists of free ones by size. A block knows its own
 * size and that of the block before, so that neighbours are found in both directions. The lists are
 * two-level as in TLSF (Masmano et al., 2004): by power of two, each cut into eight, with a bit for
 * each that is not empty; finding a block is two bit scans.
 *
 * No locks, no system: the arena has them. Sizes count in units, header included. A block starts one
 * header before a multiple of the unit, so that the bytes behind its header are aligned.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_VAULT_BLOCK_H
#define MESA_VAULT_BLOCK_H

#include "vault/arena.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MESA_BLOCK_UNIT         ((size_t)MESA_ARENA_ALIGNMENT)
#define MESA_BLOCK_HEADER_BYTES ((size_t)16)
#define MESA_BLOCK_MOST_UNITS   ((uint32_t)1 << 22) /* a block has fewer */

enum mesa_block_state {
    MESA_BLOCK_END = 0x454e4421,   /* behind the last block of a slab; never free */
    MESA_BLOCK_FREE = 0x46524545,  /* in a list */
    MESA_BLOCK_USED = 0x55534544,  /* handed out, or in the hands of the thread that frees it */
    MESA_BLOCK_LARGE = 0x4c415247, /* not of a slab: a mapping of its own */
};

struct mesa_block {
    uint32_t units;
    uint32_t before_units; /* of the block before; 0 for the first of a slab */
    uint32_t state;        /* enum mesa_block_state */
    union {
        uint32_t dirty_units; /* free: how much of it may be resident, about */
        uint32_t used_units;  /* used: as handed out, without header */
    };
    /* In a list only; otherwise the bytes of the block begin here. */
    struct mesa_block *next, *previous;
};

static_assert(offsetof(struct mesa_block, next) == MESA_BLOCK_HEADER_BYTES,
              "the bytes follow the header");
static_assert(sizeof(struct mesa_block) <= MESA_BLOCK_UNIT, "a block of one unit can be free");

static inline void *mesa_block_bytes(struct mesa_block *block) {
    return (char *)block + MESA_BLOCK_HEADER_BYTES;
}

static inline struct mesa_block *mesa_block_of(void *bytes) {
    return (struct mesa_block *)(void *)((char *)bytes - MESA_BLOCK_HEADER_BYTES);
}

static inline struct mesa_block *mesa_block_behind(struct mesa_block *block) {
    return (struct mesa_block *)(void *)((char *)block + (size_t)block->units * MESA_BLOCK_UNIT);
}

static inline struct mesa_block *mesa_block_before(struct mesa_block *block) {
    return (struct mesa_block *)(void *)((char *)block -
                                         (size_t)block->before_units * MESA_BLOCK_UNIT);
}

static inline void mesa_block_set_units(struct mesa_block *block, uint32_t units) {
    block->units = units;
    mesa_block_behind(block)->before_units = units;
}

#define MESA_BLOCK_POWERS 20
#define MESA_BLOCK_CUTS   8

struct mesa_block_lists {
    struct mesa_block *lists[MESA_BLOCK_POWERS][MESA_BLOCK_CUTS];
    uint32_t powers;                  /* bit p: some list of power p is not empty */
    uint32_t cuts[MESA_BLOCK_POWERS]; /* bit c: list c of that power is not empty */
};

/* Sets the block's state to FREE and USED. */
void mesa_block_insert(struct mesa_block_lists *lists, struct mesa_block *block);
void mesa_block_remove(struct mesa_block_lists *lists, struct mesa_block *block);

/* A listed block of at least `units`, still listed. NULL if there is none: of the list in which
 * `units` itself falls only the first block is looked at, of larger ones any will do. */
struct mesa_block *mesa_block_find(const struct mesa_block_lists *lists, uint32_t units);

/* For checks: these walk. */
bool mesa_block_is_listed(const struct mesa_block_lists *lists, const struct mesa_block *block);
size_t mesa_block_count(const struct mesa_block_lists *lists);

#endif
