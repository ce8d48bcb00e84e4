/* The text report: a headline, facts about the run, a table of where the bytes went, what was kept
 * and why, and one line of advice. The lines below the table are counted first; the table gets what
 * is left of the 40 and merges its smallest rows.
 *
 * SPDX-License-Identifier: MIT */
#include "report/text.h"

#include "report/table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MIB 1048576.0

enum {
    KEPT_LINES = 6, /* reasons shown, largest first */
    KEPT_NAMES = 3, /* op.arguments named for each */
    COMMAND_COLUMNS = 88,
    NAME_COLUMNS = 40,
};

/* Three digits that matter: "0.512 MiB", "31.3 MiB", "1.18 GiB". */
static const char *print_bytes(char ret[24], double bytes) {
    double number = bytes / MIB;
    const char *unit = "MiB";
    if (bytes == 0)
        return mesa_print_into(ret, 24, "0 MiB");
    if (number >= 999.5) {
        number /= 1024;
        unit = "GiB";
    }
    int decimals = number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2;
    return mesa_print_into(ret, 24, "%.*f %s", decimals, number, unit);
}

static const char *print_seconds(char ret[24], double seconds) {
    if (seconds >= 2 * 3600)
        return mesa_print_into(ret, 24, "%.0f h %02.0f min", floor(seconds / 3600),
                               floor(fmod(seconds, 3600) / 60));
    if (seconds >= 600)
        return mesa_print_into(ret, 24, "%.0f min", seconds / 60);
    return mesa_print_into(ret, 24, "%.*f s",
                           seconds >= 99.95   ? 0
                           : seconds >= 9.995 ? 1
                                              : 2,
                           seconds);
}

static const char *print_percent(char ret[24], double part, double whole) {
    if (!(whole > 0))
        return mesa_print_into(ret, 24, "-");
    double percent = 100 * part / whole;
    if (percent > 0 && percent < 0.05)
        return mesa_print_into(ret, 24, "<0.1 %%");
    return mesa_print_into(ret, 24, "%.1f %%", percent);
}

static const char *print_error(char ret[24], double error) {
    return mesa_print_into(ret, 24, isfinite(error) ? "%.3g" : "n/a", error);
}

static const char *print_cosine(char ret[24], double cosine) {
    return mesa_print_into(ret, 24, isfinite(cosine) ? "%.6f" : "n/a", cosine);
}

/* "op.argument", or "op" alone where the argument has no name. */
static const char *print_name(char ret[MESA_TABLE_CELL], const struct mesa_account_row *row) {
    const char *dot = row->argument[0] == '\0' ? "" : ".";
    char whole[512];
    mesa_print_into(whole, sizeof whole, "%s%s%s", row->op, dot, row->argument);
    return mesa_table_shorten(ret, MESA_TABLE_CELL, whole, NAME_COLUMNS);
}

static void render_headline(const struct mesa_account *account, struct mesa_buffer *buffer) {
    const struct mesa_ledger_totals *totals = &account->totals;
    double would = (double)totals->would_bytes_peak, held = (double)totals->held_bytes_peak;
    char held_text[24], would_text[24];
    mesa_buffer_print(buffer, "libmesa %s: saved tensors took %s at peak", account->run.version,
                      print_bytes(held_text, held));
    if (held < would * 0.995 && held > 0)
        mesa_buffer_print(buffer, " instead of %s (%.1fx less)\n", print_bytes(would_text, would),
                          would / held);
    else if (held < would || held > would * 1.005)
        mesa_buffer_print(buffer, " instead of %s\n", print_bytes(would_text, would));
    else
        mesa_buffer_text(buffer, ", as much as without libmesa (1.0x)\n");
}

