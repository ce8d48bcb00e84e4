/* A table of the mappings that are handed out, since whoever frees one may as well free memory of
 * malloc's; see tensor_memory.h.
 *
 * SPDX-License-Identifier: MIT */
#include "vault/tensor_memory.h"

#include "vault/mapping.h"

#include <assert.h>
#include <pthread.h>

/* An insert that finds no memory must not end the process: uthash is told to leave the element out. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

/* At the start of a mapping. */
struct piece {
    void *tensor; /* key: what was handed out */
    size_t bytes; /* mapped */
    UT_hash_handle hh;
};

static_assert(sizeof(struct piece) <= MESA_TENSOR_MEMORY_OFFSET, "the record is in front");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct piece *pieces; /* under lock */

void *mesa_tensor_memory_alloc(size_t bytes) {
    if (bytes > SIZE_MAX - MESA_TENSOR_MEMORY_OFFSET)
        return NULL;
    size_t mapped;
    struct piece *piece = mesa_mapping_take(MESA_TENSOR_MEMORY_OFFSET + bytes, &mapped);
    if (piece == NULL)
        return NULL;
    piece->tensor = (char *)piece + MESA_TENSOR_MEMORY_OFFSET;
    piece->bytes = mapped;
    pthread_mutex_lock(&lock);
    HASH_ADD_PTR(pieces, tensor, piece);
    bool listed = piece->hh.tbl != NULL;
    pthread_mutex_unlock(&lock);
    if (!listed) { /* uthash found no memory */
        mesa_mapping_give(piece, mapped);
        return NULL;
    }
    return (char *)piece + MESA_TENSOR_MEMORY_OFFSET;
}

bool mesa_tensor_memory_free(void *at) {
    struct piece *piece = NULL;
    if (!mesa_tensor_memory_may_be(at))
        return false;
    pthread_mutex_lock(&lock);
    HASH_FIND_PTR(pieces, &at, piece);
    if (piece != NULL)
        HASH_DEL(pieces, piece);
    pthread_mutex_unlock(&lock);
    if (piece == NULL)
        return false;
    mesa_mapping_give(piece, piece->bytes);
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
