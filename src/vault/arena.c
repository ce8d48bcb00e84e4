/* Memory for held bytes, see arena.h. The one idea: what is free is not resident, beyond what may be
 * kept warm (warm.h).
 *
 * Large allocations are mappings of their own (mapping.h). Others are blocks (block.h) of slabs,
 * aligned mappings of 32 MiB; neighbours that are free are joined at once. Beyond what may be kept, a
 * slab without allocations is unmapped, and of a free block in which more than a little memory may be
 * resident, that is given back to the system.
 *
 * One lock guards everything; the system is called without it, on blocks and mappings that the
 * calling thread has taken out of the lists first. Only mesa_arena_trim() holds it longer.
 *
 * SPDX-License-Identifier: MIT */
#include "vault/arena.h"
#include "vault/block.h"
#include "vault/mapping.h"
#include "vault/system.h"
#include "vault/warm.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>

#define SLAB_BYTES ((size_t)256 << 20)

/* From here on an allocation is a mapping of its own: large enough for huge pages, and in a slab it
 * would leave gaps that are hard to fill. */
#define LARGE_BYTES ((size_t)64 << 20)

/* A free block with so much memory that may be resident is given back. Less is not worth a system
 * call and the page faults when it is used again. */
#define DIRTY_BYTES ((size_t)64 << 10)

/* Huge pages are split for gaps in them only where so much more is kept than may be, and a part of what
 * may be: each small page costs as much as a huge one when it is wanted again. */
#define SPLIT_BYTES ((size_t)64 << 20)
#define SPLIT_PART  4

/* At the start of a slab; the first block's bytes start at the next unit but one. */
struct slab {
    struct slab *next, *previous;
};

static_assert(sizeof(struct slab) <= 2 * MESA_BLOCK_UNIT - MESA_BLOCK_HEADER_BYTES,
              "the first block follows");

#define FIRST_BLOCK_AT (2 * MESA_BLOCK_UNIT - MESA_BLOCK_HEADER_BYTES)
#define SLAB_UNITS     ((uint32_t)((SLAB_BYTES - 2 * MESA_BLOCK_UNIT) / MESA_BLOCK_UNIT))
#define SLAB_END_AT    (FIRST_BLOCK_AT + (size_t)SLAB_UNITS * MESA_BLOCK_UNIT)

static_assert(SLAB_UNITS < MESA_BLOCK_MOST_UNITS, "a free slab has a list");
static_assert(SLAB_END_AT + MESA_BLOCK_HEADER_BYTES == SLAB_BYTES,
              "the end mark is the last thing in a slab");

/* At the start of a large mapping, before its header. */
struct large {
    size_t mapped_bytes, used_bytes;
};

#define LARGE_BYTES_AT MESA_BLOCK_UNIT

static_assert(sizeof(struct large) + MESA_BLOCK_HEADER_BYTES <= LARGE_BYTES_AT,
              "descriptor and header fit");

static struct {
    pthread_mutex_t lock;
    struct mesa_block_lists free_blocks;
    struct slab *slabs;
    struct mesa_arena_totals totals;
} arena = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- blocks ------------------------------------------------------------------------------------ */

static struct slab *slab_of(struct mesa_block *block) {
    return (struct slab *)((uintptr_t)block / SLAB_BYTES * SLAB_BYTES);
}

static struct mesa_block *first_block(struct slab *slab) {
    return (struct mesa_block *)(void *)((char *)slab + FIRST_BLOCK_AT);
}

static uint32_t units_for(size_t bytes) {
    return (uint32_t)((bytes + MESA_BLOCK_HEADER_BYTES + MESA_BLOCK_UNIT - 1) / MESA_BLOCK_UNIT);
}

static uint32_t used_units(size_t bytes) {
    return (uint32_t)((bytes + MESA_BLOCK_UNIT - 1) / MESA_BLOCK_UNIT);
}

/* ---- free blocks (lock held) --------------------------------------------------------------------- */

static size_t dirty_bytes(const struct mesa_block *block) {
    return (size_t)block->dirty_units * MESA_BLOCK_UNIT;
}

