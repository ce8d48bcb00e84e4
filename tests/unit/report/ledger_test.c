/* The ledger's numbers against a plain model of them, and its behaviour at the edges: bounds, forks,
 * steps. Criterion runs each test in a process of its own, so every test starts with an empty ledger.
 *
 * SPDX-License-Identifier: MIT */
#include "report/ledger.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct mesa_record *record_of(const char *op) {
    return mesa_ledger_record(op, "self", MESA_F32, "affine 8", MESA_KEPT_NOT);
}

static struct mesa_ledger_totals totals_now(void) {
    struct mesa_ledger_totals totals;
    mesa_ledger_totals(&totals);
    return totals;
}

Test(ledger, gives_one_record_for_one_key) {
    struct mesa_record *record = record_of("gelu");
    cr_assert(ne(ptr, record, NULL));
    cr_assert(eq(ptr, record_of("gelu"), record));
    cr_assert(
        ne(ptr, mesa_ledger_record("gelu", "result", MESA_F32, "affine 8", MESA_KEPT_NOT), record));
    cr_assert(
        ne(ptr, mesa_ledger_record("gelu", "self", MESA_BF16, "affine 8", MESA_KEPT_NOT), record));
    cr_assert(
        ne(ptr, mesa_ledger_record("gelu", "self", MESA_F32, "affine 4", MESA_KEPT_NOT), record));
    cr_assert(ne(ptr, mesa_ledger_record("gelu", "self", MESA_F32, "affine 8", MESA_KEPT_POLICY),
                 record));
    cr_assert(
        ne(ptr, mesa_ledger_record("gelus", "elf", MESA_F32, "affine 8", MESA_KEPT_NOT), record));
    cr_assert(eq(ptr, mesa_ledger_at(0), record));
    cr_assert(ne(ptr, mesa_ledger_at(5), NULL));
    cr_assert(eq(ptr, mesa_ledger_at(6), NULL));
}

Test(ledger, copies_strings) {
    char op[] = "gelu", argument[] = "self", way[] = "mask";
    struct mesa_record *record = mesa_ledger_record(op, argument, MESA_BOOL, way, MESA_KEPT_NOT);
    memset(op, 'x', 4);
    memset(argument, 'x', 4);
    memset(way, 'x', 4);
    cr_assert(eq(str, (char *)record->op, "gelu"));
    cr_assert(eq(str, (char *)record->argument, "self"));
    cr_assert(eq(str, (char *)record->way, "mask"));
}

Test(ledger, keeps_addresses_while_it_grows) {
    enum { COUNT = 5000 };
    static struct mesa_record *records[COUNT];
    for (int i = 0; i < COUNT; i++) {
        char op[16];
        snprintf(op, sizeof op, "op%d", i);
        records[i] = record_of(op);
        cr_assert(eq(u32, records[i]->index, (uint32_t)i));
    }
    for (int i = 0; i < COUNT; i++)
        cr_assert(eq(ptr, mesa_ledger_at((uint32_t)i), records[i]));
}

Test(ledger, is_bounded) {
    struct mesa_record *record = NULL;
    int count = 0;
    do {
        char op[16];
        snprintf(op, sizeof op, "op%d", count++);
        record = record_of(op);
    } while (record != NULL && count < 1000000);
    cr_assert(eq(ptr, record, NULL));
    cr_assert(ne(ptr, record_of("op0"), NULL), "known records are still found");
}

