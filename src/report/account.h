/* Everything that a report says, as plain numbers and strings: a snapshot of the ledger, or what was
 * read back from a JSON report. Both are rendered by the same code, so a report that is printed again
 * is the report that was printed at exit. Must not know any format.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_REPORT_ACCOUNT_H
#define MESA_REPORT_ACCOUNT_H

#include "report/ledger.h"
#include "report/report.h"

/* One record of the ledger, read once. */
struct mesa_account_row {
    const char *op, *argument, *way; /* borrowed from the ledger or the JSON tree */
    enum mesa_dtype dtype;
    enum mesa_kept kept;
    uint64_t tensors, shared, elements;
    uint64_t would_bytes_total, held_bytes_total;
    uint64_t would_bytes_peak, held_bytes_peak;
    uint64_t pack_ns, unpack_ns, unpacks;
    bool verified; /* then `sums` is of at least one element */
    struct mesa_verify_sums sums;
};

struct mesa_account {
    struct mesa_run run; /* strings borrowed; NULL where not known */
    char host[256];
    char written[32]; /* when: "2026-01-31T12:00:00Z" */
    long pid;
    unsigned rank;
    uint64_t peak_rss_bytes; /* 0 if unknown */
    struct mesa_ledger_totals totals;
    struct mesa_account_row *rows; /* owned; largest would-be peak first */
    size_t row_count;
    struct mesa_step_point *points; /* owned */
    size_t point_count;
};

/* False if there is no memory; then there is nothing to free. */
bool mesa_account_take(const struct mesa_run *run, struct mesa_account *ret_account);
/* Puts rows in the order in which reports show them. */
void mesa_account_sort(struct mesa_account *account);
void mesa_account_done(struct mesa_account *account);

/* Bits that held one value, on average over the run; negative if nothing was held anew. */
double mesa_account_bits(const struct mesa_account_row *row);

/* What sums of errors say. NaN where it cannot be said (no value but 0, or values not finite). */
struct mesa_account_errors {
    double relative; /* |restored - original| / |original|, both as vectors */
    double largest;
    double cosine; /* between original and restored */
};
struct mesa_account_errors mesa_account_errors(const struct mesa_verify_sums *sums);
/* Sums of all rows that were verified; false if there is none. */
bool mesa_account_all_sums(const struct mesa_account *account, struct mesa_verify_sums *ret_sums);

/* Of a training with many processes: RANK, else LOCAL_RANK, else 0. */
unsigned mesa_account_rank(void);

#endif
