/* Pointers by address: what was put is found, in every table that the map grows through, and by readers
 * while it grows.
 *
 * SPDX-License-Identifier: MIT */
#include "classify/address_map.h"

#include <criterion/criterion.h>
#include <stdbool.h>

enum { ADDRESSES = 20000, READERS = 3 };

static struct mesa_address_map map = MESA_ADDRESS_MAP_INITIALIZER;
static int values[ADDRESSES];
static atomic_bool done;

/* As addresses of calls are: close together, some in other libraries, none 0. */
static uintptr_t address_of(size_t i) {
    return (uintptr_t)(i % 7 + 1) << 40 | (uintptr_t)(i * 13 + 5);
}

Test(address_map, an_empty_map_has_nothing) {
    cr_assert(mesa_address_map_get(&map, 1) == NULL);
}

Test(address_map, what_was_put_is_found) {
    for (size_t i = 0; i < ADDRESSES; i++) {
        cr_assert(mesa_address_map_get(&map, address_of(i)) == NULL);
        cr_assert(mesa_address_map_put(&map, address_of(i), &values[i]) == &values[i]);
        cr_assert(mesa_address_map_get(&map, address_of(i)) == &values[i]);
    }
    for (size_t i = 0; i < ADDRESSES; i++)
        cr_assert(mesa_address_map_get(&map, address_of(i)) == &values[i]);
    cr_assert(map.count == ADDRESSES);
    cr_assert(mesa_address_map_get(&map, address_of(ADDRESSES)) == NULL);
}

Test(address_map, the_first_value_stays) {
    mesa_address_map_put(&map, 77, &values[0]);
    cr_assert(mesa_address_map_put(&map, 77, &values[1]) == &values[0]);
    cr_assert(mesa_address_map_get(&map, 77) == &values[0]);
    cr_assert(map.count == 1);
}

/* Absent or right, never another's; once seen it stays. Returns NULL if so. */
static void *read_all_the_time(void *unused) {
    (void)unused;
    bool seen[ADDRESSES] = {false}, wrong = false;
    while (!atomic_load(&done) && !wrong) {
        for (size_t i = 0; i < ADDRESSES; i++) {
            void *found = mesa_address_map_get(&map, address_of(i));
            wrong = wrong || (found != NULL && found != &values[i]) || (found == NULL && seen[i]);
            seen[i] = found != NULL;
        }
    }
    return wrong ? values : NULL;
}

Test(address_map, readers_find_while_it_grows) {
    pthread_t readers[READERS];
    for (size_t i = 0; i < READERS; i++)
        cr_assert(pthread_create(&readers[i], NULL, read_all_the_time, NULL) == 0);
    for (size_t i = 0; i < ADDRESSES; i++)
        mesa_address_map_put(&map, address_of(i), &values[i]);
    atomic_store(&done, true);
    for (size_t i = 0; i < READERS; i++) {
        void *wrong;
        pthread_join(readers[i], &wrong);
        cr_assert(wrong == NULL);
    }
}