static void block_insert(struct mesa_block *block) {
    mesa_block_insert(&arena.free_blocks, block);
    mesa_warm_count_kept(dirty_bytes(block), 0);
}

static void block_remove(struct mesa_block *block) {
    mesa_block_remove(&arena.free_blocks, block);
    mesa_warm_count_kept(0, dirty_bytes(block));
}

static struct mesa_block *block_take(uint32_t units) {
    struct mesa_block *block = mesa_block_find(&arena.free_blocks, units);
    if (block != NULL)
        block_remove(block);
    return block;
}

/* ---- slabs ------------------------------------------------------------------------------------- */

/* Lock held. */
static void count_used(size_t more, size_t less) {
    arena.totals.used_bytes += more - less;
    mesa_warm_count_used(more, less);
}

/* Lock held. */
static void count_mapped(size_t more, size_t less) {
    arena.totals.mapped_bytes += more - less;
    if (arena.totals.mapped_bytes > arena.totals.peak_mapped_bytes)
        arena.totals.peak_mapped_bytes = arena.totals.mapped_bytes;
}

/* A new slab's only block, in no list; NULL without memory. Called without the lock, returns with it.
 * Huge pages are asked for: a slab is filled from its start, so that only the last of them may be
 * used in part. */
static struct mesa_block *slab_create(void) {
    mesa_mapping_trim(); /* as much is in use from now on */
    struct slab *slab = mesa_system_map(SLAB_BYTES, SLAB_BYTES);
    if (slab != NULL)
        mesa_system_advise(slab, SLAB_BYTES, MADV_HUGEPAGE);
    pthread_mutex_lock(&arena.lock);
    if (slab == NULL)
        return NULL;
    slab->previous = NULL;
    slab->next = arena.slabs;
    if (arena.slabs != NULL)
        arena.slabs->previous = slab;
    arena.slabs = slab;
    count_mapped(SLAB_BYTES, 0);

    struct mesa_block *block = first_block(slab);
    block->before_units = 0;
    block->state = MESA_BLOCK_USED;
    block->dirty_units = 0;
    mesa_block_set_units(block, SLAB_UNITS);
    mesa_block_behind(block)->state = MESA_BLOCK_END;
    return block;
}

/* Lock held; the slab's only block is in no list. */
static void slab_unlink(struct slab *slab) {
    if (slab->previous != NULL)
        slab->previous->next = slab->next;
    else
        arena.slabs = slab->next;
    if (slab->next != NULL)
        slab->next->previous = slab->previous;
    count_mapped(0, SLAB_BYTES);
}

/* The whole pages of a block that is free or about to be, but for its first `skipped` bytes, its header,
 * the room for the links, and the next header. Returns their bytes, from *ret_at. */
static size_t pages_of(struct mesa_block *block, size_t skipped, size_t page_bytes, void **ret_at) {
    size_t least = sizeof *block > skipped ? sizeof *block : skipped;
    uintptr_t begin = mesa_round_up((uintptr_t)block + least, page_bytes);
    uintptr_t end = (uintptr_t)mesa_block_behind(block) / page_bytes * page_bytes;
    *ret_at = (void *)begin;
    return end > begin ? end - begin : 0;
}

/* Gives at least `bytes` that may be resident of a block to the system, which is neither in a list nor
 * handed out, or as much as there is: whole huge pages, or with `split` small ones. From its end:
 * requests are served from the front. */
static void purge(struct mesa_block *block, size_t bytes, bool split) {
    size_t page_bytes = split ? mesa_system_page_bytes() : MESA_HUGE_PAGE_BYTES;
    size_t dirty = dirty_bytes(block), left = dirty > bytes ? dirty - bytes : 0;
    void *at;
    size_t purged = pages_of(block, left / page_bytes * page_bytes, page_bytes, &at);
    if (purged == 0)
        return;
    mesa_system_advise(at, purged, MADV_DONTNEED);
    size_t before = (size_t)((char *)at - (char *)block);
    left = split ? left : before < dirty ? before : dirty;
    block->dirty_units = (uint32_t)(left / MESA_BLOCK_UNIT);
}

