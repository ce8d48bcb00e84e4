/* How much memory may stay mapped although nobody uses it. A training step asks for the same memory
 * over and over, and memory that is still mapped costs neither a page fault nor its zeroing, which
 * together take longer than encoding and decoding. So what is not in use may stay as long as both
 * together stay near the most that the last steps had in use: peak resident memory is that of the held
 * bytes and tensors themselves, and the process shrinks when its steps do.
 *
 * The arena and the mappings say here what they use and what they keep. Counts only: any thread may
 * call anything, there is no lock, and figures may be a moment old.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_VAULT_WARM_H
#define MESA_VAULT_WARM_H

#include <stdbool.h>
#include <stddef.h>

/* May always stay: not worth a system call. */
#define MESA_WARM_LEAST_BYTES ((size_t)32 << 20)

void mesa_warm_count_used(size_t more, size_t less);
void mesa_warm_count_kept(size_t more, size_t less);

/* The most that this step and the ones before had in use at the same time. */
size_t mesa_warm_high(void);

/* Bytes that may be kept at this moment, those that are kept included. */
size_t mesa_warm_most(void);
size_t mesa_warm_kept(void);

static inline bool mesa_warm_has_room(size_t bytes) {
    return mesa_warm_kept() + bytes <= mesa_warm_most();
}

/* A step ended: what it used at most counts for the next ones, less and less if they use less. */
void mesa_warm_step(void);

#endif
