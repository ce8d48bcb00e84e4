/* Mappings that are kept and handed out again, and the memory of tensors: against a shadow model, with
 * a failing system, and by what the kernel says is resident.
 *
 * SPDX-License-Identifier: MIT */
#include "vault/arena.h"
#include "vault/mapping.h"
#include "vault/system.h"
#include "vault/tensor_memory.h"

#include "resident.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct mesa_mapping_totals totals(void) {
    struct mesa_mapping_totals result;
    mesa_mapping_totals(&result);
    return result;
}

/* ---- mappings ---------------------------------------------------------------------------------- */

Test(mapping, what_was_given_back_is_taken_again) {
    size_t bytes, again;
    char *at = mesa_mapping_take(3 * MIB + 1, &bytes);
    cr_assert(at != NULL && bytes >= 3 * MIB + 1);
    cr_assert(eq(u64, (uintptr_t)at % mesa_system_page_bytes(), 0));
    mesa_mapping_give(at, bytes);
    cr_assert(eq(sz, totals().kept_bytes, bytes));
    cr_assert(eq(ptr, mesa_mapping_take(3 * MIB + 1, &again), at));
    cr_assert(eq(sz, again, bytes));
    cr_assert(eq(sz, totals().kept_bytes, 0));
    mesa_mapping_give(at, bytes);

    /* A little less is served by it; much less, or more, is not. */
    char *less = mesa_mapping_take(3 * MIB - 200 * KIB, &again);
    cr_assert(eq(ptr, less, at));
    cr_assert(eq(sz, again, bytes)); /* all of it is to be given back */
    mesa_mapping_give(less, again);
    cr_assert(ne(ptr, mesa_mapping_take(2 * MIB, &again), at));
    cr_assert(ne(ptr, mesa_mapping_take(3 * MIB + 8 * KIB, &again), at));
}

Test(mapping, the_tightest_and_newest_is_taken) {
    static const size_t sizes[] = {1100 * KIB, 1024 * KIB, 1060 * KIB, 1024 * KIB};
    char *at[4];
    size_t bytes[4], again;
    for (int i = 0; i < 4; i++)
        at[i] = mesa_mapping_take(sizes[i], &bytes[i]);
    for (int i = 0; i < 4; i++)
        mesa_mapping_give(at[i], bytes[i]);
    static const int order[] = {3, 1, 2, 0};
    for (int i = 0; i < 4; i++)
        cr_assert(eq(ptr, mesa_mapping_take(1024 * KIB, &again), at[order[i]]));
}

Test(mapping, nothing_is_kept_beyond_the_bound) {
    enum { PIECES = 64 };
    char *at[PIECES];
    size_t bytes[PIECES], given = 0;
    for (int i = 0; i < PIECES; i++)
        at[i] = mesa_mapping_take(4 * MIB + (size_t)i * 4 * KIB, &bytes[i]);
    for (int i = 0; i < PIECES; i++) {
        mesa_mapping_give(at[i], bytes[i]);
        given += bytes[i];
        cr_assert(eq(sz, totals().kept_bytes, given)); /* all this was in use a moment ago */
    }
    for (int step = 0; step < 40; step++) {
        mesa_warm_step();
        mesa_mapping_trim();
        size_t most = mesa_warm_most();
        cr_assert(totals().kept_bytes <= most, "%zu of %zu", totals().kept_bytes, most);
        cr_assert(totals().kept_bytes + 5 * MIB > (given < most ? given : most));
    }
    cr_assert(totals().kept_bytes <= MESA_WARM_LEAST_BYTES);
    char *giant = mesa_mapping_take(80 * MIB, &bytes[0]);
    size_t kept = totals().kept_bytes;
    mesa_mapping_give(giant, bytes[0]);
    cr_assert(eq(sz, totals().kept_bytes, kept + bytes[0])); /* it does not drive out the others */
}