/* True if `kept` bytes are so many more than `most` that small pages are worth it. */
static bool must_split(size_t kept, size_t most) {
    return kept > most + SPLIT_BYTES && kept > most + most / SPLIT_PART;
}

/* Lets the system take the memory of a block if it needs some. Huge pages as a whole only. */
static void offer(struct mesa_block *block) {
    void *at;
    size_t bytes = pages_of(block, 0, MESA_HUGE_PAGE_BYTES, &at);
    if (bytes != 0)
        mesa_system_advise(at, bytes, MADV_FREE);
}

/* Joins a block that is in no list with its free neighbours. Lock held. */
static struct mesa_block *join_neighbours(struct mesa_block *block) {
    struct mesa_block *behind = mesa_block_behind(block);
    if (behind->state == MESA_BLOCK_FREE) {
        block_remove(behind);
        block->dirty_units += behind->dirty_units;
        mesa_block_set_units(block, block->units + behind->units);
    }
    if (block->before_units != 0 && mesa_block_before(block)->state == MESA_BLOCK_FREE) {
        struct mesa_block *before = mesa_block_before(block);
        block_remove(before);
        before->dirty_units += block->dirty_units;
        mesa_block_set_units(before, before->units + block->units);
        return before;
    }
    return block;
}

/* Puts a block with `dirty_units` set back into the lists, or its slab back to the system. Lock held;
 * let go of while the system is called. */
static void release(struct mesa_block *block) {
    block = join_neighbours(block);
    size_t wanted = mesa_warm_kept() + dirty_bytes(block), most = mesa_warm_most();
    bool may_stay = wanted <= most;
    if (!may_stay && block->units != SLAB_UNITS && dirty_bytes(block) >= DIRTY_BYTES) {
        pthread_mutex_unlock(&arena.lock);
        purge(block, wanted - most, must_split(wanted, most));
        pthread_mutex_lock(&arena.lock);
        block = join_neighbours(block);
    }
    if (block->units != SLAB_UNITS || may_stay) {
        block_insert(block);
        return;
    }
    struct slab *slab = slab_of(block);
    slab_unlink(slab);
    pthread_mutex_unlock(&arena.lock);
    mesa_system_unmap(slab, SLAB_BYTES);
    pthread_mutex_lock(&arena.lock);
}

/* Cuts what is beyond `units` off a block that is in no list. NULL if nothing is. Lock held. */
static struct mesa_block *cut_tail(struct mesa_block *block, uint32_t units) {
    uint32_t left = block->units - units;
    if (left == 0)
        return NULL;
    mesa_block_set_units(block, units);
    struct mesa_block *tail = mesa_block_behind(block);
    tail->state = MESA_BLOCK_USED;
    mesa_block_set_units(tail, left);
    return tail;
}

static void *slab_alloc(size_t bytes) {
    uint32_t units = units_for(bytes);
    pthread_mutex_lock(&arena.lock);
    struct mesa_block *block = block_take(units);
    if (block == NULL) {
        pthread_mutex_unlock(&arena.lock);
        block = slab_create();
        if (block == NULL) {
            pthread_mutex_unlock(&arena.lock);
            return NULL;
        }
    }
    uint32_t dirty = block->dirty_units;
    struct mesa_block *tail = cut_tail(block, units);
    if (tail != NULL) { /* what is resident is most likely in front */
        tail->dirty_units = dirty > units ? dirty - units : 0;
        block_insert(tail);
    }
    block->used_units = used_units(bytes);
    count_used((size_t)block->used_units * MESA_BLOCK_UNIT, 0);
    pthread_mutex_unlock(&arena.lock);
    return mesa_block_bytes(block);
}

static void slab_shrink(struct mesa_block *block, size_t bytes) {
    pthread_mutex_lock(&arena.lock);
    assert(used_units(bytes) <= block->used_units);
    count_used(0, (size_t)(block->used_units - used_units(bytes)) * MESA_BLOCK_UNIT);
    block->used_units = used_units(bytes);
    struct mesa_block *tail = cut_tail(block, units_for(bytes));
    if (tail != NULL) {
        /* Mostly not touched, and mostly handed out next: counted, given back with the next block
         * that is freed beside it. A tail as large as this may have been touched on purpose. */
        tail->dirty_units = tail->units;
        if ((size_t)tail->units * MESA_BLOCK_UNIT >= LARGE_BYTES / 2)
            release(tail);
        else
            block_insert(join_neighbours(tail));
    }
    pthread_mutex_unlock(&arena.lock);
}