/* Random saves and releases, followed by a model without atomics. */
Test(ledger, counts_as_a_model_does) {
    enum { RECORDS = 7, LIVE = 200, ROUNDS = 20000 };
    struct {
        struct mesa_record *record;
        uint64_t would, held;
    } live[LIVE] = {0};
    struct mesa_record *records[RECORDS];
    int64_t would = 0, held = 0, would_peak = 0, held_peak = 0;
    int64_t record_held[RECORDS] = {0}, record_peak[RECORDS] = {0};
    uint64_t tensors = 0, elements[RECORDS] = {0}, shared[RECORDS] = {0};
    srand(7);
    for (int i = 0; i < RECORDS; i++) {
        char op[16];
        snprintf(op, sizeof op, "op%d", i);
        records[i] = record_of(op);
    }
    for (int round = 0; round < ROUNDS; round++) {
        int at = rand() % LIVE, of = rand() % RECORDS;
        if (live[at].record != NULL) {
            mesa_ledger_released(live[at].record, live[at].would, live[at].held);
            would -= (int64_t)live[at].would;
            held -= (int64_t)live[at].held;
            record_held[live[at].record->index] -= (int64_t)live[at].held;
            live[at].record = NULL;
            continue;
        }
        bool is_shared = rand() % 4 == 0;
        live[at].record = records[of];
        live[at].would = is_shared ? 0 : (uint64_t)rand() % 100000;
        live[at].held = live[at].would / 4;
        mesa_ledger_saved(records[of], 10, live[at].would, live[at].held, is_shared, 3);
        tensors++;
        elements[of] += is_shared ? 0 : 10;
        shared[of] += is_shared;
        would += (int64_t)live[at].would;
        held += (int64_t)live[at].held;
        record_held[of] += (int64_t)live[at].held;
        would_peak = would > would_peak ? would : would_peak;
        held_peak = held > held_peak ? held : held_peak;
        record_peak[of] = record_held[of] > record_peak[of] ? record_held[of] : record_peak[of];
    }
    struct mesa_ledger_totals totals = totals_now();
    cr_assert(eq(i64, totals.would_bytes, would));
    cr_assert(eq(i64, totals.held_bytes, held));
    cr_assert(eq(i64, totals.would_bytes_peak, would_peak));
    cr_assert(eq(i64, totals.held_bytes_peak, held_peak));
    cr_assert(eq(u64, totals.tensors, tensors));
    cr_assert(eq(u64, totals.pack_ns, 3 * tensors));
    for (int i = 0; i < RECORDS; i++) {
        cr_assert(eq(i64, records[i]->held_bytes, record_held[i]));
        cr_assert(eq(i64, records[i]->held_bytes_peak, record_peak[i]));
        cr_assert(eq(u64, records[i]->elements, elements[i]));
        cr_assert(eq(u64, records[i]->shared, shared[i]));
    }
}

Test(ledger, counts_totals_without_a_record) {
    mesa_ledger_saved(NULL, 1, 100, 25, false, 5);
    mesa_ledger_unpacked(NULL, 7);
    struct mesa_verify_sums sums = {.elements = 1};
    mesa_ledger_verified(NULL, &sums);
    cr_assert(eq(i64, totals_now().would_bytes, 100));
    mesa_ledger_released(NULL, 100, 25);
    struct mesa_ledger_totals totals = totals_now();
    cr_assert(eq(i64, totals.held_bytes, 0));
    cr_assert(eq(i64, totals.held_bytes_peak, 25));
    cr_assert(eq(u64, totals.tensors, 1));
    cr_assert(eq(u64, totals.unpack_ns, 7));
}

Test(ledger, counts_kept_tensors_by_reason) {
    struct mesa_record *kept =
        mesa_ledger_record("add", "self", MESA_F32, "keep", MESA_KEPT_POLICY);
    mesa_ledger_count_kept(MESA_KEPT_POLICY);
    mesa_ledger_saved(kept, 1, 4, 4, false, 0);
    mesa_ledger_saved(record_of("gelu"), 1, 4, 1, false, 0);
    mesa_ledger_count_kept(MESA_KEPT_HOOKED);
    mesa_ledger_count_kept(MESA_KEPT_NO_MEMORY);
    mesa_ledger_count_kept(MESA_KEPT_NO_MEMORY);
    struct mesa_ledger_totals totals = totals_now();
    cr_assert(eq(u64, totals.kept[MESA_KEPT_POLICY], 1));
    cr_assert(eq(u64, totals.kept[MESA_KEPT_HOOKED], 1));
    cr_assert(eq(u64, totals.kept[MESA_KEPT_NOT], 0));
    cr_assert(eq(u64, totals.declined_no_memory, 2));
    cr_assert(eq(u64, totals.tensors, 2), "tensors are those that were saved with a record");
}

Test(ledger, has_a_text_for_every_reason) {
    for (int a = 0; a < MESA_KEPT_COUNT; a++) {
        cr_assert(ne(ptr, (void *)mesa_kept_text((enum mesa_kept)a), NULL));
        for (int b = 0; b < a; b++)
            cr_assert(ne(str, (char *)mesa_kept_text((enum mesa_kept)a),
                         (char *)mesa_kept_text((enum mesa_kept)b)));
    }
}

