/* How much may be kept, by what is and was in use.
 *
 * SPDX-License-Identifier: MIT */
#include "resident.h"

#define LEAST MESA_WARM_LEAST_BYTES

Test(warm, a_little_may_always_be_kept) {
    cr_assert(eq(sz, mesa_warm_most(), LEAST));
    mesa_warm_count_kept(LEAST - 1, 0);
    cr_assert(mesa_warm_has_room(1));
    cr_assert(not(mesa_warm_has_room(2)));
    mesa_warm_count_used(1000 * MIB, 0); /* at the peak itself: an eighth */
    cr_assert(eq(sz, mesa_warm_most(), 125 * MIB));
}

Test(warm, what_was_in_use_may_be_kept) {
    mesa_warm_count_used(800 * MIB, 0);
    mesa_warm_count_used(0, 600 * MIB);
    cr_assert(eq(sz, mesa_warm_most(), 700 * MIB));
    mesa_warm_step();
    cr_assert(eq(sz, mesa_warm_most(), 700 * MIB)); /* the next step will want it */
    mesa_warm_count_used(700 * MIB, 100 * MIB);
    cr_assert(eq(sz, mesa_warm_most(), 100 * MIB));
}

Test(warm, a_peak_is_forgotten_after_some_steps) {
    mesa_warm_count_used(800 * MIB, 0);
    mesa_warm_count_used(0, 800 * MIB);
    size_t last = mesa_warm_most();
    mesa_warm_step();
    for (int step = 0; step < 30; step++) {
        mesa_warm_count_used(80 * MIB, 0);
        mesa_warm_count_used(0, 80 * MIB);
        mesa_warm_step();
        cr_assert(mesa_warm_most() < last || step > 20);
        last = mesa_warm_most();
    }
    cr_assert(last >= 80 * MIB + LEAST && last < 81 * MIB + LEAST, "%zu", last);
}
