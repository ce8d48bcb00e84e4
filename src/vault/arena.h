/* Memory for held bytes: large blocks straight from the system, so that resident memory is that of the
 * held bytes. Fragmentation of the ordinary heap would keep a third of the saving.
 * Knows bytes only.
 *
 * Any thread may call anything here. Locks are held for bookkeeping only (never while bytes are
 * written), and fork() in any thread at any time leaves a usable arena in the child.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_VAULT_ARENA_H
#define MESA_VAULT_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MESA_ARENA_ALIGNMENT 64

struct mesa_arena_totals {
    size_t used_bytes;   /* handed out (after shrinks), rounded up to the alignment */
    size_t mapped_bytes; /* mapped from the system at this moment */
    size_t peak_mapped_bytes;
};

/* 64-byte aligned, at least `bytes` long, not zeroed; owned by the caller until
 * mesa_arena_free. NULL if there is no memory (or bytes is 0). */
void *mesa_arena_alloc(size_t bytes);

/* Gives back the tail of an allocation that turned out to need `used` (<= bytes given to alloc)
 * bytes only: touched or not, the tail no longer counts and may be handed out again. */
void mesa_arena_shrink(void *held, size_t used);

/* Takes NULL. */
void mesa_arena_free(void *held);

/* Called at the end of a step. What is free and may not be kept warm (warm.h) goes back to the system;
 * what may be kept, it can take when it runs out of memory. */
void mesa_arena_trim(void);

void mesa_arena_totals(struct mesa_arena_totals *ret_totals);

/* For tests: walks all slabs and free lists, under the lock. */
bool mesa_arena_is_valid(void);

/* Fork handlers. */
void mesa_arena_prefork(void);
void mesa_arena_postfork_parent(void);
void mesa_arena_postfork_child(void);

#endif
