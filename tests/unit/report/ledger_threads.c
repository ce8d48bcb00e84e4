/* Threads that save, release, verify, make records and end steps while others read: for the thread
 * sanitizer, and for sums that must come out right whatever the order was.
 *
 * SPDX-License-Identifier: MIT */
#include "report/ledger.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { WRITERS = 4, ROUNDS = 20000, RECORDS = 40 };

static _Atomic bool done;

static void *write_entries(void *context) {
    unsigned seed = *(unsigned *)context;
    for (int round = 0; round < ROUNDS; round++) {
        char op[16];
        snprintf(op, sizeof op, "op%d", rand_r(&seed) % RECORDS);
        struct mesa_record *record =
            mesa_ledger_record(op, "self", MESA_F32, "affine 8", MESA_KEPT_NOT);
        mesa_ledger_saved(record, 1, 400, 100, false, 1);
        mesa_ledger_unpacked(record, 1);
        if (round % 16 == 0) {
            const struct mesa_verify_sums sums = {.error2 = 1, .elements = 1};
            mesa_ledger_verified(record, &sums);
        }
        if (round % 64 == 0)
            mesa_ledger_step();
        mesa_ledger_released(record, 400, 100);
    }
    return NULL;
}

static void *read_entries(void *context) {
    static struct mesa_step_point points[1024];
    (void)context;
    while (!done) {
        struct mesa_ledger_totals totals;
        struct mesa_verify_sums sums;
        struct mesa_record *record;
        mesa_ledger_totals(&totals);
        mesa_ledger_series(points, 1024);
        for (uint32_t i = 0; (record = mesa_ledger_at(i)) != NULL; i++)
            if (record->op[0] != 'o' ||
                (mesa_ledger_verify_sums(record, &sums) && sums.elements == 0))
                abort();
    }
    return NULL;
}

static bool expect(const char *what, uint64_t found, uint64_t wanted) {
    if (found != wanted)
        fprintf(stderr, "%s: %llu, not %llu\n", what, (unsigned long long)found,
                (unsigned long long)wanted);
    return found == wanted;
}

static bool is_right(void) {
    struct mesa_ledger_totals totals;
    struct mesa_record *record;
    uint64_t tensors = 0, verified = 0;
    uint32_t count = 0;
    mesa_ledger_totals(&totals);
    for (; (record = mesa_ledger_at(count)) != NULL; count++) {
        struct mesa_verify_sums sums = {0};
        mesa_ledger_verify_sums(record, &sums);
        tensors += record->tensors;
        verified += sums.elements;
        if (record->held_bytes != 0 || record->held_bytes_peak > WRITERS * 100)
            return expect("held bytes of a record", (uint64_t)record->held_bytes, 0);
    }
    return expect("records", count, RECORDS) &&
           expect("tensors", totals.tensors, (uint64_t)WRITERS * ROUNDS) &&
           expect("tensors of records", tensors, (uint64_t)WRITERS * ROUNDS) &&
           expect("verified", verified, (uint64_t)WRITERS * (ROUNDS / 16)) &&
           expect("held bytes", (uint64_t)totals.held_bytes, 0) &&
           expect("peak within what threads can hold",
                  totals.held_bytes_peak >= 100 && totals.held_bytes_peak <= WRITERS * 100, 1);
}

int main(void) {
    pthread_t writers[WRITERS], reader;
    unsigned seeds[WRITERS];
    if (pthread_create(&reader, NULL, read_entries, NULL) != 0)
        return 1;
    for (unsigned i = 0; i < WRITERS; i++) {
        seeds[i] = i + 1;
        if (pthread_create(&writers[i], NULL, write_entries, &seeds[i]) != 0)
            return 1;
    }
    for (int i = 0; i < WRITERS; i++)
        pthread_join(writers[i], NULL);
    done = true;
    pthread_join(reader, NULL);
    return is_right() ? 0 : 1;
}
