/* Large pieces of memory, each a mapping of its own. What was given back a moment ago is kept for the
 * next request of about that size: a training step asks for the same sizes over and over, and memory
 * that is still mapped costs no page fault. No huge pages are asked for: giants may be tables of which only
 * a few rows are ever touched. How much may be kept is said by warm.h. Knows bytes only.
 *
 * Any thread may call anything here; no lock is held while the system is called.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_VAULT_MAPPING_H
#define MESA_VAULT_MAPPING_H

#include <stddef.h>

struct mesa_mapping_totals {
    size_t used_bytes; /* taken and not given back */
    size_t kept_bytes; /* given back and still mapped */
};

/* At least `bytes` (> 0), and at most an eighth more, at the start of a page; what it holds is
 * anything. Give back all of *ret_bytes. NULL if there is no memory. */
void *mesa_mapping_take(size_t bytes, size_t *ret_bytes);
void mesa_mapping_give(void *at, size_t bytes);

/* Gives the oldest of what is kept back to the system, as far as it may not be kept any more. */
void mesa_mapping_trim(void);

/* Lets the system take what is kept if it runs out of memory; until then it stays as it is. */
void mesa_mapping_offer(void);

void mesa_mapping_totals(struct mesa_mapping_totals *ret_totals);

/* Fork handlers. */
void mesa_mapping_prefork(void);
void mesa_mapping_postfork_parent(void);
void mesa_mapping_postfork_child(void);

#endif
