/* Memory for held bytes, see arena.h. The one idea: what is free must not be resident.
 *
 * Large allocations are mappings of their own. Others come from slabs, aligned mappings of 8 MiB that
 * are cut into blocks. Each block has a header of 16 bytes with its own size and that of the block
 * before, so that neighbours which are free are joined at once. Free blocks are in lists by size,
 * two-level as in TLSF (Masmano et al., 2004): finding one is two bit scans. Where a free block has
 * more than a little memory that may be resident, that is given back to the system; a slab without
 * allocations is unmapped, but for two that are kept until mesa_arena_trim() so that a program at the
 * edge of a slab does not map and unmap all the time.
 *
 * One lock guards everything; the system is called without it, on blocks and mappings that the
 * calling thread has taken out of the lists first. Only mesa_arena_trim() holds it longer.
 *
 * SPDX-License-Identifier: MIT */
#include "vault/arena.h"
#include "vault/arena_system.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

/* Sizes of blocks count in units. A block starts one header before a multiple of the unit, so that
 * the bytes behind its header are aligned. */
#define UNIT         MESA_ARENA_ALIGNMENT
#define HEADER_BYTES 16
#define SLAB_BYTES   ((size_t)8 << 20)

/* From here on an allocation is a mapping of its own: large enough for huge pages, and in a slab it
 * would leave gaps that are hard to fill. */
#define LARGE_BYTES ((size_t)2 << 20)

/* A free block with so much memory that may be resident is given back. Less is not worth a system
 * call and the page faults when it is used again. */
#define DIRTY_BYTES ((size_t)64 << 10)

/* Empty slabs that are kept until mesa_arena_trim(). */
#define SPARE_SLABS 2

enum block_state {
    BLOCK_END = 0x454e4421,   /* behind the last block of a slab; never free */
    BLOCK_FREE = 0x46524545,  /* in a list */
    BLOCK_USED = 0x55534544,  /* handed out, or in the hands of the thread that frees it */
    BLOCK_LARGE = 0x4c415247, /* a mapping of its own */
};

struct block {
    uint32_t units;        /* header included */
    uint32_t before_units; /* of the block before; 0 for the first of a slab */
    uint32_t state;
    union {
        uint32_t dirty_units; /* free: how much of it may be resident, about */
        uint32_t used_units;  /* used: as handed out */
    };
    /* Free blocks only; of others the bytes begin here. */
    struct block *next, *previous;
};

static_assert(offsetof(struct block, next) == HEADER_BYTES, "the bytes follow the header");
static_assert(sizeof(struct block) <= UNIT, "a block of one unit can be free");

/* At the start of a slab; the first block's bytes start at the next unit but one. */
struct slab {
    struct slab *next, *previous;
    bool huge; /* still has huge pages: nothing of it was given back since it was mapped */
};

static_assert(sizeof(struct slab) <= 2 * UNIT - HEADER_BYTES, "the first block follows");

#define FIRST_BLOCK_AT (2 * UNIT - HEADER_BYTES)
#define SLAB_UNITS     ((uint32_t)((SLAB_BYTES - 2 * UNIT) / UNIT))
#define SLAB_END_AT    (FIRST_BLOCK_AT + (size_t)SLAB_UNITS * UNIT)

static_assert(SLAB_END_AT + HEADER_BYTES == SLAB_BYTES, "the end mark is the last thing in a slab");

/* At the start of a large mapping, before its header. */
struct large {
    size_t mapped_bytes, used_bytes;
};

#define LARGE_BYTES_AT UNIT

static_assert(sizeof(struct large) + HEADER_BYTES <= LARGE_BYTES_AT, "descriptor and header fit");

/* Lists by size: the power of two, cut into eight. */
#define POWERS 15
#define CUTS   8

static struct {
    pthread_mutex_t lock;
    struct block *lists[POWERS][CUTS];
    uint32_t powers;       /* bit p: some list of power p is not empty */
    uint32_t cuts[POWERS]; /* bit c: list c of that power is not empty */
    struct slab *slabs;
    unsigned empty_slabs;
    struct mesa_arena_totals totals;
} arena = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- system ------------------------------------------------------------------------------------ */