static void render_where(const struct mesa_account *account, struct mesa_buffer *buffer) {
    const struct mesa_run *run = &account->run;
    mesa_buffer_print(buffer, "  policy    %s\n", run->policy == NULL ? "unknown" : run->policy);
    mesa_buffer_print(
        buffer, "  process   %ld on %s, rank %u, torch %s, %s, %u thread%s\n", account->pid,
        account->host, account->rank, run->torch_version == NULL ? "unknown" : run->torch_version,
        run->isa == NULL ? "unknown" : run->isa, run->threads, run->threads == 1 ? "" : "s");
    if (account->peak_rss_bytes != 0) {
        char rss[24];
        mesa_buffer_print(buffer, "  memory    %s peak RSS\n",
                          print_bytes(rss, (double)account->peak_rss_bytes));
    }
}

static void render_time(const struct mesa_account *account, struct mesa_buffer *buffer) {
    const struct mesa_ledger_totals *totals = &account->totals;
    double seconds = account->run.seconds;
    double pack = (double)totals->pack_ns * 1e-9, unpack = (double)totals->unpack_ns * 1e-9;
    char texts[5][24];
    mesa_buffer_print(buffer, "  time      %s, %llu step%s; packing %s (%s), unpacking %s (%s)\n",
                      print_seconds(texts[0], seconds), (unsigned long long)totals->steps,
                      totals->steps == 1 ? "" : "s", print_seconds(texts[1], pack),
                      print_percent(texts[2], pack, seconds), print_seconds(texts[3], unpack),
                      print_percent(texts[4], unpack, seconds));
}

static void render_saved(const struct mesa_account *account, struct mesa_buffer *buffer) {
    uint64_t shared = 0;
    for (size_t i = 0; i < account->row_count; i++)
        shared += account->rows[i].shared;
    mesa_buffer_print(buffer, "  saved     %llu tensors, %llu of them held already\n",
                      (unsigned long long)account->totals.tensors, (unsigned long long)shared);
    struct mesa_verify_sums sums;
    if (!mesa_account_all_sums(account, &sums)) {
        if (account->run.verified)
            mesa_buffer_text(buffer,
                             "  verified  nothing: no tensor was restored from held bytes\n");
        return;
    }
    struct mesa_account_errors errors = mesa_account_errors(&sums);
    char relative[24], cosine[24];
    mesa_buffer_print(buffer,
                      "  verified  relative error %s, cosine %s, %llu sign flips, %llu zeros "
                      "changed\n",
                      print_error(relative, errors.relative), print_cosine(cosine, errors.cosine),
                      (unsigned long long)sums.sign_flips, (unsigned long long)sums.zero_changes);
}

static void render_facts(const struct mesa_account *account, struct mesa_buffer *buffer) {
    render_headline(account, buffer);
    if (account->run.command != NULL) {
        char command[512];
        mesa_buffer_print(
            buffer, "  command   %s\n",
            mesa_table_shorten(command, sizeof command, account->run.command, COMMAND_COLUMNS));
    }
    render_where(account, buffer);
    render_time(account, buffer);
    render_saved(account, buffer);
}

/* Columns of the table; those of errors are there only when errors were verified. */
enum {
    COLUMN_NAME,
    COLUMN_DTYPE,
    COLUMN_TENSORS,
    COLUMN_WOULD,
    COLUMN_HELD,
    COLUMN_WAY,
    COLUMN_BITS,
    COLUMN_SHARE,
    COLUMN_ERROR,
    COLUMN_LARGEST,
    COLUMN_COSINE,
    COLUMN_FLIPS,
    COLUMN_ZEROS,
    COLUMN_COUNT,
};

static const struct mesa_table_column columns[COLUMN_COUNT] = {
    [COLUMN_NAME] = {"op.argument", false}, [COLUMN_DTYPE] = {"type", false},
    [COLUMN_TENSORS] = {"tensors", true},   [COLUMN_WOULD] = {"would MiB", true},
    [COLUMN_HELD] = {"held MiB", true},     [COLUMN_WAY] = {"way", false},
    [COLUMN_BITS] = {"bits/value", true},   [COLUMN_SHARE] = {"share", true},
    [COLUMN_ERROR] = {"error", true},       [COLUMN_LARGEST] = {"largest", true},
    [COLUMN_COSINE] = {"cosine", true},     [COLUMN_FLIPS] = {"flips", true},
    [COLUMN_ZEROS] = {"zeros", true},
};

