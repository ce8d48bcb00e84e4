/* The ledger: what was saved, as what, how it was held, and how many bytes that took and would have
 * taken. Everybody writes counters here; only the report reads them. Knows no other module but the
 * vocabulary (dtype.h).
 *
 * Any thread, no locks on the paths of saved tensors (atomic counters). Records live for ever.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_REPORT_LEDGER_H
#define MESA_REPORT_LEDGER_H

#include "dtype.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Why a tensor was left with the framework although it was large enough. */
enum mesa_kept {
    MESA_KEPT_NOT,        /* it was not kept */
    MESA_KEPT_POLICY,     /* the rule says keep */
    MESA_KEPT_PARAMETER,  /* a parameter or a view of one */
    MESA_KEPT_FROZEN,     /* a frozen weight, or a cast of a weight */
    MESA_KEPT_ALIVE,      /* its storage outlived its saves before */
    MESA_KEPT_UNKNOWN_OP, /* the op is not in the table */
    MESA_KEPT_EXACT,      /* the backward needs every bit and no exact way applies */
    MESA_KEPT_VALUES,     /* the codec declined these values */
    MESA_KEPT_LAYOUT,     /* overlapping or too many dims */
    MESA_KEPT_DTYPE,
    MESA_KEPT_NO_MEMORY,
    MESA_KEPT_LOOKED_AT, /* the program reads values that the backward pass does not */
    MESA_KEPT_HOOKED, /* the program has saved-tensor hooks of its own, or forbids any */
    MESA_KEPT_KIND,   /* not a plain dense tensor on the CPU */
    MESA_KEPT_COUNT,
};
const char *mesa_kept_text(enum mesa_kept why); /* "the policy says keep" ... */

/* Errors found by MESA_VERIFY at unpack, summed over elements. */
struct mesa_verify_sums {
    double error2, value2, dot, restored2; /* sums of squares and of products */
    double largest;                        /* largest |restored - original| */
    uint64_t elements, sign_flips, zero_changes;
};

/* One line of the report's table: all tensors of one op.argument, dtype and way. */
struct mesa_record {
    uint32_t index;
    /* const: owned by the ledger */
    const char *op, *argument, *way; /* way as the report shows it: "affine 8", "mask", "keep" */
    enum mesa_dtype dtype;
    enum mesa_kept kept; /* NOT unless way is "keep" */

    _Atomic uint64_t tensors;                /* saved since start */
    _Atomic uint64_t shared;                 /* of these, found already held (no new bytes) */
    _Atomic uint64_t elements;               /* held anew, summed */
    _Atomic uint64_t would_bytes_total;      /* new would-be bytes, summed over all saves */
    _Atomic uint64_t held_bytes_total;       /* new held bytes, summed */
    _Atomic int64_t would_bytes, held_bytes; /* at this moment */
    _Atomic int64_t would_bytes_peak, held_bytes_peak;
    _Atomic uint64_t pack_ns, unpack_ns;
    _Atomic uint64_t unpacks;
    _Atomic(struct mesa_verify_sums *) verify; /* NULL unless verified; under the ledger's lock */
};

/* Finds or makes the record; strings are copied. NULL if there is no memory. Takes a lock: callers
 * cache the result in their own site records. */
struct mesa_record *mesa_ledger_record(const char *op, const char *argument, enum mesa_dtype dtype,
                                       const char *way, enum mesa_kept kept);

/* In the calls below `record` may be NULL (no memory for it): then only the totals count.
 *
 * A tensor was saved. would_bytes: storage bytes that plain PyTorch would hold because of this save
 * and of no earlier one (0 if its storage is counted already or alive anyway); held_bytes: bytes of
 * ours that this save added (for kept tensors: would_bytes, since the framework holds them). */
void mesa_ledger_saved(struct mesa_record *record, uint64_t elements, uint64_t would_bytes,
                       uint64_t held_bytes, bool shared, uint64_t pack_ns);
/* An earlier save turned out to hold this many bytes more. */
void mesa_ledger_held(struct mesa_record *record, uint64_t bytes);
/* The same bytes are no longer held / would no longer be held. */
void mesa_ledger_released(struct mesa_record *record, uint64_t would_bytes, uint64_t held_bytes);
void mesa_ledger_unpacked(struct mesa_record *record, uint64_t unpack_ns);
void mesa_ledger_verified(struct mesa_record *record, const struct mesa_verify_sums *sums);
/* A consistent copy of record->verify; false if nothing was verified. Takes the lock. */
bool mesa_ledger_verify_sums(struct mesa_record *record, struct mesa_verify_sums *ret_sums);

/* Marks the end of a training step: closes one point of the time series. Steps are found by the
 * caller (held bytes went back to nothing) or marked by the program (mesa_step()). */
void mesa_ledger_step(void);

struct mesa_step_point {
    double seconds; /* since start */
    uint64_t would_bytes_peak, held_bytes_peak, would_bytes_end, held_bytes_end;
};

struct mesa_ledger_totals {
    int64_t would_bytes, held_bytes;
    int64_t would_bytes_peak, held_bytes_peak;
    uint64_t tensors, pack_ns, unpack_ns, steps;
    uint64_t declined_no_memory;
    uint64_t kept[MESA_KEPT_COUNT]; /* tensors kept, by reason */
    uint64_t steps_per_point;       /* of the time series: 1, 2, 4, ...; 0 before the first step */
};
void mesa_ledger_totals(struct mesa_ledger_totals *ret_totals);
/* A tensor was kept. Called for each, whether mesa_ledger_saved() is called for it as well (its bytes
 * count) or not (they are alive anyway, or there is no record). */
void mesa_ledger_count_kept(enum mesa_kept why);

/* Iterates: index from 0 until NULL. */
struct mesa_record *mesa_ledger_at(uint32_t index);
/* Copies up to `room` points, the latest ones; returns how many there are in all. The series keeps a
 * bounded number of points: when full, every second one is merged into its neighbour. */
size_t mesa_ledger_series(struct mesa_step_point *ret_points, size_t room);

/* Fork handlers; in the child the ledger starts empty (a worker did not train). */
void mesa_ledger_prefork(void);
void mesa_ledger_postfork_parent(void);
void mesa_ledger_postfork_child(void);

#endif
