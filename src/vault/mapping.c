/* The pieces that are kept, as a list in the order in which they were given back; see mapping.h.
 *
 * SPDX-License-Identifier: MIT */
#include "vault/mapping.h"

#include "vault/system.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

/* Kept at most: MESA_MAPPING_KEPT_BYTES, or this part of what is in use if that is more. */
#define KEPT_PART 4

/* A kept piece may be larger than the request by this part of it. */
#define WASTED_PART 8

/* Huge pages save most of the page faults. Not for giants: they may be tables of which only a few
 * rows are ever touched. */
#define HUGE_AT_MOST ((size_t)64 << 20)

/* At the start of a piece that is kept. */
struct kept {
    struct kept *newer, *older;
    size_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *newest, *oldest; /* under lock */
static struct mesa_mapping_totals totals;

static void *map(size_t bytes) {
    bool huge = bytes >= MESA_HUGE_PAGE_BYTES && bytes <= HUGE_AT_MOST;
    void *at = mesa_system_map(bytes, huge ? MESA_HUGE_PAGE_BYTES : mesa_system_page_bytes());
    if (at == NULL)
        return NULL;
    if (huge)
        mesa_system_advise(at, bytes, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
    else if (bytes < MESA_HUGE_PAGE_BYTES) /* one call instead of a fault for each page */
        mesa_system_advise(at, bytes, MADV_POPULATE_WRITE);
#endif
    return at;
}

/* ---- list (lock held) --------------------------------------------------------------------------- */

static void insert(struct kept *piece) {
    piece->newer = NULL;
    piece->older = newest;
    *(newest != NULL ? &newest->newer : &oldest) = piece;
    newest = piece;
    totals.kept_bytes += piece->bytes;
}

static void take_out(struct kept *piece) {
    *(piece->newer != NULL ? &piece->newer->older : &newest) = piece->older;
    *(piece->older != NULL ? &piece->older->newer : &oldest) = piece->newer;
    totals.kept_bytes -= piece->bytes;
}

/* The tightest fit, and of equals the newest: most likely it is still in a cache. */
static struct kept *find(size_t bytes) {
    size_t most = bytes + bytes / WASTED_PART;
    struct kept *best = NULL;
    for (struct kept *piece = newest; piece != NULL; piece = piece->older) {
        if (piece->bytes < bytes || piece->bytes > most || (best && piece->bytes >= best->bytes))
            continue;
        best = piece;
        if (best->bytes == bytes)
            break;
    }
    return best;
}

/* ---- interface --------------------------------------------------------------------------------- */

void *mesa_mapping_take(size_t bytes, size_t *ret_bytes) {
    if (bytes > PTRDIFF_MAX / 2)
        return NULL;
    bytes = mesa_round_up(bytes, mesa_system_page_bytes());
    pthread_mutex_lock(&lock);
    struct kept *piece = find(bytes);
    if (piece != NULL) {
        bytes = piece->bytes;
        take_out(piece);
    }
    totals.used_bytes += bytes;
    pthread_mutex_unlock(&lock);
    void *at = piece != NULL ? piece : map(bytes);
    if (at == NULL) {
        pthread_mutex_lock(&lock);
        totals.used_bytes -= bytes;
        pthread_mutex_unlock(&lock);
    }
    *ret_bytes = bytes;
    return at;
}

/* Unmaps the oldest pieces until at most `spare_bytes` are kept. Lock held; let go of meanwhile. */
static void unmap_beyond(size_t spare_bytes) {
    while (totals.kept_bytes > spare_bytes) {
        struct kept *piece = oldest;
        take_out(piece);
        pthread_mutex_unlock(&lock);
        mesa_system_unmap(piece, piece->bytes);
        pthread_mutex_lock(&lock);
    }
}

void mesa_mapping_give(void *at, size_t bytes) {
    struct kept *piece = at;
    pthread_mutex_lock(&lock);
    totals.used_bytes -= bytes;
    size_t part = totals.used_bytes / KEPT_PART;
    size_t most = part > MESA_MAPPING_KEPT_BYTES ? part : MESA_MAPPING_KEPT_BYTES;
    if (bytes > most) {
        pthread_mutex_unlock(&lock);
        mesa_system_unmap(at, bytes);
        return;
    }
    piece->bytes = bytes;
    insert(piece);
    unmap_beyond(most);
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
