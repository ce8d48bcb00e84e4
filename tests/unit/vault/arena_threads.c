/* Several threads in the arena at once, each checking its own bytes, some freeing what others
 * allocated; others in the memory of tensors, which comes from it. A plain program, as Criterion and the thread sanitizer do not go together.
 *
 * SPDX-License-Identifier: MIT */
#include "vault/arena.h"
#include "vault/tensor_memory.h"
#include "vault/warm.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 4
#define PIECES  40
#define STEPS   6000

/* What a piece holds in its first bytes: its size, also at its end. */
static void piece_sign(unsigned char *held, size_t bytes) {
    memcpy(held, &bytes, sizeof bytes);
    memcpy(held + bytes - sizeof bytes, &bytes, sizeof bytes);
}

static void piece_check(const unsigned char *held) {
    size_t bytes, at_end;
    memcpy(&bytes, held, sizeof bytes);
    memcpy(&at_end, held + bytes - sizeof bytes, sizeof at_end);
    if (bytes != at_end) {
        (void)fprintf(stderr, "arena_threads: a piece of %zu bytes was overwritten\n", bytes);
        exit(1);
    }
}

/* Pieces that one thread leaves and another takes. */
static _Atomic(unsigned char *) exchange[16];

static void *run(void *argument) {
    uint64_t random = (uintptr_t)argument;
    unsigned char *pieces[PIECES] = {NULL};
    for (int step = 0; step < STEPS; step++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t choice = (size_t)(random >> 33);
        unsigned char **piece = &pieces[choice % PIECES];
        if (*piece != NULL) {
            piece_check(*piece);
            mesa_arena_free(atomic_exchange(&exchange[choice / PIECES % 16], *piece));
            *piece = NULL;
            continue;
        }
        size_t shift = choice / PIECES % 17; /* 64 bytes to 4 MiB */
        size_t bytes = ((size_t)64 << shift) + choice % 1000;
        *piece = mesa_arena_alloc(bytes);
        if (*piece == NULL) {
            (void)fprintf(stderr, "arena_threads: no memory\n");
            exit(1);
        }
        piece_sign(*piece, bytes);
        if (choice % 3 == 0) {
            bytes -= bytes / 4;
            mesa_arena_shrink(*piece, bytes);
            piece_sign(*piece, bytes);
        }
        if (choice % 701 == 0) {
            mesa_warm_step();
            mesa_arena_trim();
        }
    }
    for (int i = 0; i < PIECES; i++)
        mesa_arena_free(pieces[i]);
    return NULL;
}

static _Atomic(unsigned char *) tensors[16];

static void *run_tensors(void *argument) {
    uint64_t random = (uintptr_t)argument;
    for (int step = 0; step < STEPS; step++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t choice = (size_t)(random >> 33);
        size_t bytes = MESA_TENSOR_MEMORY_LEAST_BYTES + choice % (1 << 20);
        unsigned char *tensor = mesa_tensor_memory_alloc(bytes);
        if (tensor == NULL)
            exit(1);
        piece_sign(tensor, bytes);
        tensor = atomic_exchange(&tensors[choice % 16], tensor);
        if (tensor == NULL)
            continue;
        piece_check(tensor);
        if (!mesa_tensor_memory_free(tensor)) {
            (void)fprintf(stderr, "arena_threads: a tensor is nobody's\n");
            exit(1);
        }
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, i % 2 == 0 ? run : run_tensors, (void *)(i + 1)) != 0)
            return 2;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 16; i++)
        mesa_arena_free(exchange[i]);
    for (int i = 0; i < 16; i++)
        (void)mesa_tensor_memory_free(tensors[i]);
    mesa_arena_trim();
    struct mesa_arena_totals totals;
    mesa_tensor_memory_forget_recent();
    mesa_arena_totals(&totals);
    if (totals.used_bytes != 0 || !mesa_arena_is_valid()) {
        (void)fprintf(stderr, "arena_threads: %zu bytes used at the end\n", totals.used_bytes);
        return 1;
    }
    return 0;
}
