/* Pointers by address, for places in the code: few, found all the time, never removed. A look-up takes
 * no lock and allocates nothing; writers take turns. What the map points to belongs to the caller.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CLASSIFY_ADDRESS_MAP_H
#define MESA_CLASSIFY_ADDRESS_MAP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct mesa_address_slot {
    _Atomic uintptr_t address; /* 0 = free; set after `value`, then both are const */
    void *value;
};

struct mesa_address_table {
    struct mesa_address_table *older; /* readers may still be in it: never freed */
    unsigned shift;                   /* 64 - log2 of the number of slots */
    struct mesa_address_slot slots[];
};

struct mesa_address_map {
    _Atomic(struct mesa_address_table *) table; /* NULL until the first insertion */
    pthread_mutex_t lock;                       /* of writers */
    size_t count;                               /* guarded by lock */
};
#define MESA_ADDRESS_MAP_INITIALIZER                                                               \
    { .lock = PTHREAD_MUTEX_INITIALIZER }

/* Any thread. The first slot to look at: addresses of code differ in their low bits. */
static inline size_t mesa_address_slot_of(uintptr_t address, unsigned shift) {
    return (size_t)(((uint64_t)address * UINT64_C(0x9E3779B97F4A7C15)) >> shift);
}

/* Any thread; inline because it is the hot path of every saved tensor. NULL if absent. */
static inline void *mesa_address_map_get(struct mesa_address_map *map, uintptr_t address) {
    struct mesa_address_table *table = atomic_load_explicit(&map->table, memory_order_acquire);
    if (!table)
        return NULL;
    size_t mask = ((size_t)1 << (64 - table->shift)) - 1;
    for (size_t i = mesa_address_slot_of(address, table->shift);; i = (i + 1) & mask) {
        uintptr_t found = atomic_load_explicit(&table->slots[i].address, memory_order_acquire);
        if (found == address)
            return table->slots[i].value;
        if (found == 0)
            return NULL; /* a quarter of the slots is always free */
    }
}

/* Any thread. Puts `value` unless the address is there already; returns what the map holds then, or
 * NULL if there is no memory. `address` is not 0. */
void *mesa_address_map_put(struct mesa_address_map *map, uintptr_t address, void *value);

#endif
