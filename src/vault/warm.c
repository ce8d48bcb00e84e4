/* Four counters; see warm.h.
 *
 * SPDX-License-Identifier: MIT */
#include "vault/warm.h"

#include <stdatomic.h>

/* Used and kept bytes together may exceed the high-water mark by this part of it, or by
 * MESA_WARM_LEAST_BYTES if that is more: at the peak itself, too, tensors come and go, and what is free
 * does not always fit. */
#define SLACK_PART 8

/* The high-water mark falls to that of the last step by this part of the difference. */
#define DECAY_PART 4

static _Atomic size_t used, kept;
static _Atomic size_t step_peak; /* of used, since the last step ended */
static _Atomic size_t high;

void mesa_warm_count_used(size_t more, size_t less) {
    size_t now = atomic_fetch_add_explicit(&used, more - less, memory_order_relaxed) + more - less;
    size_t peak = atomic_load_explicit(&step_peak, memory_order_relaxed);
    while (now > peak && more > less &&
           !atomic_compare_exchange_weak_explicit(&step_peak, &peak, now, memory_order_relaxed,
                                                  memory_order_relaxed))
        ;
}

void mesa_warm_count_kept(size_t more, size_t less) {
    atomic_fetch_add_explicit(&kept, more - less, memory_order_relaxed);
}

size_t mesa_warm_kept(void) {
    return atomic_load_explicit(&kept, memory_order_relaxed);
}

size_t mesa_warm_high(void) {
    size_t peak = atomic_load_explicit(&step_peak, memory_order_relaxed);
    size_t mark = atomic_load_explicit(&high, memory_order_relaxed);
    return mark < peak ? peak : mark;
}

size_t mesa_warm_most(void) {
    size_t mark = mesa_warm_high();
    size_t in_use = atomic_load_explicit(&used, memory_order_relaxed);
    if (mark < in_use)
        mark = in_use;
    size_t slack = mark / SLACK_PART;
    return mark - in_use + (slack > MESA_WARM_LEAST_BYTES ? slack : MESA_WARM_LEAST_BYTES);
}

void mesa_warm_step(void) {
    size_t in_use = atomic_load_explicit(&used, memory_order_relaxed);
    size_t peak = atomic_exchange_explicit(&step_peak, in_use, memory_order_relaxed);
    size_t mark = atomic_load_explicit(&high, memory_order_relaxed);
    mark = mark > peak ? mark - (mark - peak + DECAY_PART - 1) / DECAY_PART : peak;
    atomic_store_explicit(&high, mark, memory_order_relaxed);
}
