/* Reads the ledger into an account. Counters are read one by one while training may go on, so an
 * account is true to within the tensors saved while it was taken.
 *
 * SPDX-License-Identifier: MIT */
#include "report/account.h"

#include "report/buffer.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* VmHWM of /proc/self/status. ru_maxrss would also count what this process was before exec(). */
static size_t read_high_water_mark(void) {
    char text[4096];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    const char *line = strstr(text, "VmHWM:");
    return line == NULL ? 0 : (size_t)strtoull(line + strlen("VmHWM:"), NULL, 10) * 1024;
}

size_t mesa_report_peak_rss(void) {
    size_t bytes = read_high_water_mark();
    struct rusage usage;
    if (bytes == 0 && getrusage(RUSAGE_SELF, &usage) == 0)
        bytes = (size_t)usage.ru_maxrss * 1024;
    return bytes;
}

static bool parse_rank(const char *text, unsigned *ret_rank) {
    if (text == NULL || *text == '\0' || strlen(text) > 9 ||
        text[strspn(text, "0123456789")] != '\0')
        return false;
    *ret_rank = (unsigned)strtoul(text, NULL, 10);
    return true;
}

unsigned mesa_account_rank(void) {
    unsigned rank = 0;
    if (!parse_rank(getenv("RANK"), &rank))
        parse_rank(getenv("LOCAL_RANK"), &rank);
    return rank;
}

static uint64_t read_counter(const _Atomic uint64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static uint64_t read_peak(const _Atomic int64_t *peak) {
    int64_t bytes = atomic_load_explicit(peak, memory_order_relaxed);
    return bytes < 0 ? 0 : (uint64_t)bytes;
}

static void take_row(struct mesa_record *record, struct mesa_account_row *ret_row) {
    *ret_row = (struct mesa_account_row){
        .op = record->op,
        .argument = record->argument,
        .way = record->way,
        .dtype = record->dtype,
        .kept = record->kept,
        .tensors = read_counter(&record->tensors),
        .shared = read_counter(&record->shared),
        .elements = read_counter(&record->elements),
        .would_bytes_total = read_counter(&record->would_bytes_total),
        .held_bytes_total = read_counter(&record->held_bytes_total),
        .would_bytes_peak = read_peak(&record->would_bytes_peak),
        .held_bytes_peak = read_peak(&record->held_bytes_peak),
        .pack_ns = read_counter(&record->pack_ns),
        .unpack_ns = read_counter(&record->unpack_ns),
        .unpacks = read_counter(&record->unpacks),
    };
    ret_row->verified = mesa_ledger_verify_sums(record, &ret_row->sums);
}

/* Records without a tensor (all of them, after a fork) are left out. */
static bool take_rows(struct mesa_account *account) {
    size_t count = 0;
    while (mesa_ledger_at((uint32_t)count) != NULL)
        count++;
    if (count == 0)
        return true;
    account->rows = calloc(count, sizeof *account->rows);
    if (account->rows == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        take_row(mesa_ledger_at((uint32_t)i), &account->rows[account->row_count]);
        if (account->rows[account->row_count].tensors != 0)
            account->row_count++;
    }
    return true;
}

static bool take_points(struct mesa_account *account) {
    size_t room = mesa_ledger_series(NULL, 0);
    if (room == 0)
        return true;
    account->points = calloc(room, sizeof *account->points);
    if (account->points == NULL)
        return false;
    size_t count = mesa_ledger_series(account->points, room);
    account->point_count = count < room ? count : room;
    return true;
}

static void take_time(char ret_text[32]) {
    struct tm utc;
    time_t now = time(NULL);
    if (gmtime_r(&now, &utc) == NULL || strftime(ret_text, 32, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
        ret_text[0] = '\0';
}

bool mesa_account_take(const struct mesa_run *run, struct mesa_account *ret_account) {
    struct mesa_account *account = ret_account;
    *account = (struct mesa_account){
        .run = *run,
        .pid = (long)getpid(),
        .rank = mesa_account_rank(),
        .peak_rss_bytes = mesa_report_peak_rss(),
    };
    if (gethostname(account->host, sizeof account->host - 1) != 0)
        mesa_print_into(account->host, sizeof account->host, "unknown");
    take_time(account->written);
    mesa_ledger_totals(&account->totals);
    if (!take_rows(account) || !take_points(account)) {
        mesa_account_done(account);
        return false;
    }
    mesa_account_sort(account);
    return true;
}

static int compare_numbers(uint64_t a, uint64_t b) {
    return a < b ? 1 : a > b ? -1 : 0;
}

/* Largest first; equal ones by name, so that the same numbers always give the same report. */
static int compare_rows(const void *left, const void *right) {
    const struct mesa_account_row *a = left, *b = right;
    int order = compare_numbers(a->would_bytes_peak, b->would_bytes_peak);
    if (order == 0)
        order = compare_numbers(a->held_bytes_peak, b->held_bytes_peak);
    if (order == 0)
        order = compare_numbers(a->tensors, b->tensors);
    if (order == 0)
        order = strcmp(a->op, b->op);
    if (order == 0)
        order = strcmp(a->argument, b->argument);
    if (order == 0)
        order = strcmp(a->way, b->way);
    if (order == 0)
        order = (int)a->dtype - (int)b->dtype;
    if (order == 0)
        order = (int)a->kept - (int)b->kept;
    return order;
}

void mesa_account_sort(struct mesa_account *account) {
    if (account->row_count != 0)
        qsort(account->rows, account->row_count, sizeof *account->rows, compare_rows);
}

void mesa_account_done(struct mesa_account *account) {
    free(account->rows);
    free(account->points);
    account->rows = NULL;
    account->points = NULL;
    account->row_count = account->point_count = 0;
}

double mesa_account_bits(const struct mesa_account_row *row) {
    if (row->elements == 0)
        return -1;
    return (double)row->held_bytes_total * 8 / (double)row->elements;
}

static double finite_or_nan(double value) {
    return isfinite(value) ? value : (double)NAN;
}

struct mesa_account_errors mesa_account_errors(const struct mesa_verify_sums *sums) {
    struct mesa_account_errors errors = {
        .relative = sums->error2 == 0 ? 0 : sqrt(sums->error2 / sums->value2),
        .largest = sums->largest,
        .cosine = sums->dot / sqrt(sums->value2 * sums->restored2),
    };
    errors.relative = finite_or_nan(errors.relative);
    errors.largest = finite_or_nan(errors.largest);
    errors.cosine = finite_or_nan(errors.cosine);
    return errors;
}

bool mesa_account_all_sums(const struct mesa_account *account, struct mesa_verify_sums *ret_sums) {
    struct mesa_verify_sums all = {0};
    for (size_t i = 0; i < account->row_count; i++) {
        const struct mesa_verify_sums *sums = &account->rows[i].sums;
        if (!account->rows[i].verified)
            continue;
        all.error2 += sums->error2;
        all.value2 += sums->value2;
        all.dot += sums->dot;
        all.restored2 += sums->restored2;
        all.largest = fmax(all.largest, sums->largest);
        all.elements += sums->elements;
        all.sign_flips += sums->sign_flips;
        all.zero_changes += sums->zero_changes;
    }
    *ret_sums = all;
    return all.elements != 0;
}
