/* A program that "trains": fills the ledger with made-up entries and writes the reports that
 * MESA_REPORT names, in the locale of its environment. Arguments: number of records, seed, and
 * "verify" for errors as well.
 *
 * SPDX-License-Identifier: MIT */
#include "report/report.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const ops[] = {"gelu", "_softmax", "native_layer_norm", "addmm", "max_pool2d"};
/* Names that JSON must escape or replace: quotes, control characters, UTF-8 and what is none. */
static const char *const odd_ops[] = {"a\"b\\c",      "tab\there\n", "gr\xc3\xbc\xc3\x9f",
                                      "\xff\xc0\xaf", "\x01\x7f",    "\xed\xa0\x80surrogate"};
static const char *const ways[] = {"affine 8", "affine 4", "mask", "share", "keep"};

static unsigned seed;

static unsigned below(unsigned bound) {
    return (unsigned)rand_r(&seed) % bound;
}

static void fill_errors(struct mesa_record *record) {
    double value2 = below(1000) / 3.0, restored2 = value2 * (1 + below(100) * 1e-4);
    struct mesa_verify_sums sums = {.error2 = below(1000) * 1e-7,
                                    .value2 = value2,
                                    .dot = sqrt(value2 * restored2) * (1 - below(100) * 1e-5),
                                    .restored2 = restored2,
                                    .largest = below(1000) * 1e-5,
                                    .elements = 1 + below(1000),
                                    .sign_flips = below(5),
                                    .zero_changes = below(5)};
    if (below(5) == 0)
        sums.largest = below(2) == 0 ? (double)NAN : (double)INFINITY;
    mesa_ledger_verified(record, &sums);
}

static void fill_record(int index, bool verify) {
    char op[64];
    const char *of = below(4) == 0 ? odd_ops[below(6)] : ops[below(5)];
    snprintf(op, sizeof op, "%s%d", of, index);
    const char *way = ways[below(5)];
    bool keep = strcmp(way, "keep") == 0;
    enum mesa_kept kept = keep ? (enum mesa_kept)below(MESA_KEPT_COUNT) : MESA_KEPT_NOT;
    struct mesa_record *record = mesa_ledger_record(
        op, below(5) == 0 ? "" : "self", (enum mesa_dtype)below(MESA_DTYPE_COUNT), way, kept);
    if (record == NULL)
        exit(1);
    for (unsigned saves = 1 + below(4); saves > 0; saves--) {
        uint64_t would = (uint64_t)below(1 << 30), held = keep ? would : would / 5;
        if (kept != MESA_KEPT_NOT)
            mesa_ledger_count_kept(kept);
        mesa_ledger_saved(record, would / 4, would, held, below(3) == 0, below(1000000));
        mesa_ledger_unpacked(record, below(1000000));
        if (verify)
            fill_errors(record);
        mesa_ledger_released(record, would, held);
    }
}

int main(int count, char **words) {
    if (count < 3 || setlocale(LC_ALL, "") == NULL)
        return 2;
    int records = atoi(words[1]);
    bool verify = count > 3 && strcmp(words[3], "verify") == 0;
    seed = (unsigned)atoi(words[2]);
    for (int i = 0; i < records; i++) {
        fill_record(i, verify);
        mesa_ledger_step();
    }
    const struct mesa_run run = {.version = "0.1.0",
                                 .torch_version = records % 2 == 0 ? "2.13.0" : NULL,
                                 .isa = "avx512",
                                 .policy = "softmax.result affine bits=4; \"x\"",
                                 .command = "python train.py --name 'gr\xc3\xbc\xc3\x9f' \xfe",
                                 .seconds = 1234.5678,
                                 .threads = 2,
                                 .verified = verify};
    const char *text = getenv("MESA_REPORT");
    struct mesa_report_target target;
    char mistake[256];
    if (!mesa_report_parse(text == NULL ? "text" : text, &target, mistake, sizeof mistake))
        return 2;
    mesa_report_write(&target, &run);
    mesa_report_target_done(&target);
    printf("trained, the decimal point is %s\n", localeconv()->decimal_point);
    return 0;
}