/* What is in use counts against what is kept: the oldest goes when there is more of that. */
Test(mapping, new_use_drives_out_what_is_kept) {
    size_t bytes[9];
    char *at[9];
    for (int i = 0; i < 8; i++)
        at[i] = mesa_mapping_take(64 * MIB, &bytes[i]);
    for (int i = 0; i < 8; i++)
        mesa_mapping_give(at[i], bytes[i]);
    cr_assert(eq(sz, totals().kept_bytes, 512 * MIB));
    at[8] = mesa_mapping_take(256 * MIB, &bytes[8]); /* of 512 and an eighth */
    cr_assert(eq(sz, totals().kept_bytes, 320 * MIB));
    for (int i = 0; i < 5; i++) {
        size_t again;
        cr_assert(eq(ptr, mesa_mapping_take(64 * MIB, &again), at[7 - i]));
    }
    mesa_mapping_give(at[8], bytes[8]);
}

/* More pieces than the table has rows, and what was offered to the system is still there. */
Test(mapping, many_pieces_and_offers) {
    enum { PIECES = 3000 };
    static char *at[PIECES];
    static size_t bytes[PIECES];
    for (int i = 0; i < PIECES; i++) {
        at[i] = mesa_mapping_take(8 * KIB, &bytes[i]);
        memset(at[i], 1, 8 * KIB);
    }
    for (int i = 0; i < PIECES; i++)
        mesa_mapping_give(at[i], bytes[i]);
    size_t kept = totals().kept_bytes;
    cr_assert(kept >= 7 * MIB && kept <= PIECES * 8 * KIB);
    mesa_mapping_offer();
    mesa_mapping_offer();
    cr_assert(eq(sz, totals().kept_bytes, kept));
    for (int i = 0; i < 100; i++) {
        at[i] = mesa_mapping_take(8 * KIB, &bytes[i]);
        memset(at[i], 2, 8 * KIB);
    }
    cr_assert(eq(sz, totals().kept_bytes, kept - 100 * 8 * KIB));
}

static bool out_of_memory;

