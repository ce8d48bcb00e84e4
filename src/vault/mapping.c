/* The pieces that are kept, in a table that is searched from end to end: they are few and large; see
 * mapping.h.
 *
 * SPDX-License-Identifier: MIT */
#include "vault/mapping.h"

#include "vault/system.h"
#include "vault/warm.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

/* A kept piece may be larger than the request by this part of it. */
#define WASTED_PART 8

#define KEPT_PIECES 1024

/* Not in the pieces themselves: the system may take their memory at any time (mesa_mapping_offer). */
struct kept {
    void *at;
    size_t bytes;
    uint64_t age; /* pieces that were given back before it */
    bool offered;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Under lock. */
static struct kept kept[KEPT_PIECES];
static size_t kept_count;
static uint64_t given;
static struct mesa_mapping_totals totals;

/* ---- table (lock held) -------------------------------------------------------------------------- */

static void insert(const struct kept *piece) {
    kept[kept_count++] = *piece;
    totals.kept_bytes += piece->bytes;
    mesa_warm_count_kept(piece->bytes, 0);
}

static struct kept take_out(size_t index) {
    struct kept piece = kept[index];
    kept[index] = kept[--kept_count];
    totals.kept_bytes -= piece.bytes;
    mesa_warm_count_kept(0, piece.bytes);
    return piece;
}

/* The tightest fit, and of equals the newest: most likely it is still in a cache. KEPT_PIECES if there
 * is none. */
static size_t find(size_t bytes) {
    size_t most = bytes + bytes / WASTED_PART, best = KEPT_PIECES;
    for (size_t i = 0; i < kept_count; i++) {
        if (kept[i].bytes < bytes || kept[i].bytes > most)
            continue;
        if (best == KEPT_PIECES || kept[i].bytes < kept[best].bytes ||
            (kept[i].bytes == kept[best].bytes && kept[i].age > kept[best].age))
            best = i;
    }
    return best;
}

static size_t oldest(void) {
    size_t index = 0;
    for (size_t i = 1; i < kept_count; i++)
        if (kept[i].age < kept[index].age)
            index = i;
    return index;
}

/* Unmaps the oldest until `most` bytes may be kept, here and elsewhere. Lock held; let go of meanwhile. */
static void unmap_beyond(size_t most) {
    while (kept_count > 0 && (kept_count == KEPT_PIECES || mesa_warm_kept() > most)) {
        struct kept piece = take_out(oldest());
        pthread_mutex_unlock(&lock);
        mesa_system_unmap(piece.at, piece.bytes);
        pthread_mutex_lock(&lock);
    }
}

/* ---- interface --------------------------------------------------------------------------------- */

void *mesa_mapping_take(size_t bytes, size_t *ret_bytes) {
    if (bytes > PTRDIFF_MAX / 2)
        return NULL;
    bytes = mesa_round_up(bytes, mesa_system_page_bytes());
    void *at = NULL;
    pthread_mutex_lock(&lock);
    size_t index = find(bytes);
    if (index != KEPT_PIECES) {
        bytes = kept[index].bytes;
        at = take_out(index).at;
    }
    totals.used_bytes += bytes;
    mesa_warm_count_used(bytes, 0);
    if (at == NULL)
        unmap_beyond(mesa_warm_most());
    pthread_mutex_unlock(&lock);
    if (at == NULL)
        at = mesa_system_map(bytes, mesa_system_page_bytes());
    if (at == NULL) {
        pthread_mutex_lock(&lock);
        totals.used_bytes -= bytes;
        mesa_warm_count_used(0, bytes);
        pthread_mutex_unlock(&lock);
    }
    *ret_bytes = bytes;
    return at;
}

void mesa_mapping_give(void *at, size_t bytes) {
    pthread_mutex_lock(&lock);
    totals.used_bytes -= bytes;
    mesa_warm_count_used(0, bytes);
    insert(&(struct kept){.at = at, .bytes = bytes, .age = given++});
    unmap_beyond(mesa_warm_most());
    pthread_mutex_unlock(&lock);
}

void mesa_mapping_trim(void) {
    pthread_mutex_lock(&lock);
    unmap_beyond(mesa_warm_most());
    pthread_mutex_unlock(&lock);
}

/* From the end: whatever other threads do meanwhile, what is taken out and put back is behind. */
void mesa_mapping_offer(void) {
    pthread_mutex_lock(&lock);
    for (size_t i = kept_count; i-- > 0;) {
        if (i >= kept_count || kept[i].offered)
            continue;
        struct kept piece = take_out(i);
        pthread_mutex_unlock(&lock);
        mesa_system_advise(piece.at, piece.bytes, MADV_FREE);
        piece.offered = true;
        pthread_mutex_lock(&lock);
        unmap_beyond(SIZE_MAX); /* other threads may have filled the table */
        insert(&piece);
    }
    pthread_mutex_unlock(&lock);
}

void mesa_mapping_totals(struct mesa_mapping_totals *ret_totals) {
    pthread_mutex_lock(&lock);
    *ret_totals = totals;
    pthread_mutex_unlock(&lock);
}

/* ---- fork -------------------------------------------------------------------------------------- */

void mesa_mapping_prefork(void) {
    pthread_mutex_lock(&lock);
}

void mesa_mapping_postfork_parent(void) {
    pthread_mutex_unlock(&lock);
}

void mesa_mapping_postfork_child(void) {
    pthread_mutex_unlock(&lock);
}
