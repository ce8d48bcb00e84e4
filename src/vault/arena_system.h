/* What the arena asks of the operating system, replaceable so that tests can let it fail, and a
 * walker that checks the arena's own order.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_VAULT_ARENA_SYSTEM_H
#define MESA_VAULT_ARENA_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>

/* As mmap of fresh private memory, munmap, madvise; 0 or a mapping on success. */
struct mesa_arena_system {
    void *(*map)(size_t bytes); /* NULL if there is no memory */
    int (*unmap)(void *at, size_t bytes);
    int (*advise)(void *at, size_t bytes, int advice);
};

/* Init and tests only: not while another thread is in the arena. NULL puts the default back. */
void mesa_arena_set_system(const struct mesa_arena_system *system);

/* Walks all slabs and free lists. Any thread; holds the lock while it walks. */
bool mesa_arena_is_valid(void);

#endif
