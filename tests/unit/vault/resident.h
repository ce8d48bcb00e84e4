/* What the tests of memory share: sizes by chance, and what the kernel says is resident.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TESTS_VAULT_RESIDENT_H
#define MESA_TESTS_VAULT_RESIDENT_H

#include "vault/warm.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static uint64_t random_state = 1;

static inline size_t random_below(size_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(random_state >> 20) % n;
}

/* The address sanitizer has resident memory of its own for all that is touched. */
static inline void need_plain_memory(void) {
#if defined(__SANITIZE_ADDRESS__)
    cr_skip_test("resident memory tells nothing under the address sanitizer");
#endif
}

/* Steps that use no more than is used now: what earlier ones used is forgotten. */
static inline void cool_down(void) {
    for (int step = 0; step < 100; step++)
        mesa_warm_step();
}

static inline size_t resident_bytes(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    size_t total = 0, resident = 0;
    cr_assert(file != NULL && fscanf(file, "%zu %zu", &total, &resident) == 2);
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

#endif
