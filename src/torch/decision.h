/* What is to be done with the saved tensors of one site and dtype: the policy's rules, read once.
 *
 * Threads: any; decisions are const once they are found, except for the atomics in them.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_DECISION_H
#define MESA_TORCH_DECISION_H

#include "classify/site.h"
#include "policy/choose.h"
#include "policy/policy.h"
#include "report/ledger.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* The decision for a save of that many bytes at a site; made if it is the first. NULL without memory. */
struct mesa_decision *mesa_decision_of(struct mesa_site *site, enum mesa_dtype dtype, size_t bytes);

/* A condition seen= holds from now on: an op has saved something, or MESA_FROZEN_WEIGHTS. */
void mesa_decision_see(const char *name);

/* A step has ended: occurrences (layers) are counted anew. */
void mesa_decision_step(void);

/* The record of the ledger for a row of decision->records, made on first use; NULL without memory. */
struct mesa_record *mesa_decision_record(struct mesa_decision *decision, unsigned row);

#endif