static void *map_if_any(size_t bytes) {
    if (out_of_memory)
        return NULL;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

Test(mapping, without_memory_the_kept_still_serve) {
    size_t bytes;
    mesa_system_set(&(struct mesa_system){map_if_any, munmap, madvise});
    char *at = mesa_mapping_take(MIB, &bytes);
    mesa_mapping_give(at, bytes);
    out_of_memory = true;
    cr_assert(mesa_mapping_take(2 * MIB, &bytes) == NULL);
    cr_assert(eq(sz, totals().used_bytes, 0));
    cr_assert(eq(ptr, mesa_mapping_take(MIB, &bytes), at));
    cr_assert(mesa_mapping_take(SIZE_MAX, &bytes) == NULL);
    cr_assert(mesa_mapping_take(SIZE_MAX - 3 * MIB, &bytes) == NULL);
}

static size_t arena_used_bytes(void) {
    struct mesa_arena_totals result;
    mesa_arena_totals(&result);
    return result.used_bytes;
}

/* ---- tensors ----------------------------------------------------------------------------------- */

struct tensor {
    unsigned char *at;
    size_t bytes;
    unsigned char pattern;
};

static bool is_whole(const struct tensor *tensor) {
    for (size_t i = 0; i < tensor->bytes; i += 1021)
        if (tensor->at[i] != tensor->pattern)
            return false;
    return tensor->at[tensor->bytes - 1] == tensor->pattern;
}

Test(tensor_memory, random_calls_match_a_shadow_model) {
    enum { TENSORS = 60, STEPS = 4000 };
    static struct tensor tensors[TENSORS];
    for (int step = 0; step < STEPS; step++) {
        struct tensor *tensor = &tensors[random_below(TENSORS)];
        if (tensor->at != NULL) {
            cr_assert(is_whole(tensor));
            cr_assert(mesa_tensor_memory_free(tensor->at));
            cr_assert(not(mesa_tensor_memory_free(tensor->at))); /* it is nobody's now */
            tensor->at = NULL;
            continue;
        }
        tensor->bytes = MESA_TENSOR_MEMORY_LEAST_BYTES +
                        (random_below(4) != 0 ? random_below(600 * KIB) : random_below(5 * MIB));
        tensor->at = mesa_tensor_memory_alloc(tensor->bytes);
        cr_assert(tensor->at != NULL);
        cr_assert(eq(u64, (uintptr_t)tensor->at % 64, 0));
        cr_assert(mesa_tensor_memory_may_be(tensor->at));
        tensor->pattern = (unsigned char)random_below(256);
        memset(tensor->at, tensor->pattern, tensor->bytes);
    }
    for (int i = 0; i < TENSORS; i++)
        if (tensors[i].at != NULL)
            cr_assert(mesa_tensor_memory_free(tensors[i].at));
    mesa_tensor_memory_forget_recent();
    cr_assert(eq(sz, arena_used_bytes(), 0));
}

Test(tensor_memory, what_was_freed_last_comes_first) {
    enum { COUNT = 40 };
    const size_t bytes = MESA_TENSOR_MEMORY_LEAST_BYTES;
    void *tensors[COUNT];
    for (int i = 0; i < COUNT; i++)
        tensors[i] = mesa_tensor_memory_alloc(bytes);
    for (int i = 0; i < COUNT; i++)
        cr_assert(mesa_tensor_memory_free(tensors[i]));
    cr_assert(ne(ptr, mesa_tensor_memory_alloc(2 * bytes), tensors[COUNT - 1]));
    cr_assert(eq(ptr, mesa_tensor_memory_alloc(bytes), tensors[COUNT - 1]));
    cr_assert(eq(ptr, mesa_tensor_memory_alloc(bytes), tensors[COUNT - 2]));
    cr_assert(lt(sz, arena_used_bytes(), (size_t)16 << 20)); /* it does not keep all of them */
}

/* A tensor that is larger than all that may be kept goes straight back. */
Test(tensor_memory, large_ones_are_not_kept) {
    void *large = mesa_tensor_memory_alloc((size_t)40 << 20);
    cr_assert(mesa_tensor_memory_free(large));
    cr_assert(eq(sz, arena_used_bytes(), 0));
}

Test(tensor_memory, what_is_of_malloc_is_not_taken) {
    for (int i = 0; i < 200; i++) {
        void *at = NULL;
        cr_assert(eq(int, posix_memalign(&at, 64, 1 + random_below(300 * KIB)), 0));
        cr_assert(not(mesa_tensor_memory_free(at)));
        free(at);
    }
    /* An address as ours have them. */
    char *page = NULL;
    cr_assert(eq(int, posix_memalign((void **)&page, 4096, 8192), 0));
    cr_assert(mesa_tensor_memory_may_be(page + MESA_TENSOR_MEMORY_OFFSET));
    cr_assert(not(mesa_tensor_memory_free(page + MESA_TENSOR_MEMORY_OFFSET)));
    free(page);
    cr_assert(not(mesa_tensor_memory_free(NULL)));
}

/* A forward pass that packs: each tensor dies after the next one was made of it. */
Test(tensor_memory, dead_tensors_are_not_resident) {
    need_plain_memory();
    size_t before = resident_bytes();
    void *last = NULL;
    for (int layer = 0; layer < 200; layer++) {
        size_t bytes = MIB + random_below(8) * MIB / 2;
        void *next = mesa_tensor_memory_alloc(bytes);
        memset(next, 1, bytes);
        if (last != NULL)
            mesa_tensor_memory_free(last);
        last = next;
        cr_assert(resident_bytes() < before + 2 * 5 * MIB + MESA_WARM_LEAST_BYTES + MIB);
    }
}

/* ---- threads ----------------------------------------------------------------------------------- */

static void *churn(void *failed) {
    uint64_t state = (uintptr_t)&state;
    for (int i = 0; i < 3000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t bytes = MESA_TENSOR_MEMORY_LEAST_BYTES + (size_t)(state >> 40) % (512 * KIB);
        unsigned char *at = mesa_tensor_memory_alloc(bytes);
        at[0] = at[bytes - 1] = (unsigned char)i;
        if (at[0] != (unsigned char)i || !mesa_tensor_memory_free(at))
            *(bool *)failed = true;
    }
    return NULL;
}

Test(tensor_memory, threads_do_not_get_in_each_others_way) {
    pthread_t threads[4];
    bool failed[4] = {false};
    for (int i = 0; i < 4; i++)
        cr_assert(eq(int, pthread_create(&threads[i], NULL, churn, &failed[i]), 0));
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        cr_assert(not(failed[i]));
    }
    mesa_tensor_memory_forget_recent();
    cr_assert(eq(sz, arena_used_bytes(), 0));
}