static void slab_free(struct mesa_block *block) {
    pthread_mutex_lock(&arena.lock);
    count_used(0, (size_t)block->used_units * MESA_BLOCK_UNIT);
    block->dirty_units = block->units;
    release(block);
    pthread_mutex_unlock(&arena.lock);
}

/* ---- mappings of their own ----------------------------------------------------------------------- */

static struct large *large_of(void *bytes) {
    return (struct large *)(void *)((char *)bytes - LARGE_BYTES_AT);
}

static void *large_alloc(size_t bytes) {
    if (bytes > PTRDIFF_MAX / 2)
        return NULL;
    size_t mapped;
    struct large *large = mesa_mapping_take(LARGE_BYTES_AT + bytes, &mapped);
    if (large == NULL)
        return NULL;
    void *held = (char *)large + LARGE_BYTES_AT;
    mesa_block_of(held)->state = MESA_BLOCK_LARGE;
    large->mapped_bytes = mapped;
    large->used_bytes = mesa_round_up(bytes, MESA_BLOCK_UNIT);
    pthread_mutex_lock(&arena.lock);
    arena.totals.used_bytes += large->used_bytes;
    count_mapped(mapped, 0);
    pthread_mutex_unlock(&arena.lock);
    return held;
}

/* The tail's memory is given back, its addresses are not: the same size will be asked for again in
 * the next step. */
static void large_shrink(void *held, size_t bytes) {
    struct large *large = large_of(held);
    size_t used = mesa_round_up(bytes, MESA_BLOCK_UNIT), unused = large->used_bytes - used;
    size_t tail = mesa_round_up(LARGE_BYTES_AT + bytes, mesa_system_page_bytes());
    if (large->mapped_bytes - tail >= DIRTY_BYTES)
        mesa_system_advise((char *)large + tail, large->mapped_bytes - tail, MADV_DONTNEED);
    large->used_bytes = used;
    pthread_mutex_lock(&arena.lock);
    arena.totals.used_bytes -= unused;
    pthread_mutex_unlock(&arena.lock);
}

static void large_free(void *held) {
    struct large *large = large_of(held);
    size_t mapped = large->mapped_bytes, used = large->used_bytes;
    mesa_mapping_give(large, mapped);
    pthread_mutex_lock(&arena.lock);
    arena.totals.used_bytes -= used;
    count_mapped(0, mapped);
    pthread_mutex_unlock(&arena.lock);
}

/* ---- interface --------------------------------------------------------------------------------- */

void *mesa_arena_alloc(size_t bytes) {
    if (bytes == 0)
        return NULL;
    return bytes >= LARGE_BYTES ? large_alloc(bytes) : slab_alloc(bytes);
}

void mesa_arena_shrink(void *held, size_t used) {
    if (mesa_block_of(held)->state == MESA_BLOCK_LARGE)
        large_shrink(held, used);
    else
        slab_shrink(mesa_block_of(held), used);
}

void mesa_arena_free(void *held) {
    if (held == NULL)
        return;
    assert(mesa_block_of(held)->state == MESA_BLOCK_LARGE ||
           mesa_block_of(held)->state == MESA_BLOCK_USED);
    if (mesa_block_of(held)->state == MESA_BLOCK_LARGE)
        large_free(held);
    else
        slab_free(mesa_block_of(held));
}

static bool is_empty(struct slab *slab) {
    struct mesa_block *first = first_block(slab);
    return first->state == MESA_BLOCK_FREE && first->units == SLAB_UNITS;
}

