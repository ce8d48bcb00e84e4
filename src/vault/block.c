/* Lists of free blocks; see block.h.
 *
 * SPDX-License-Identifier: MIT */
#include "vault/block.h"

#define POWERS MESA_BLOCK_POWERS
#define CUTS   MESA_BLOCK_CUTS

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

static_assert(CUTS == 8, "place_of() takes three bits behind the first");
static_assert(MESA_BLOCK_MOST_UNITS == (uint32_t)1 << (POWERS + 2), "each block has a list");

void mesa_block_insert(struct mesa_block_lists *lists, struct mesa_block *block) {
    struct place place = place_of(block->units);
    struct mesa_block **list = &lists->lists[place.power][place.cut];
    block->state = MESA_BLOCK_FREE;
    block->previous = NULL;
    block->next = *list;
    if (*list != NULL)
        (*list)->previous = block;
    *list = block;
    lists->powers |= 1u << place.power;
    lists->cuts[place.power] |= 1u << place.cut;
}

void mesa_block_remove(struct mesa_block_lists *lists, struct mesa_block *block) {
    struct place place = place_of(block->units);
    struct mesa_block **list = &lists->lists[place.power][place.cut];
    if (block->previous != NULL)
        block->previous->next = block->next;
    else
        *list = block->next;
    if (block->next != NULL)
        block->next->previous = block->previous;
    if (*list == NULL)
        lists->cuts[place.power] &= ~(1u << place.cut);
    if (lists->cuts[place.power] == 0)
        lists->powers &= ~(1u << place.power);
    block->state = MESA_BLOCK_USED;
}

struct mesa_block *mesa_block_find(const struct mesa_block_lists *lists, uint32_t units) {
    struct place place = place_of(units);
    struct mesa_block *first = lists->lists[place.power][place.cut];
    if (first != NULL && first->units >= units)
        return first;
    uint32_t cuts = lists->cuts[place.power] & ~((2u << place.cut) - 1);
    if (cuts == 0) {
        uint32_t powers = lists->powers & ~((2u << place.power) - 1);
        if (powers == 0)
            return NULL;
        place.power = (unsigned)__builtin_ctz(powers);
        cuts = lists->cuts[place.power];
    }
    return lists->lists[place.power][__builtin_ctz(cuts)];
}

bool mesa_block_is_listed(const struct mesa_block_lists *lists, const struct mesa_block *block) {
    struct place place = place_of(block->units);
    const struct mesa_block *listed = lists->lists[place.power][place.cut];
    while (listed != NULL && listed != block)
        listed = listed->next;
    return listed == block && (lists->cuts[place.power] >> place.cut & 1) != 0 &&
           (lists->powers >> place.power & 1) != 0;
}

size_t mesa_block_count(const struct mesa_block_lists *lists) {
    size_t count = 0;
    for (unsigned power = 0; power < POWERS; power++)
        for (unsigned cut = 0; cut < CUTS; cut++)
            for (struct mesa_block *block = lists->lists[power][cut]; block != NULL;
                 block = block->next)
                count++;
    return count;
}
