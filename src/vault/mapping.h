/* Large pieces of memory, each a mapping of its own. What was given back a moment ago is kept for the
 * next request of about that size: a training step asks for the same sizes over and over, and memory
 * that is still mapped costs no page fault. How much is kept follows how much is in use, so that
 * resident memory follows it too. Knows bytes only.
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

/* Kept at most while little is in use. */
#define MESA_MAPPING_KEPT_BYTES ((size_t)32 << 20)

void mesa_mapping_totals(struct mesa_mapping_totals *ret_totals);

/* Fork handlers. */
void mesa_mapping_prefork(void);
void mesa_mapping_postfork_parent(void);
void mesa_mapping_postfork_child(void);

#endif