/* Gives free memory of a slab to the system until no more is kept than may be. */
static void give_back(struct slab *slab, bool split) {
    size_t least = split ? mesa_system_page_bytes() : MESA_HUGE_PAGE_BYTES;
    for (struct mesa_block *block = first_block(slab);
         block->state != MESA_BLOCK_END && !mesa_warm_has_room(0);
         block = mesa_block_behind(block)) {
        size_t dirty = dirty_bytes(block), kept = mesa_warm_kept(), most = mesa_warm_most();
        if (block->state != MESA_BLOCK_FREE || dirty < least || kept <= most)
            continue;
        purge(block, kept - most, split);
        mesa_warm_count_kept(0, dirty - dirty_bytes(block));
    }
}

static void offer_free_blocks(struct slab *slab) {
    for (struct mesa_block *block = first_block(slab); block->state != MESA_BLOCK_END;
         block = mesa_block_behind(block))
        if (block->state == MESA_BLOCK_FREE && dirty_bytes(block) >= MESA_HUGE_PAGE_BYTES)
            offer(block);
}

static void unmap_if_too_much(struct slab *slab) {
    if (!is_empty(slab) || mesa_warm_has_room(0))
        return;
    block_remove(first_block(slab));
    slab_unlink(slab);
    mesa_system_unmap(slab, SLAB_BYTES);
}

/* From what costs least to what costs most when the memory is wanted again: empty slabs, whole huge
 * pages, parts of them. The lock is held all the time: a slab must not change while it is walked, and
 * a step has just ended. */
void mesa_arena_trim(void) {
    mesa_mapping_trim();
    pthread_mutex_lock(&arena.lock);
    for (struct slab *slab = arena.slabs, *next; slab != NULL; slab = next) {
        next = slab->next;
        unmap_if_too_much(slab);
    }
    for (struct slab *slab = arena.slabs; slab != NULL; slab = slab->next)
        give_back(slab, false);
    if (must_split(mesa_warm_kept(), mesa_warm_most()))
        for (struct slab *slab = arena.slabs; slab != NULL; slab = slab->next)
            give_back(slab, true);
    bool offers = mesa_warm_kept() > MESA_WARM_LEAST_BYTES;
    for (struct slab *slab = arena.slabs; slab != NULL && offers; slab = slab->next)
        offer_free_blocks(slab);
    pthread_mutex_unlock(&arena.lock);
    if (offers)
        mesa_mapping_offer();
}

void mesa_arena_totals(struct mesa_arena_totals *ret_totals) {
    pthread_mutex_lock(&arena.lock);
    *ret_totals = arena.totals;
    pthread_mutex_unlock(&arena.lock);
}

/* ---- fork -------------------------------------------------------------------------------------- */

/* A block that another thread was about to give back stays out of the child's lists: lost to the
 * child, as is whatever else that thread held. */
void mesa_arena_prefork(void) {
    pthread_mutex_lock(&arena.lock);
}

void mesa_arena_postfork_parent(void) {
    pthread_mutex_unlock(&arena.lock);
}

void mesa_arena_postfork_child(void) {
    pthread_mutex_unlock(&arena.lock);
}

/* ---- invariants -------------------------------------------------------------------------------- */

static bool slab_is_valid(struct slab *slab, size_t *free_blocks) {
    struct mesa_block *block = first_block(slab);
    uint32_t before_units = 0;
    bool before_free = false;
    for (; block->state != MESA_BLOCK_END; block = mesa_block_behind(block)) {
        bool is_free = block->state == MESA_BLOCK_FREE;
        if ((!is_free && block->state != MESA_BLOCK_USED) || block->units == 0 ||
            block->before_units != before_units ||
            (is_free && (before_free || !mesa_block_is_listed(&arena.free_blocks, block))))
            return false;
        *free_blocks += is_free;
        before_units = block->units;
        before_free = is_free;
    }
    return block->before_units == before_units && (char *)block == (char *)slab + SLAB_END_AT;
}

bool mesa_arena_is_valid(void) {
    size_t free_blocks = 0;
    bool valid = true;
    pthread_mutex_lock(&arena.lock);
    for (struct slab *slab = arena.slabs; slab != NULL && valid; slab = slab->next)
        valid = slab_is_valid(slab, &free_blocks);
    valid = valid && free_blocks == mesa_block_count(&arena.free_blocks);
    pthread_mutex_unlock(&arena.lock);
    return valid;
}
