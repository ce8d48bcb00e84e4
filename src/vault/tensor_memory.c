/* A table of the tensors that are handed out, since whoever frees one may as well free memory of
 * malloc's; see tensor_memory.h.
 *
 * SPDX-License-Identifier: MIT */
#include "vault/tensor_memory.h"

#include "vault/arena.h"
#include "vault/system.h"

#include <assert.h>
#include <pthread.h>

/* An insert that finds no memory must not end the process: uthash is told to leave the element out. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

/* In front of a tensor. */
struct record {
    void *tensor; /* key: what was handed out */
    void *held;   /* the arena's: begins up to a page before */
    UT_hash_handle hh;
};

static_assert(sizeof(struct record) <= MESA_TENSOR_MEMORY_OFFSET, "the record is in front");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct record *records; /* under lock */

void *mesa_tensor_memory_alloc(size_t bytes) {
    size_t more = MESA_TENSOR_MEMORY_PAGE_BYTES + MESA_TENSOR_MEMORY_OFFSET;
    if (bytes > SIZE_MAX - more)
        return NULL;
    void *held = mesa_arena_alloc(bytes + more);
    if (held == NULL)
        return NULL;
    uintptr_t page = mesa_round_up((uintptr_t)held, MESA_TENSOR_MEMORY_PAGE_BYTES);
    struct record *record = (void *)page;
    record->tensor = (void *)(page + MESA_TENSOR_MEMORY_OFFSET);
    record->held = held;
    pthread_mutex_lock(&lock);
    HASH_ADD_PTR(records, tensor, record);
    bool listed = record->hh.tbl != NULL;
    pthread_mutex_unlock(&lock);
    if (!listed) { /* uthash found no memory */
        mesa_arena_free(held);
        return NULL;
    }
    return record->tensor;
}

bool mesa_tensor_memory_free(void *at) {
    struct record *record = NULL;
    if (!mesa_tensor_memory_may_be(at))
        return false;
    pthread_mutex_lock(&lock);
    HASH_FIND_PTR(records, &at, record);
    if (record != NULL)
        HASH_DEL(records, record);
    pthread_mutex_unlock(&lock);
    if (record == NULL)
        return false;
    mesa_arena_free(record->held);
    return true;
}

void mesa_tensor_memory_prefork(void) {
    pthread_mutex_lock(&lock);
}

void mesa_tensor_memory_postfork_parent(void) {
    pthread_mutex_unlock(&lock);
}

void mesa_tensor_memory_postfork_child(void) {
    pthread_mutex_unlock(&lock);
}
