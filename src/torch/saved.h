/* What happens when autograd saves a tensor: find the site, ask the policy, share or encode, leave a
 * hook. This is where the modules meet.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_SAVED_H
#define MESA_TORCH_SAVED_H

#include "classify/site.h"
#include "policy/choose.h"
#include "policy/policy.h"
#include "torch/hook.h"

#include <stdatomic.h>
#include <stdbool.h>

/* How this process was told to work. const after start-up. */
struct mesa_config {
    const struct mesa_policy *policy;
    size_t min_bytes; /* smaller tensors are left alone */
    uint64_t seed;    /* of stochastic rounding */
    bool verify;      /* keep originals beside and compare */
    bool explain;     /* tell on stderr what is done at each site, once */
    bool checksums;   /* of held bytes, checked before they are decoded */
};
extern struct mesa_config mesa_config;

#define MESA_RECORD_SHARE     0
#define MESA_RECORD_SHAPE     1
#define MESA_RECORD_FIRST     2 /* candidate i at 2 + i */
#define MESA_RECORD_KEPT      (MESA_RECORD_FIRST + MESA_CANDIDATES)
#define MESA_DECISION_RECORDS (MESA_RECORD_KEPT + MESA_KEPT_COUNT)

/* What was decided for one site and dtype (and, with conditions on bytes or layers, one outcome of
 * the rules). Made once, lives for ever. */
struct mesa_decision {
    struct mesa_choice choice;
    const struct mesa_site *site;
    const struct mesa_op_argument *row; /* site->row, or refined for this call; may be NULL */
    struct mesa_op_argument refined;
    enum mesa_dtype dtype;
    size_t least_bytes, end_bytes; /* sizes that it holds for: from, up to */
    _Atomic uint32_t seen;         /* what the program had shown when it was last found to hold */
    struct mesa_decision *next;    /* another one at the same site and dtype */
    _Atomic(struct mesa_record *) records[MESA_DECISION_RECORDS];
    /* Constants (no grad_fn, no gradient) whose storage was alive, or dead, when their last save
     * ended: tells inputs and buffers from dropout's noise. */
    _Atomic uint32_t constants_outlived, constants_died;
    /* The program has read values that the backward pass does not: they are kept from then on. */
    _Atomic bool looked_at;
    _Atomic bool explained;
};

/* Threads may leave their saved tensors to the framework for a while. */
extern _Thread_local unsigned mesa_paused;

/* A SavedVariable was constructed (the framework's part is done). Only while ARMED. `tensor` is NULL
 * for an undefined one. */
void mesa_saved_constructed(void *saved, const struct mesa_tensor *tensor,
                            const struct mesa_save *save);

/* The last save in a storage is gone: what a step boundary is found by. */
void mesa_saved_ended(void);

/* Takes deaths of kept storages into account; called before totals are read. */
void mesa_saved_sweep(void);

/* The record of the ledger for a row of decision->records, made on first use; NULL without memory. */
struct mesa_record *mesa_decision_record(struct mesa_decision *decision, unsigned row);

#endif
