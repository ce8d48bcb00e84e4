/* What the vault asks of the operating system, replaceable so that tests can let it fail.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_VAULT_SYSTEM_H
#define MESA_VAULT_SYSTEM_H

#include <stddef.h>
#include <stdint.h>

/* As mmap of fresh private memory, munmap, madvise; 0 or a mapping on success. */
struct mesa_system {
    void *(*map)(size_t bytes); /* NULL if there is no memory */
    int (*unmap)(void *at, size_t bytes);
    int (*advise)(void *at, size_t bytes, int advice);
};

/* Init and tests only: not while another thread is in the vault. NULL puts the default back. */
void mesa_system_set(const struct mesa_system *system);

#define MESA_HUGE_PAGE_BYTES ((size_t)2 << 20)

size_t mesa_system_page_bytes(void);

/* A mapping at a multiple of `alignment` (a power of 2, at least a page). NULL without memory. */
void *mesa_system_map(size_t bytes, size_t alignment);

/* Where there are too many mappings for another cut, the address space is lost but not the memory. */
void mesa_system_unmap(void *at, size_t bytes);

/* A hint: whether it was taken is told nowhere. */
void mesa_system_advise(void *at, size_t bytes, int advice);

static inline uintptr_t mesa_round_up(uintptr_t n, size_t to) {
    return (n + to - 1) / to * to;
}

#endif