Test(ledger, adds_up_errors) {
    struct mesa_record *record = record_of("gelu");
    struct mesa_verify_sums sums;
    cr_assert(not(mesa_ledger_verify_sums(record, &sums)));
    const struct mesa_verify_sums first = {1, 2, 3, 4, 0.5, 10, 1, 0};
    const struct mesa_verify_sums second = {10, 20, 30, 40, 0.25, 5, 0, 2};
    mesa_ledger_verified(record, &first);
    mesa_ledger_verified(record, &second);
    cr_assert(mesa_ledger_verify_sums(record, &sums));
    cr_assert(epsilon_eq(dbl, sums.error2, 11, 0));
    cr_assert(epsilon_eq(dbl, sums.restored2, 44, 0));
    cr_assert(epsilon_eq(dbl, sums.largest, 0.5, 0));
    cr_assert(eq(u64, sums.elements, 15));
    cr_assert(eq(u64, sums.sign_flips, 1));
    cr_assert(eq(u64, sums.zero_changes, 2));
    const struct mesa_verify_sums broken = {.largest = (double)NAN, .elements = 1};
    mesa_ledger_verified(record, &broken);
    cr_assert(mesa_ledger_verify_sums(record, &sums));
    cr_assert(isnan(sums.largest), "a NaN is an error that must show");
}

Test(ledger, keeps_peaks_of_each_step) {
    struct mesa_record *record = record_of("gelu");
    for (uint64_t step = 1; step <= 3; step++) {
        mesa_ledger_saved(record, 1, 1000 * step, 100 * step, false, 0);
        mesa_ledger_released(record, 1000 * step - 1, 100 * step - 1);
        mesa_ledger_step();
        mesa_ledger_released(record, 1, 1);
    }
    struct mesa_step_point points[4];
    cr_assert(eq(sz, mesa_ledger_series(points, 4), 3));
    for (size_t i = 0; i < 3; i++) {
        cr_assert(eq(u64, points[i].would_bytes_peak, 1000 * (i + 1)));
        cr_assert(eq(u64, points[i].held_bytes_peak, 100 * (i + 1)));
        cr_assert(eq(u64, points[i].would_bytes_end, 1));
        cr_assert(i == 0 || points[i].seconds >= points[i - 1].seconds);
    }
    cr_assert(eq(sz, mesa_ledger_series(points, 1), 3));
    cr_assert(eq(u64, points[0].would_bytes_peak, 3000), "the latest ones are copied");
}

/* The highest peak of each run of steps_per_point steps, whatever the number of steps. */
Test(ledger, merges_a_long_series) {
    static struct mesa_step_point points[1024];
    struct mesa_record *record = record_of("gelu");
    uint64_t step = 0;
    for (int i = 0; i < 9; i++) {
        static const uint64_t checks[] = {1, 1022, 1023, 1024, 1025, 1026, 3000, 4096, 10001};
        for (; step < checks[i]; step++) {
            mesa_ledger_saved(record, 1, step + 1, 1, false, 0);
            mesa_ledger_released(record, step + 1, 1);
            mesa_ledger_step();
        }
        size_t count = mesa_ledger_series(points, 1024);
        struct mesa_ledger_totals totals = totals_now();
        uint64_t each = totals.steps_per_point;
        cr_assert(eq(u64, totals.steps, step));
        cr_assert(le(sz, count, 1024));
        cr_assert(eq(u64, each & (each - 1), 0));
        cr_assert(eq(sz, count, (size_t)((step + each - 1) / each)));
        cr_assert(i < 3 || count >= 512);
        for (size_t p = 0; p < count; p++) {
            uint64_t last = (p + 1) * each < step ? (p + 1) * each : step;
            cr_assert(eq(u64, points[p].would_bytes_peak, last));
        }
    }
}

Test(ledger, starts_empty_in_a_forked_child) {
    struct mesa_record *record = record_of("gelu");
    mesa_ledger_saved(record, 1, 100, 50, false, 1);
    mesa_ledger_step();
    const struct mesa_verify_sums verified = {.elements = 1};
    mesa_ledger_verified(record, &verified);
    mesa_ledger_prefork();
    pid_t child = fork();
    if (child == 0) {
        struct mesa_verify_sums sums;
        mesa_ledger_postfork_child();
        struct mesa_ledger_totals totals = totals_now();
        bool empty = totals.tensors == 0 && totals.would_bytes_peak == 0 && totals.steps == 0 &&
                     record->tensors == 0 && record->held_bytes_peak == 0 &&
                     mesa_ledger_series(NULL, 0) == 0 && !mesa_ledger_verify_sums(record, &sums);
        mesa_ledger_released(record, 100, 50); /* what was inherited goes away */
        bool above_zero = totals_now().would_bytes == 0;
        bool same = record_of("gelu") == record && record_of("new") != NULL;
        mesa_ledger_saved(record, 1, 100, 50, false, 1);
        _exit(empty && above_zero && same && totals_now().tensors == 1 ? 0 : 1);
    }
    mesa_ledger_postfork_parent();
    int status = -1;
    waitpid(child, &status, 0);
    cr_assert(eq(int, status, 0));
    cr_assert(eq(i64, totals_now().would_bytes, 100));
    cr_assert(ne(ptr, record_of("another"), NULL), "the lock is free again");
}
