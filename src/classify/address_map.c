/* Writers of the address map. A table that is three quarters full is replaced by one twice as large;
 * the old one stays, because readers take no part in any protocol that would tell when it is unused.
 *
 * SPDX-License-Identifier: MIT */
#include "classify/address_map.h"

#include <stdlib.h>

enum { FIRST_LOG2 = 9 };

static void insert(struct mesa_address_table *table, uintptr_t address, void *value) {
    size_t mask = ((size_t)1 << (64 - table->shift)) - 1;
    size_t i = mesa_address_slot_of(address, table->shift);
    while (atomic_load_explicit(&table->slots[i].address, memory_order_relaxed) != 0)
        i = (i + 1) & mask;
    table->slots[i].value = value;
    atomic_store_explicit(&table->slots[i].address, address, memory_order_release);
}

/* Holds map->lock. */
static struct mesa_address_table *grow(struct mesa_address_map *map,
                                       struct mesa_address_table *old) {
    unsigned log2 = old ? 64 - old->shift + 1 : FIRST_LOG2;
    struct mesa_address_table *table = calloc(1, sizeof *table + (sizeof table->slots[0] << log2));
    if (!table)
        return NULL;
    table->older = old;
    table->shift = 64 - log2;
    for (size_t i = 0; old && i < (size_t)1 << (64 - old->shift); i++) {
        uintptr_t address = atomic_load_explicit(&old->slots[i].address, memory_order_relaxed);
        if (address != 0)
            insert(table, address, old->slots[i].value);
    }
    atomic_store_explicit(&map->table, table, memory_order_release);
    return table;
}

void *mesa_address_map_put(struct mesa_address_map *map, uintptr_t address, void *value) {
    pthread_mutex_lock(&map->lock);
    void *found = mesa_address_map_get(map, address);
    if (!found) {
        struct mesa_address_table *table = atomic_load_explicit(&map->table, memory_order_relaxed);
        if (!table || map->count >= ((size_t)3 << (64 - table->shift)) / 4)
            table = grow(map, table);
        if (table) {
            insert(table, address, value);
            map->count++;
            found = value;
        }
    }
    pthread_mutex_unlock(&map->lock);
    return found;
}