/* What fills one table. */
struct sheet {
    struct mesa_table table;
    double would_sum; /* of all rows' peaks */
    int decimals;     /* of MiB, the same in a whole column so that the points stand in line */
};

static void fill_sizes(struct sheet *sheet, size_t line, uint64_t tensors, double would,
                       double held) {
    char(*cells)[MESA_TABLE_CELL] = sheet->table.cells[line];
    mesa_print_into(cells[COLUMN_TENSORS], MESA_TABLE_CELL, "%llu", (unsigned long long)tensors);
    mesa_print_into(cells[COLUMN_WOULD], MESA_TABLE_CELL, "%.*f", sheet->decimals, would / MIB);
    mesa_print_into(cells[COLUMN_HELD], MESA_TABLE_CELL, "%.*f", sheet->decimals, held / MIB);
    print_percent(cells[COLUMN_SHARE], would, sheet->would_sum);
}

static void fill_errors(struct sheet *sheet, size_t line, const struct mesa_verify_sums *sums) {
    char(*cells)[MESA_TABLE_CELL] = sheet->table.cells[line];
    struct mesa_account_errors errors = mesa_account_errors(sums);
    print_error(cells[COLUMN_ERROR], errors.relative);
    print_error(cells[COLUMN_LARGEST], errors.largest);
    print_cosine(cells[COLUMN_COSINE], errors.cosine);
    mesa_print_into(cells[COLUMN_FLIPS], MESA_TABLE_CELL, "%llu",
                    (unsigned long long)sums->sign_flips);
    mesa_print_into(cells[COLUMN_ZEROS], MESA_TABLE_CELL, "%llu",
                    (unsigned long long)sums->zero_changes);
}

static void fill_row(struct sheet *sheet, size_t line, const struct mesa_account_row *row) {
    char(*cells)[MESA_TABLE_CELL] = sheet->table.cells[line];
    print_name(cells[COLUMN_NAME], row);
    mesa_print_into(cells[COLUMN_DTYPE], MESA_TABLE_CELL, "%s", mesa_dtype_name(row->dtype));
    fill_sizes(sheet, line, row->tensors, (double)row->would_bytes_peak,
               (double)row->held_bytes_peak);
    mesa_table_shorten(cells[COLUMN_WAY], MESA_TABLE_CELL, row->way, 24);
    double bits = mesa_account_bits(row);
    if (bits >= 0)
        mesa_print_into(cells[COLUMN_BITS], MESA_TABLE_CELL, "%.2f", bits);
    if (row->verified)
        fill_errors(sheet, line, &row->sums);
}

/* The rows from `first` on, as one line. */
static void fill_others(struct sheet *sheet, size_t line, const struct mesa_account *account,
                        size_t first) {
    uint64_t tensors = 0;
    double would = 0, held = 0;
    for (size_t i = first; i < account->row_count; i++) {
        tensors += account->rows[i].tensors;
        would += (double)account->rows[i].would_bytes_peak;
        held += (double)account->rows[i].held_bytes_peak;
    }
    mesa_print_into(sheet->table.cells[line][COLUMN_NAME], MESA_TABLE_CELL, "%zu others",
                    account->row_count - first);
    fill_sizes(sheet, line, tensors, would, held);
}

