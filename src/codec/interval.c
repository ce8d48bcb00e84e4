/* Where a real lies in relation to an interval: within, outside, or on one of its ends. For clamps,
 * whose backward compares with the bounds, with ends counted in by some versions of PyTorch and left
 * out by others.
 *
 * Two masks, of the closed interval and of the open one; where no element lies on an end they are the
 * same, and one of them is held. decode() gives a stand-in for each of the three: exact for an op whose
 * backward asks nothing else, not for the values. NaN counts as outside. An infinite end is none: the
 * interval goes on for ever there.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/element.h"
#include "codec/walk.h"

#include <math.h>
#include <string.h>

/* What plan->found holds. */
enum { FOUND_ENDS };

enum place { INSIDE, END, OUTSIDE, PLACES };

struct interval {
    const struct mesa_plan *plan;
    double open_lo, open_hi; /* a closed interval of the same dtype that leaves out the ends */
    unsigned char stand_in[PLACES][8];
    size_t element_bytes;
    uint8_t *closed, *open;     /* encode */
    const uint8_t *held_closed; /* decode, as the rest */
    const uint8_t *held_open;   /* NULL: nothing lies on an end */
    char *elements;
    bool stream;
};

/* The masks lie one behind the other, each from a cache line on. */
static size_t mask_bytes(const struct mesa_plan *plan) {
    return mesa_round_to_line(mesa_divide_up(plan->elements, 8));
}

/* The half formats are compared in float32, where they have neighbours that are closer still. */
static double next_inside(enum mesa_dtype dtype, double end, double towards) {
    if (isinf(end))
        return end;
    return dtype == MESA_F64 ? nextafter(end, towards)
                             : (double)nextafterf((float)end, (float)towards);
}

/* False unless `value` is finite in this dtype and lies where it should. */
static bool make_stand_in(struct interval *interval, enum place place, double value) {
    const struct mesa_plan *plan = interval->plan;
    unsigned char *element = interval->stand_in[place];
    if (plan->dtype == MESA_F64)
        memcpy(element, &value, sizeof value);
    else
        element_store(plan->dtype, element, 0, (float)value);
    double x = element_load_double(plan->dtype, element, 0);
    bool in_open = plan->lo < x && x < plan->hi;
    bool in_closed = plan->lo <= x && x <= plan->hi;
    return isfinite(x) && in_open == (place == INSIDE) && in_closed == (place != OUTSIDE);
}

/* Far enough from the ends that an op may round to its own dtype first. */
static bool make_stand_ins(struct interval *interval) {
    double lo = interval->plan->lo, hi = interval->plan->hi;
    if (!(lo < hi) || (isinf(lo) && isinf(hi)))
        return false;
    double below = lo - 1 - fabs(lo), above = lo + 1 + fabs(lo);
    if (isinf(lo)) {
        below = hi - 1 - fabs(hi);
        above = hi + 1 + fabs(hi);
    }
    double inside = isinf(lo) ? below : isinf(hi) ? above : lo / 2 + hi / 2;
    return make_stand_in(interval, INSIDE, inside) &&
           make_stand_in(interval, END, isinf(lo) ? hi : lo) &&
           make_stand_in(interval, OUTSIDE, isinf(lo) ? above : below);
}

/* False if the dtype has no elements to stand for the three. */
static bool prepare(struct interval *interval, const struct mesa_plan *plan) {
    *interval = (struct interval){.plan = plan, .element_bytes = mesa_dtype_bytes(plan->dtype)};
    mesa_float_state state = mesa_float_state_enter();
    bool possible = mesa_dtype_is_real(plan->dtype) && make_stand_ins(interval);
    if (possible) {
        interval->open_lo = next_inside(plan->dtype, plan->lo, INFINITY);
        interval->open_hi = next_inside(plan->dtype, plan->hi, -INFINITY);
    }
    mesa_float_state_leave(state);
    return possible;
}

static size_t interval_bound_bytes(const struct mesa_plan *plan) {
    struct interval interval;
    return prepare(&interval, plan) ? 2 * mask_bytes(plan) : 0;
}

static bool pack_window(void *context, const void *elements, size_t first, size_t n) {
    const struct interval *interval = context;
    const struct mesa_plan *plan = interval->plan;
    mesa_kernels.mask_pack[plan->dtype](elements, n, MESA_WITHIN, plan->lo, plan->hi,
                                        interval->closed + first / 8);
    mesa_kernels.mask_pack[plan->dtype](elements, n, MESA_WITHIN, interval->open_lo,
                                        interval->open_hi, interval->open + first / 8);
    return true;
}

static enum mesa_status interval_encode(struct mesa_plan *plan, const struct mesa_source *source,
                                        mesa_parallel_for *parallel, void *held,
                                        size_t *ret_bytes) {
    struct interval interval;
    if (!prepare(&interval, plan))
        return MESA_DECLINED;
    size_t bytes = mesa_divide_up(plan->elements, 8), second = mask_bytes(plan);
    interval.closed = held;
    interval.open = interval.closed + second;
    mesa_walk_source(source, parallel, pack_window, &interval);
    plan->found[FOUND_ENDS] = memcmp(interval.closed, interval.open, bytes) != 0;
    if (plan->found[FOUND_ENDS] != 0)
        memset(interval.closed + bytes, 0, second - bytes);
    *ret_bytes = plan->found[FOUND_ENDS] != 0 ? second + bytes : bytes;
    return MESA_OK;
}

static void put_ends(const struct interval *interval, size_t begin, size_t end) {
    size_t size = interval->element_bytes;
    for (size_t i = begin; i < end; i += 8) {
        unsigned ends = interval->held_closed[i / 8] ^ interval->held_open[i / 8];
        for (; ends != 0; ends &= ends - 1)
            memcpy(interval->elements + (i + (unsigned)__builtin_ctz(ends)) * size,
                   interval->stand_in[END], size);
    }
}

static void unpack_elements(void *context, size_t begin, size_t end) {
    const struct interval *interval = context;
    size_t size = interval->element_bytes;
    mesa_kernels.mask_unpack_two[mesa_log2_bytes(size) - 1](
        interval->held_closed + begin / 8, end - begin, interval->stand_in[OUTSIDE],
        interval->stand_in[INSIDE], interval->stream, interval->elements + begin * size);
    if (interval->held_open != NULL)
        put_ends(interval, begin, end);
}

static void interval_decode(const struct mesa_plan *plan, const void *held,
                            mesa_parallel_for *parallel, void *ret_elements) {
    struct interval interval;
    if (!prepare(&interval, plan))
        return; /* encode() has declined such a plan */
    bool has_ends = plan->found[FOUND_ENDS] != 0;
    interval.held_closed = held;
    interval.held_open = has_ends ? interval.held_closed + mask_bytes(plan) : NULL;
    interval.elements = ret_elements;
    /* Ends are written into elements that are still in the cache. */
    interval.stream = !has_ends && plan->elements * interval.element_bytes > mesa_cache_bytes();
    mesa_walk_result(plan->elements, interval.element_bytes, parallel, unpack_elements, &interval);
}

const struct mesa_codec mesa_codec_interval = {
    .name = "interval",
    .exact = true,
    .bound_bytes = interval_bound_bytes,
    .encode = interval_encode,
    .decode = interval_decode,
};
