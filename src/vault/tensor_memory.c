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
    size_t bytes; /* asked for */
    UT_hash_handle hh;
};

static_assert(sizeof(struct record) <= MESA_TENSOR_MEMORY_OFFSET, "the record is in front");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct record *records; /* under lock */

/* The tensors that were freed last, newest first, for the next ones of their size: the processor still
 * has them in its caches, while the hole that fits best may not have been touched for a whole step. No
 * more of them than such a cache holds. Under lock. */
#define RECENT_MOST  16
#define RECENT_BYTES ((size_t)16 << 20)
static struct record *recent[RECENT_MOST];
static unsigned recent_count;
static size_t recent_bytes;

static struct record *take_recent(unsigned i) {
    struct record *record = recent[i];
    recent_count--;
    recent_bytes -= record->bytes;
    for (; i < recent_count; i++)
        recent[i] = recent[i + 1];
    return record;
}

static struct record *find_recent(size_t bytes) {
    for (unsigned i = 0; i < recent_count; i++)
        if (recent[i]->bytes == bytes)
            return take_recent(i);
    return NULL;
}

/* Returns how many blocks the arena gets back for it: `record`'s own if it is too large to be kept, else
 * those that were freed first. */
static unsigned keep_recent(struct record *record, void *ret_dropped[RECENT_MOST]) {
    unsigned count = 0;
    if (record->bytes > RECENT_BYTES) {
        ret_dropped[count++] = record->held;
        return count;
    }
    while (recent_count == RECENT_MOST || recent_bytes + record->bytes > RECENT_BYTES)
        ret_dropped[count++] = take_recent(recent_count - 1)->held;
    for (unsigned i = recent_count++; i > 0; i--)
        recent[i] = recent[i - 1];
    recent[0] = record;
    recent_bytes += record->bytes;
    return count;
}

static struct record *new_record(size_t bytes) {
    size_t all = bytes + MESA_TENSOR_MEMORY_PAGE_BYTES + MESA_TENSOR_MEMORY_OFFSET;
    void *held = mesa_arena_alloc(all);
    if (held == NULL) {
        mesa_tensor_memory_forget_recent();
        held = mesa_arena_alloc(all);
    }
    if (held == NULL)
        return NULL;
    uintptr_t page = mesa_round_up((uintptr_t)held, MESA_TENSOR_MEMORY_PAGE_BYTES);
    struct record *record = (void *)page;
    record->tensor = (void *)(page + MESA_TENSOR_MEMORY_OFFSET);
    record->held = held;
    record->bytes = bytes;
    return record;
}

void *mesa_tensor_memory_alloc(size_t bytes) {
    if (bytes > SIZE_MAX - MESA_TENSOR_MEMORY_PAGE_BYTES - MESA_TENSOR_MEMORY_OFFSET)
        return NULL;
    pthread_mutex_lock(&lock);
    struct record *record = find_recent(bytes);
    if (record == NULL) {
        pthread_mutex_unlock(&lock);
        record = new_record(bytes);
        if (record == NULL)
            return NULL;
        pthread_mutex_lock(&lock);
    }
    HASH_ADD_PTR(records, tensor, record);
    bool listed = record->hh.tbl != NULL;
    pthread_mutex_unlock(&lock);
    if (!listed) { /* uthash found no memory */
        mesa_arena_free(record->held);
        return NULL;
    }
    return record->tensor;
}

bool mesa_tensor_memory_free(void *at) {
    struct record *record = NULL;
    void *dropped[RECENT_MOST];
    unsigned count = 0;
    if (!mesa_tensor_memory_may_be(at))
        return false;
    pthread_mutex_lock(&lock);
    HASH_FIND_PTR(records, &at, record);
    if (record != NULL) {
        HASH_DEL(records, record);
        count = keep_recent(record, dropped);
    }
    pthread_mutex_unlock(&lock);
    while (count > 0)
        mesa_arena_free(dropped[--count]);
    return record != NULL;
}

void mesa_tensor_memory_forget_recent(void) {
    void *dropped[RECENT_MOST];
    unsigned count = 0;
    pthread_mutex_lock(&lock);
    while (recent_count > 0)
        dropped[count++] = take_recent(recent_count - 1)->held;
    pthread_mutex_unlock(&lock);
    while (count > 0)
        mesa_arena_free(dropped[--count]);
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