/* At most `room` lines, the head and a blank line on each side included. */
static void render_table(const struct mesa_account *account, size_t room,
                         struct mesa_buffer *buffer) {
    if (account->row_count == 0)
        return;
    struct sheet sheet = {.table = {.columns = columns, .column_count = COLUMN_ERROR}};
    double largest = 0;
    for (size_t i = 0; i < account->row_count; i++) {
        const struct mesa_account_row *row = &account->rows[i];
        sheet.would_sum += (double)row->would_bytes_peak;
        largest = fmax(largest, fmax((double)row->would_bytes_peak, (double)row->held_bytes_peak));
        if (row->verified)
            sheet.table.column_count = COLUMN_COUNT;
    }
    sheet.decimals = largest < 100 * MIB ? 2 : largest < 100000 * MIB ? 1 : 0;
    size_t lines = room - 3; /* head and two blank lines */
    if (lines > MESA_TABLE_LINES)
        lines = MESA_TABLE_LINES;
    size_t shown = account->row_count <= lines ? account->row_count : lines - 1;
    for (size_t i = 0; i < shown; i++)
        fill_row(&sheet, i, &account->rows[i]);
    if (shown < account->row_count)
        fill_others(&sheet, shown, account, shown);
    sheet.table.line_count = shown + (shown < account->row_count);
    mesa_buffer_text(buffer, "\n");
    mesa_table_render(&sheet.table, buffer);
    mesa_buffer_text(buffer, "\n");
}

/* All that was kept for one reason. */
struct kept_group {
    enum mesa_kept why;
    double bytes; /* sum of peaks */
    uint64_t tensors;
    const struct mesa_account_row *largest[KEPT_NAMES];
    size_t rows;
};

static bool is_kept(const struct mesa_account_row *row) {
    return row->kept != MESA_KEPT_NOT || strcmp(row->way, "keep") == 0;
}

static void group_kept(const struct mesa_account *account,
                       struct kept_group ret_groups[MESA_KEPT_COUNT]) {
    for (int why = 0; why < MESA_KEPT_COUNT; why++)
        ret_groups[why] =
            (struct kept_group){.why = (enum mesa_kept)why, .tensors = account->totals.kept[why]};
    uint64_t small = 0; /* tensors of records that say "keep" for no other reason than size */
    for (size_t i = 0; i < account->row_count; i++) {
        const struct mesa_account_row *row = &account->rows[i];
        if (!is_kept(row))
            continue;
        struct kept_group *group = &ret_groups[row->kept];
        if (group->rows < KEPT_NAMES)
            group->largest[group->rows] = row; /* rows come largest first */
        group->rows++;
        group->bytes += (double)row->held_bytes_peak;
        if (row->kept == MESA_KEPT_NOT)
            small += row->tensors;
    }
    ret_groups[MESA_KEPT_NOT].tensors += small;
}

/* Moves the groups that have tensors to the front, most bytes first; returns how many they are. */
static size_t sort_kept(struct kept_group groups[MESA_KEPT_COUNT]) {
    size_t count = 0;
    for (size_t i = 0; i < MESA_KEPT_COUNT; i++) {
        struct kept_group group = groups[i];
        if (group.tensors == 0)
            continue;
        size_t at = count++;
        for (; at > 0 && groups[at - 1].bytes < group.bytes; at--)
            groups[at] = groups[at - 1];
        groups[at] = group;
    }
    return count;
}

static void render_kept_group(const struct kept_group *group, const char *head,
                              struct mesa_buffer *buffer) {
    char bytes[24];
    mesa_buffer_print(buffer, "  %-8s%10s in %llu tensor%s: %s", head,
                      group->rows == 0 ? "unknown" : print_bytes(bytes, group->bytes),
                      (unsigned long long)group->tensors, group->tensors == 1 ? "" : "s",
                      mesa_kept_text(group->why));
    for (size_t i = 0; i < group->rows && i < KEPT_NAMES; i++) {
        char name[MESA_TABLE_CELL];
        mesa_buffer_print(buffer, "%s%s", i == 0 ? " (" : ", ",
                          print_name(name, group->largest[i]));
    }
    if (group->rows > KEPT_NAMES)
        mesa_buffer_print(buffer, ", %zu more", group->rows - KEPT_NAMES);
    mesa_buffer_text(buffer, group->rows == 0 ? "\n" : ")\n");
}

