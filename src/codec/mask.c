/* One bit an element: a boolean, or a comparison of a real with bounds that the plan names.
 *
 * A boolean comes back as it was. Of a real tensor only the outcome of the comparison is held, so
 * decode() gives two stand-in values, one that passes the comparison and one that does not (1 and 0
 * where these will do): exact for an op whose backward asks nothing but that comparison, not for the
 * values. NaN counts as the predicate says and comes back as one of the two.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/mask.h"
#include "codec/kernels/element.h"
#include "codec/walk.h"

#include <math.h>
#include <string.h>

/* One element of any real dtype, by its bits. */
struct mask_value {
    unsigned char bytes[8];
};

static double clearly_above(double bound) {
    return bound + 1 + fabs(bound);
}

static double clearly_below(double bound) {
    return bound - 1 - fabs(bound);
}

/* A value that passes and one that does not, far enough from the bounds that an op may round these
 * to its own dtype first. A bound may be infinite. */
static void choose_stand_ins(const struct mesa_plan *plan, double *ret_inside,
                             double *ret_outside) {
    double lo = plan->lo, hi = plan->hi;
    *ret_inside = 1;
    *ret_outside = 0;
    switch (plan->predicate) {
    case MESA_ABOVE:
    case MESA_GREATER:
        if (!(0 <= lo && lo < 1)) {
            *ret_inside = isinf(lo) ? 0 : clearly_above(lo);
            *ret_outside = isinf(lo) ? lo : clearly_below(lo);
        }
        break;
    case MESA_BETWEEN:
    case MESA_WITHIN:
        *ret_inside = isinf(lo) ? clearly_below(hi) : isinf(hi) ? clearly_above(lo) : (lo + hi) / 2;
        *ret_outside = isinf(lo) ? clearly_above(hi) : clearly_below(lo);
        break;
    case MESA_NONZERO:
    case MESA_PREDICATE_COUNT:
        break;
    }
}

/* Turns `value` into an element. Returns whether that is finite and the comparison comes out as
 * wanted for it. */
static bool make_element(const struct mesa_plan *plan, double value, bool wanted,
                         struct mask_value *ret_element) {
    if (plan->dtype == MESA_F64)
        memcpy(ret_element->bytes, &value, sizeof value);
    else
        element_store(plan->dtype, ret_element->bytes, 0, (float)value);
    double stored = element_load_double(plan->dtype, ret_element->bytes, 0);
    return isfinite(stored) &&
           predicate_holds(plan->predicate, stored, plan->lo, plan->hi) == wanted;
}

/* False if the dtype has no two finite values that the comparison tells apart. */
static bool find_values(const struct mesa_plan *plan, struct mask_value *ret_inside,
                        struct mask_value *ret_outside) {
    double inside, outside;
    choose_stand_ins(plan, &inside, &outside);
    mesa_float_state state = mesa_float_state_enter();
    bool found = make_element(plan, inside, true, ret_inside) &&
                 make_element(plan, outside, false, ret_outside);
    mesa_float_state_leave(state);
    return found;
}

static size_t mask_bound_bytes(const struct mesa_plan *plan) {
    struct mask_value inside, outside;
    bool possible = plan->dtype == MESA_BOOL ||
                    (mesa_dtype_is_real(plan->dtype) && find_values(plan, &inside, &outside));
    return possible ? mesa_divide_up(plan->elements, 8) : 0;
}

struct mask {
    const struct mesa_plan *plan;
    uint8_t *bits;       /* encode */
    const uint8_t *held; /* decode, as the rest */
    char *elements;
    struct mask_value inside, outside;
    size_t element_bytes;
    bool stream;
};

static bool pack_window(void *context, const void *elements, size_t first, size_t n) {
    const struct mask *mask = context;
    const struct mesa_plan *plan = mask->plan;
    if (plan->dtype == MESA_BOOL)
        mesa_kernels.mask_pack_bool(elements, n, mask->bits + first / 8);
    else
        mesa_kernels.mask_pack[plan->dtype](elements, n, plan->predicate, plan->lo, plan->hi,
                                            mask->bits + first / 8);
    return true;
}

static enum mesa_status mask_encode(struct mesa_plan *plan, const struct mesa_source *source,
                                    mesa_parallel_for *parallel, void *held, size_t *ret_bytes) {
    struct mask mask = {.plan = plan, .bits = held};
    mesa_walk_source(source, parallel, pack_window, &mask);
    *ret_bytes = mesa_divide_up(plan->elements, 8);
    return MESA_OK;
}

static void unpack_elements(void *context, size_t begin, size_t end) {
    const struct mask *mask = context;
    const uint8_t *bits = mask->held + begin / 8;
    char *elements = mask->elements + begin * mask->element_bytes;
    if (mask->plan->dtype == MESA_BOOL)
        mesa_kernels.mask_unpack_bool(bits, end - begin, (uint8_t *)elements);
    else
        mesa_kernels.mask_unpack_two[mesa_log2_bytes(mask->element_bytes) - 1](
            bits, end - begin, mask->outside.bytes, mask->inside.bytes, mask->stream, elements);
}

static void mask_decode(const struct mesa_plan *plan, const void *held, mesa_parallel_for *parallel,
                        void *ret_elements) {
    size_t element_bytes = mesa_dtype_bytes(plan->dtype);
    struct mask mask = {
        .plan = plan,
        .held = held,
        .elements = ret_elements,
        .element_bytes = element_bytes,
        .stream = plan->elements * element_bytes > mesa_cache_bytes(),
    };
    if (plan->dtype != MESA_BOOL)
        find_values(plan, &mask.inside, &mask.outside);
    mesa_walk_result(plan->elements, element_bytes, parallel, unpack_elements, &mask);
}

const struct mesa_codec mesa_codec_mask = {
    .name = "mask",
    .exact = true,
    .bound_bytes = mask_bound_bytes,
    .encode = mask_encode,
    .decode = mask_decode,
};
