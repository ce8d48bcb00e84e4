/* From a rule's settings and what the backward reads to the codecs worth trying, in order. Pure: one
 * decision for each (site, dtype), remembered by the caller.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_POLICY_CHOOSE_H
#define MESA_POLICY_CHOOSE_H

#include "classify/op.h"
#include "codec/codec.h"
#include "policy/policy.h"
#include "report/ledger.h"

#include <stdbool.h>

#define MESA_CANDIDATES 4

struct mesa_choice {
    struct mesa_settings settings;
    struct mesa_place place;
    /* Tried in order; the first that takes the values holds them. None left: kept, because of `kept`. */
    const struct mesa_codec *candidates[MESA_CANDIDATES];
    unsigned count;
    const struct mesa_codec *data_only; /* the candidate for the program's data alone; NULL: none */
    bool geometry;   /* nothing is held at all: the backward reads no value */
    bool signs_only; /* what is held serves a comparison with 0 only */
    bool keep_signs; /* zeros and signs must come back exactly */
    float widest; /* for struct mesa_plan */
    bool exact;      /* only ways that leave the gradient bit for bit as it is */
    bool off;        /* not even counted */
    enum mesa_predicate predicate;
    double lo, hi;
    enum mesa_kept kept;
};

/* `row` is NULL for custom and unknown ops. */
void mesa_policy_choose(const struct mesa_settings *settings, const struct mesa_place *place,
                        const struct mesa_op_argument *row, enum mesa_dtype dtype,
                        struct mesa_choice *ret_choice);

/* Does a comparison with these thresholds only ask for zeros and signs? */
bool mesa_predicate_is_sign(enum mesa_predicate predicate, double lo);

#endif