static void render_kept(const struct mesa_account *account, struct mesa_buffer *buffer) {
    struct kept_group groups[MESA_KEPT_COUNT];
    group_kept(account, groups);
    size_t count = sort_kept(groups);
    size_t shown = count <= KEPT_LINES ? count : KEPT_LINES - 1;
    for (size_t i = 0; i < shown; i++)
        render_kept_group(&groups[i], i == 0 ? "kept" : "", buffer);
    if (shown == count)
        return;
    double bytes = 0;
    uint64_t tensors = 0;
    for (size_t i = shown; i < count; i++) {
        bytes += groups[i].bytes;
        tensors += groups[i].tensors;
    }
    char text[24];
    mesa_buffer_print(buffer, "          %10s in %llu tensors for %zu other reasons\n",
                      print_bytes(text, bytes), (unsigned long long)tensors, count - shown);
}

/* The settings that would change how a kept tensor is held; NULL if no rule would. */
static const char *better_settings(const struct mesa_account_row *row, double *ret_bits) {
    if (row->kept != MESA_KEPT_POLICY && row->kept != MESA_KEPT_UNKNOWN_OP)
        return NULL;
    if (mesa_dtype_is_real(row->dtype)) {
        *ret_bits = 8.5; /* codes, and 64 bits of scale and minimum for 128 of them */
        return "affine bits=8";
    }
    if (row->dtype == MESA_BOOL) {
        *ret_bits = 1;
        return "mask";
    }
    if (mesa_dtype_is_signed_integer(row->dtype)) {
        *ret_bits = 16; /* a guess: it depends on the range of the values */
        return "narrow";
    }
    return NULL;
}

/* Nothing is said about less than a megabyte, nor about less than a hundredth of what is held. */
static bool is_sizeable(const struct mesa_account *account, const struct mesa_account_row *row) {
    double held = (double)row->held_bytes_peak;
    return held >= MIB && held >= 0.01 * (double)account->totals.held_bytes_peak;
}

static void render_advice(const struct mesa_account *account, struct mesa_buffer *buffer) {
    const struct mesa_account_row *largest = NULL;
    const char *settings = NULL;
    double bits = 0;
    for (size_t i = 0; i < account->row_count; i++) {
        const struct mesa_account_row *row = &account->rows[i];
        double row_bits = 0;
        const char *row_settings = better_settings(row, &row_bits);
        if (row_settings == NULL || !is_sizeable(account, row) ||
            (largest != NULL && row->held_bytes_peak <= largest->held_bytes_peak))
            continue;
        largest = row;
        settings = row_settings;
        bits = row_bits;
    }
    if (largest == NULL)
        return;
    double held = (double)largest->held_bytes_peak;
    double now_bits = (double)mesa_dtype_bytes(largest->dtype) * 8;
    char held_text[24], better_text[24];
    /* A class of the program's own (argument `saved`) is not spelled like an op. */
    bool is_custom = strcmp(largest->argument, "saved") == 0 && strcmp(largest->op, "custom") != 0;
    const char *argument = is_custom ? "" : largest->argument;
    mesa_buffer_print(buffer,
                      "  advice    the rule `%s%s%s%s  %s` would hold the largest of these in "
                      "about %s instead of %s\n",
                      is_custom ? "custom:" : "", largest->op, argument[0] == '\0' ? "" : ".",
                      argument,
                      settings, print_bytes(better_text, held * fmin(1, bits / now_bits)),
                      print_bytes(held_text, held));
}

static size_t count_lines(const struct mesa_buffer *buffer) {
    size_t lines = 0;
    for (size_t i = 0; i < buffer->length; i++)
        lines += buffer->bytes[i] == '\n';
    return lines;
}

void mesa_text_render(const struct mesa_account *account, struct mesa_buffer *buffer) {
    struct mesa_buffer facts = {0}, below = {0};
    render_facts(account, &facts);
    render_kept(account, &below);
    render_advice(account, &below);
    size_t used = count_lines(&facts) + count_lines(&below);
    if (facts.failed || below.failed)
        buffer->failed = true;
    else
        mesa_buffer_append(buffer, facts.bytes, facts.length);
    render_table(account, MESA_TEXT_LINES - used, buffer);
    if (below.length != 0 && !below.failed)
        mesa_buffer_append(buffer, below.bytes, below.length);
    mesa_buffer_done(&facts);
    mesa_buffer_done(&below);
}