static void *map_memory(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static const struct mesa_arena_system real_system = {map_memory, munmap, madvise};
static struct mesa_arena_system os = {map_memory, munmap, madvise};

void mesa_arena_set_system(const struct mesa_arena_system *system) {
    os = system != NULL ? *system : real_system;
}

static size_t page_bytes(void) {
    static size_t bytes; /* the same whoever writes it */
    size_t known = __atomic_load_n(&bytes, __ATOMIC_RELAXED);
    if (known == 0) {
        known = (size_t)sysconf(_SC_PAGESIZE);
        __atomic_store_n(&bytes, known, __ATOMIC_RELAXED);
    }
    return known;
}

static uintptr_t round_up(uintptr_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* Where there are too many mappings for another cut, the address space is lost but not the memory. */
static void unmap_for_good(void *at, size_t bytes) {
    if (os.unmap(at, bytes) != 0)
        (void)os.advise(at, bytes, MADV_DONTNEED);
}

/* A mapping at a multiple of its size, cut out of one twice as long. */
static void *map_aligned(size_t bytes) {
    char *at = os.map(2 * bytes);
    if (at == NULL)
        return NULL;
    char *aligned = (char *)round_up((uintptr_t)at, bytes);
    size_t head = (size_t)(aligned - at);
    if (head > 0)
        unmap_for_good(at, head);
    if (head < bytes)
        unmap_for_good(aligned + bytes, bytes - head);
    return aligned;
}

/* ---- blocks ------------------------------------------------------------------------------------ */

static char *bytes_of(struct block *block) {
    return (char *)block + HEADER_BYTES;
}

static struct block *block_of(void *bytes) {
    return (struct block *)(void *)((char *)bytes - HEADER_BYTES);
}

static struct block *block_behind(struct block *block) {
    return (struct block *)(void *)((char *)block + (size_t)block->units * UNIT);
}

static struct block *block_before(struct block *block) {
    return (struct block *)(void *)((char *)block - (size_t)block->before_units * UNIT);
}

static struct slab *slab_of(struct block *block) {
    return (struct slab *)((uintptr_t)block / SLAB_BYTES * SLAB_BYTES);
}

static struct block *first_block(struct slab *slab) {
    return (struct block *)(void *)((char *)slab + FIRST_BLOCK_AT);
}

static uint32_t units_for(size_t bytes) {
    return (uint32_t)((bytes + HEADER_BYTES + UNIT - 1) / UNIT);
}

static uint32_t used_units(size_t bytes) {
    return (uint32_t)((bytes + UNIT - 1) / UNIT);
}

static void set_units(struct block *block, uint32_t units) {
    block->units = units;
    block_behind(block)->before_units = units;
}

/* ---- free lists (lock held) --------------------------------------------------------------------- */

struct place {
    unsigned power, cut;
};

/* List of blocks with `units`. Below CUTS each size has its own. */
static struct place place_of(uint32_t units) {
    if (units < CUTS)
        return (struct place){0, units};
    unsigned power = 31 - (unsigned)__builtin_clz(units);
    return (struct place){power - 2, units >> (power - 3) & (CUTS - 1)};
}

static_assert(SLAB_UNITS < 1u << (POWERS + 2), "the largest block has a list");

static void list_insert(struct block *block) {
    struct place place = place_of(block->units);
    struct block **list = &arena.lists[place.power][place.cut];
    block->state = BLOCK_FREE;
    block->previous = NULL;
    block->next = *list;
    if (*list != NULL)
        (*list)->previous = block;
    *list = block;
    arena.powers |= 1u << place.power;
    arena.cuts[place.power] |= 1u << place.cut;
    if (block->units == SLAB_UNITS)
        arena.empty_slabs++;
}

static void list_remove(struct block *block) {
    struct place place = place_of(block->units);
    struct block **list = &arena.lists[place.power][place.cut];
    if (block->previous != NULL)
        block->previous->next = block->next;
    else
        *list = block->next;
    if (block->next != NULL)
        block->next->previous = block->previous;
    if (*list == NULL)
        arena.cuts[place.power] &= ~(1u << place.cut);
    if (arena.cuts[place.power] == 0)
        arena.powers &= ~(1u << place.power);
    block->state = BLOCK_USED;
    if (block->units == SLAB_UNITS)
        arena.empty_slabs--;
}

/* A free block of at least `units`, taken out of its list. NULL if there is none: of the list in
 * which `units` itself falls only the first block is looked at, of larger ones any will do. */
static struct block *list_take(uint32_t units) {
    struct place place = place_of(units);
    struct block *block = arena.lists[place.power][place.cut];
    if (block == NULL || block->units < units) {
        uint32_t cuts = arena.cuts[place.power] & ~((2u << place.cut) - 1);
        if (cuts == 0) {
            uint32_t powers = arena.powers & ~((2u << place.power) - 1);
            if (powers == 0)
                return NULL;
            place.power = (unsigned)__builtin_ctz(powers);
            cuts = arena.cuts[place.power];
        }
        block = arena.lists[place.power][__builtin_ctz(cuts)];
    }
    list_remove(block);
    return block;
}

/* ---- slabs ------------------------------------------------------------------------------------- */

/* Lock held. */
static void count_mapped(size_t more, size_t less) {
    arena.totals.mapped_bytes += more - less;
    if (arena.totals.mapped_bytes > arena.totals.peak_mapped_bytes)
        arena.totals.peak_mapped_bytes = arena.totals.mapped_bytes;
}

/* A new slab's only block, as if just taken from a list. Called without the lock, returns with it.
 * Huge pages are asked for: a slab is filled from its start, so that only the last of them may be
 * used in part. */
static struct block *slab_create(void) {
    struct slab *slab = map_aligned(SLAB_BYTES);
    if (slab != NULL) {
        (void)os.advise(slab, SLAB_BYTES, MADV_HUGEPAGE);
        slab->huge = true;
    }
    pthread_mutex_lock(&arena.lock);
    if (slab == NULL)
        return NULL;
    slab->previous = NULL;
    slab->next = arena.slabs;
    if (arena.slabs != NULL)
        arena.slabs->previous = slab;
    arena.slabs = slab;
    count_mapped(SLAB_BYTES, 0);

    struct block *block = first_block(slab);
    block->before_units = 0;
    block->state = BLOCK_USED;
    block->dirty_units = 0;
    set_units(block, SLAB_UNITS);
    block_behind(block)->state = BLOCK_END;
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

/* Gives the memory of a block to the system that is neither in a list nor handed out. Its header, the
 * room for the links, and the next header stay. */
static void purge(struct block *block) {
    struct slab *slab = slab_of(block);
    uintptr_t begin = round_up((uintptr_t)(block + 1), page_bytes());
    uintptr_t end = (uintptr_t)block_behind(block) / page_bytes() * page_bytes();
    if (end <= begin)
        return;
    /* From now on in small pages, lest the system fill the gap again. Neighbours may do the same. */
    if (__atomic_exchange_n(&slab->huge, false, __ATOMIC_RELAXED))
        (void)os.advise(slab, SLAB_BYTES, MADV_NOHUGEPAGE);
    (void)os.advise((void *)begin, end - begin, MADV_DONTNEED);
}

/* Joins a block that is in no list with its free neighbours. Lock held. */
static struct block *join_neighbours(struct block *block) {
    struct block *behind = block_behind(block);
    if (behind->state == BLOCK_FREE) {
        list_remove(behind);
        block->dirty_units += behind->dirty_units;
        set_units(block, block->units + behind->units);
    }
    if (block->before_units != 0 && block_before(block)->state == BLOCK_FREE) {
        struct block *before = block_before(block);
        list_remove(before);
        before->dirty_units += block->dirty_units;
        set_units(before, before->units + block->units);
        return before;
    }
    return block;
}

/* Puts a block with `dirty_units` set back into the lists, or its slab back to the system. Lock held;
 * let go of while the system is called. */
static void release(struct block *block) {
    block = join_neighbours(block);
    bool empty = block->units == SLAB_UNITS;
    if (!empty && (size_t)block->dirty_units * UNIT >= DIRTY_BYTES) {
        pthread_mutex_unlock(&arena.lock);
        purge(block);
        pthread_mutex_lock(&arena.lock);
        block->dirty_units = 0;
        block = join_neighbours(block);
        empty = block->units == SLAB_UNITS;
    }
    if (!empty || arena.empty_slabs < SPARE_SLABS) {
        list_insert(block);
        return;
    }
    struct slab *slab = slab_of(block);
    slab_unlink(slab);
    pthread_mutex_unlock(&arena.lock);
    unmap_for_good(slab, SLAB_BYTES);
    pthread_mutex_lock(&arena.lock);
}

/* Cuts what is beyond `units` off a block that is in no list. NULL if nothing is. Lock held. */
static struct block *cut_tail(struct block *block, uint32_t units) {
    uint32_t left = block->units - units;
    if (left == 0)
        return NULL;
    set_units(block, units);
    struct block *tail = block_behind(block);
    tail->state = BLOCK_USED;
    set_units(tail, left);
    return tail;
}

static void *slab_alloc(size_t bytes) {
    uint32_t units = units_for(bytes);
    pthread_mutex_lock(&arena.lock);
    struct block *block = list_take(units);
    if (block == NULL) {
        pthread_mutex_unlock(&arena.lock);
        block = slab_create();
        if (block == NULL) {
            pthread_mutex_unlock(&arena.lock);
            return NULL;
        }
    }
    uint32_t dirty = block->dirty_units;
    struct block *tail = cut_tail(block, units);
    if (tail != NULL) { /* what is resident is most likely in front */
        tail->dirty_units = dirty > units ? dirty - units : 0;
        list_insert(tail);
    }
    block->used_units = used_units(bytes);
    arena.totals.used_bytes += (size_t)block->used_units * UNIT;
    pthread_mutex_unlock(&arena.lock);
    return bytes_of(block);
}

static void slab_shrink(struct block *block, size_t bytes) {
    pthread_mutex_lock(&arena.lock);
    assert(used_units(bytes) <= block->used_units);
    arena.totals.used_bytes -= (size_t)(block->used_units - used_units(bytes)) * UNIT;
    block->used_units = used_units(bytes);
    struct block *tail = cut_tail(block, units_for(bytes));
    if (tail != NULL) {
        /* Mostly not touched, and mostly handed out next: counted, given back with the next block
         * that is freed beside it. A tail as large as this may have been touched on purpose. */
        tail->dirty_units = tail->units;
        if ((size_t)tail->units * UNIT >= LARGE_BYTES / 2)
            release(tail);
        else
            list_insert(join_neighbours(tail));
    }
    pthread_mutex_unlock(&arena.lock);
}

static void slab_free(struct block *block) {
    pthread_mutex_lock(&arena.lock);
    arena.totals.used_bytes -= (size_t)block->used_units * UNIT;
    block->dirty_units = block->units;
    release(block);
    pthread_mutex_unlock(&arena.lock);
}

/* ---- mappings of their own ----------------------------------------------------------------------- */

static struct large *large_of(void *bytes) {
    return (struct large *)(void *)((char *)bytes - LARGE_BYTES_AT);
}

static size_t large_mapped_bytes(size_t bytes) {
    return round_up(LARGE_BYTES_AT + bytes, page_bytes());
}

static void *large_alloc(size_t bytes) {
    if (bytes > PTRDIFF_MAX / 2)
        return NULL;
    size_t mapped = large_mapped_bytes(bytes);
    struct large *large = os.map(mapped);
    if (large == NULL)
        return NULL;
    (void)os.advise(large, mapped, MADV_HUGEPAGE);
    void *held = (char *)large + LARGE_BYTES_AT;
    block_of(held)->state = BLOCK_LARGE;
    large->mapped_bytes = mapped;
    large->used_bytes = round_up(bytes, UNIT);
    pthread_mutex_lock(&arena.lock);
    arena.totals.used_bytes += large->used_bytes;
    count_mapped(mapped, 0);
    pthread_mutex_unlock(&arena.lock);
    return held;
}

/* The owner of the bytes is the only one who knows the mapping: the system is called without lock. */
static void large_shrink(void *held, size_t bytes) {
    struct large *large = large_of(held);
    size_t mapped = large_mapped_bytes(bytes), used = round_up(bytes, UNIT);
    size_t unmapped = large->mapped_bytes - mapped;
    if (unmapped > 0 && os.unmap((char *)large + mapped, unmapped) != 0) {
        (void)os.advise((char *)large + mapped, unmapped, MADV_DONTNEED);
        unmapped = 0; /* too many mappings: it stays, without memory */
    }
    size_t unused = large->used_bytes - used;
    large->mapped_bytes -= unmapped;
    large->used_bytes = used;
    pthread_mutex_lock(&arena.lock);
    arena.totals.used_bytes -= unused;
    count_mapped(0, unmapped);
    pthread_mutex_unlock(&arena.lock);
}

static void large_free(void *held) {
    struct large *large = large_of(held);
    size_t mapped = large->mapped_bytes, used = large->used_bytes;
    unmap_for_good(large, mapped);
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
    if (block_of(held)->state == BLOCK_LARGE)
        large_shrink(held, used);
    else
        slab_shrink(block_of(held), used);
}

void mesa_arena_free(void *held) {
    if (held == NULL)
        return;
    assert(block_of(held)->state == BLOCK_LARGE || block_of(held)->state == BLOCK_USED);
    if (block_of(held)->state == BLOCK_LARGE)
        large_free(held);
    else
        slab_free(block_of(held));
}

/* Unmaps what is empty and purges the free blocks of other slabs. The lock is held all the time: a
 * slab must not change while it is walked, and a step has just ended. */
void mesa_arena_trim(void) {
    pthread_mutex_lock(&arena.lock);
    for (struct slab *slab = arena.slabs, *next; slab != NULL; slab = next) {
        next = slab->next;
        struct block *block = first_block(slab);
        if (block->state == BLOCK_FREE && block->units == SLAB_UNITS) {
            list_remove(block);
            slab_unlink(slab);
            unmap_for_good(slab, SLAB_BYTES);
            continue;
        }
        for (; block->state != BLOCK_END; block = block_behind(block)) {
            if (block->state == BLOCK_FREE && (size_t)block->dirty_units * UNIT >= page_bytes()) {
                purge(block);
                block->dirty_units = 0;
            }
        }
    }
    pthread_mutex_unlock(&arena.lock);
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

static bool is_listed(const struct block *wanted) {
    struct place place = place_of(wanted->units);
    const struct block *block = arena.lists[place.power][place.cut];
    while (block != NULL && block != wanted)
        block = block->next;
    return block == wanted && (arena.cuts[place.power] >> place.cut & 1) != 0 &&
           (arena.powers >> place.power & 1) != 0;
}

static size_t count_listed(void) {
    size_t count = 0;
    for (unsigned power = 0; power < POWERS; power++)
        for (unsigned cut = 0; cut < CUTS; cut++)
            for (struct block *block = arena.lists[power][cut]; block != NULL; block = block->next)
                count++;
    return count;
}

static bool slab_is_valid(struct slab *slab, size_t *free_blocks, unsigned *empty_slabs) {
    struct block *block = first_block(slab);
    uint32_t before_units = 0;
    bool before_free = false;
    for (; block->state != BLOCK_END; block = block_behind(block)) {
        bool is_free = block->state == BLOCK_FREE;
        if ((!is_free && block->state != BLOCK_USED) || block->units == 0 ||
            block->before_units != before_units || (is_free && (before_free || !is_listed(block))))
            return false;
        *free_blocks += is_free;
        *empty_slabs += is_free && block->units == SLAB_UNITS;
        before_units = block->units;
        before_free = is_free;
    }
    return block->before_units == before_units && (char *)block == (char *)slab + SLAB_END_AT;
}

bool mesa_arena_is_valid(void) {
    size_t free_blocks = 0;
    unsigned empty_slabs = 0;
    bool valid = true;
    pthread_mutex_lock(&arena.lock);
    for (struct slab *slab = arena.slabs; slab != NULL && valid; slab = slab->next)
        valid = slab_is_valid(slab, &free_blocks, &empty_slabs);
    valid = valid && free_blocks == count_listed() && empty_slabs == arena.empty_slabs;
    pthread_mutex_unlock(&arena.lock);
    return valid;
}
