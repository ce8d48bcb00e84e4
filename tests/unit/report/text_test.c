/* The text report: line counts, columns in line, what is said and what is not.
 *
 * SPDX-License-Identifier: MIT */
#include "report/text.h"

#include "report/table.h"
#include "report/utf8.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB 1048576ull

static const struct mesa_run run = {.version = "0.1.0",
                                    .torch_version = "2.13.0",
                                    .isa = "avx512",
                                    .policy = "default",
                                    .command = "python train.py",
                                    .seconds = 10,
                                    .threads = 2};

static void save(const char *op, enum mesa_dtype dtype, const char *way, enum mesa_kept kept,
                 uint64_t would, uint64_t held) {
    struct mesa_record *record = mesa_ledger_record(op, "self", dtype, way, kept);
    if (kept != MESA_KEPT_NOT)
        mesa_ledger_count_kept(kept);
    mesa_ledger_saved(record, would / 4, would, held, false, 1000000);
}

/* The report of what is in the ledger; the caller's to free. */
static char *render(const struct mesa_run *of) {
    struct mesa_account account;
    struct mesa_buffer buffer = {0};
    cr_assert(mesa_account_take(of, &account));
    mesa_text_render(&account, &buffer);
    mesa_account_done(&account);
    cr_assert(not(buffer.failed));
    return buffer.bytes;
}

static int count_lines(const char *text) {
    int count = 0;
    for (; *text != '\0'; text++)
        count += *text == '\n';
    return count;
}

static bool says(const char *text, const char *what) {
    if (strstr(text, what) != NULL)
        return true;
    fprintf(stderr, "'%s' is not in:\n%s", what, text);
    return false;
}

Test(text, has_at_most_40_lines) {
    static const char *const ways[] = {"affine 8", "mask", "keep", "share", "affine 4"};
    srand(3);
    for (int records = 0; records < 300;) {
        int next = records == 0 ? 1 : records + 1 + rand() % 20;
        for (; records < next; records++) {
            char op[32];
            snprintf(op, sizeof op, "op_%d", records);
            const char *way = ways[rand() % 5];
            bool keep = strcmp(way, "keep") == 0;
            save(op, (enum mesa_dtype)(rand() % MESA_DTYPE_COUNT), way,
                 keep ? (enum mesa_kept)(rand() % MESA_KEPT_COUNT) : MESA_KEPT_NOT,
                 (uint64_t)rand() % (64 * MIB), (uint64_t)rand() % (32 * MIB));
        }
        for (int why = 0; why < MESA_KEPT_COUNT; why++)
            mesa_ledger_count_kept((enum mesa_kept)why);
        if (records > 150) {
            const struct mesa_verify_sums sums = {1, 2, 3, 4, 5, 6, 7, 8};
            mesa_ledger_verified(mesa_ledger_at((uint32_t)rand() % 150), &sums);
        }
        char *text = render(&run);
        int lines = count_lines(text);
        cr_assert(le(int, lines, 40), "%d records:\n%s", records, text);
        cr_assert(records < 60 || lines == 40, "the room is used");
        cr_assert(eq(int, text[strlen(text) - 1], '\n'));
        cr_assert(eq(ptr, strstr(text, " \n"), NULL), "no line ends in a blank");
        free(text);
    }
}

/* The column of `what` in the line that has it. */
static size_t end_column(const char *text, const char *line_with, const char *what) {
    const char *line = strstr(text, line_with);
    cr_assert(ne(ptr, (void *)line, NULL));
    while (line > text && line[-1] != '\n')
        line--;
    const char *at = strstr(line, what);
    cr_assert(ne(ptr, (void *)at, NULL));
    return (size_t)(at - line) + strlen(what);
}

Test(text, keeps_columns_in_line) {
    save("gelu", MESA_F32, "affine 8", MESA_KEPT_NOT, 80 * MIB, 20 * MIB);
    save("a_very_long_name_of_an_operation_that_somebody_made", MESA_BF16, "mask", MESA_KEPT_NOT,
         8 * MIB, MIB);
    char *text = render(&run);
    size_t head = end_column(text, "op.argument", "would MiB");
    cr_assert(eq(sz, end_column(text, "gelu.self", "80.00"), head));
    cr_assert(eq(sz, end_column(text, "a_very_long", "8.00"), head));
    head = end_column(text, "op.argument", "share");
    cr_assert(eq(sz, end_column(text, "gelu.self", "90.9 %"), head));
    cr_assert(eq(sz, end_column(text, "a_very_long", "9.1 %"), head));
    cr_assert(says(text, ".."), "the long name is shortened");
    cr_assert(says(text, "made.self"), "and ends as it did");
    free(text);
}

Test(text, says_how_much_less_was_held) {
    save("gelu", MESA_F32, "affine 8", MESA_KEPT_NOT, 300 * MIB, 30 * MIB);
    char *text = render(&run);
    cr_assert(says(text, "took 30.0 MiB at peak instead of 300 MiB (10.0x less)"));
    cr_assert(says(text, "packing 0.00 s (<0.1 %), unpacking 0.00 s (0.0 %)"));
    cr_assert(says(text, "  3.20 "), "bits per value");
    cr_assert(eq(ptr, strstr(text, "kept"), NULL));
    cr_assert(eq(ptr, strstr(text, "advice"), NULL));
    free(text);
}

Test(text, says_when_nothing_was_gained) {
    save("gelu", MESA_F32, "keep", MESA_KEPT_EXACT, 3 * MIB, 3 * MIB);
    char *text = render(&run);
    cr_assert(says(text, "took 3.00 MiB at peak, as much as without libmesa"));
    cr_assert(says(text, "3.00 MiB in 1 tensor: the backward pass needs every bit (gelu.self)"));
    cr_assert(eq(ptr, strstr(text, "advice"), NULL), "no rule would change it");
    free(text);
}

Test(text, advises_a_rule_that_can_be_read) {
    mesa_ledger_saved(mesa_ledger_record("MyFunction", "saved", MESA_F32, "keep", MESA_KEPT_POLICY),
                      MIB, 4 * MIB, 4 * MIB, false, 1);
    char *text = render(&run);
    cr_assert(says(text, "the rule `custom:MyFunction  affine bits=8` would"));
    free(text);
}

Test(text, says_when_nothing_is_held) {
    save("gelu", MESA_F32, "share", MESA_KEPT_NOT, 3 * MIB, 0);
    char *text = render(&run);
    cr_assert(says(text, "took 0 MiB at peak instead of 3.00 MiB\n"));
    free(text);
}

Test(text, advises_on_the_largest_item_that_a_rule_would_change) {
    save("amax", MESA_F32, "keep", MESA_KEPT_EXACT, 50 * MIB, 50 * MIB);
    save("add", MESA_F32, "keep", MESA_KEPT_POLICY, 20 * MIB, 20 * MIB);
    save("mul", MESA_BF16, "keep", MESA_KEPT_UNKNOWN_OP, 32 * MIB, 32 * MIB);
    char *text = render(&run);
    cr_assert(says(text, "the rule `mul.self  affine bits=8` would hold the largest of these in "
                         "about 17.0 MiB instead of 32.0 MiB"));
    free(text);
}

Test(text, advises_by_element_type) {
    save("where", MESA_BOOL, "keep", MESA_KEPT_POLICY, 8 * MIB, 8 * MIB);
    char *text = render(&run);
    cr_assert(says(text, "`where.self  mask`"));
    free(text);
    save("gather", MESA_I64, "keep", MESA_KEPT_POLICY, 16 * MIB, 16 * MIB);
    text = render(&run);
    cr_assert(says(text, "`gather.self  narrow`"));
    free(text);
    save("odd", MESA_C64, "keep", MESA_KEPT_POLICY, 32 * MIB, 32 * MIB);
    text = render(&run);
    cr_assert(says(text, "`gather.self  narrow`"), "no rule changes complex numbers");
    free(text);
}

Test(text, does_not_advise_on_crumbs) {
    save("add", MESA_F32, "keep", MESA_KEPT_POLICY, MIB - 4, MIB - 4);
    char *text = render(&run);
    cr_assert(eq(ptr, strstr(text, "advice"), NULL));
    free(text);
    save("gelu", MESA_F32, "affine 8", MESA_KEPT_NOT, 2000 * MIB, 500 * MIB);
    save("add", MESA_F32, "keep", MESA_KEPT_POLICY, 4 * MIB, 4 * MIB);
    text = render(&run);
    cr_assert(eq(ptr, strstr(text, "advice"), NULL));
    free(text);
}

Test(text, groups_what_was_kept) {
    static const char *const ops[] = {"a", "b", "c", "d", "e"};
    for (int i = 0; i < 5; i++)
        save(ops[i], MESA_F32, "keep", MESA_KEPT_POLICY, 10 * MIB, 10 * MIB);
    save("f", MESA_F32, "keep", MESA_KEPT_NOT, 100, 100);
    mesa_ledger_count_kept(MESA_KEPT_HOOKED);
    char *text = render(&run);
    cr_assert(says(text, "50.0 MiB in 5 tensors: the policy says keep (a.self, b.self, c.self, 2 "
                         "more)"));
    cr_assert(says(text, "smaller than MESA_MIN_BYTES (f.self)"));
    cr_assert(says(text, "unknown in 1 tensor: the program has hooks of its own on it, or forbids "
                         "hooks\n"));
    free(text);
}

Test(text, shows_errors_when_verified) {
    save("gelu", MESA_F32, "affine 8", MESA_KEPT_NOT, 3 * MIB, MIB);
    save("relu", MESA_F32, "mask", MESA_KEPT_NOT, 2 * MIB, MIB);
    const struct mesa_verify_sums sums = {.error2 = 4,
                                          .value2 = 40000,
                                          .dot = 40000,
                                          .restored2 = 40000,
                                          .largest = 0.5,
                                          .elements = 10,
                                          .sign_flips = 3,
                                          .zero_changes = 12345};
    mesa_ledger_verified(mesa_ledger_at(0), &sums);
    char *text = render(&run);
    cr_assert(
        says(text, "relative error 0.01, cosine 1.000000, 3 sign flips, 12345 zeros changed"));
    size_t head = end_column(text, "op.argument", "zeros");
    cr_assert(eq(sz, end_column(text, "gelu.self", "12345"), head));
    free(text);
}

Test(text, says_when_there_was_nothing_to_verify) {
    struct mesa_run verified = run;
    verified.verified = true;
    save("gelu", MESA_F32, "affine 8", MESA_KEPT_NOT, 3 * MIB, MIB);
    char *text = render(&verified);
    cr_assert(says(text, "verified  nothing"));
    free(text);
}

Test(text, survives_what_is_not_known) {
    const struct mesa_run empty = {.version = "0.1.0"};
    save("", MESA_DTYPE_OTHER, "keep", MESA_KEPT_DTYPE, 1, 1);
    const struct mesa_verify_sums broken = {.error2 = 1, .value2 = 0, .elements = 1};
    mesa_ledger_verified(mesa_ledger_at(0), &broken);
    char *text = render(&empty);
    cr_assert(says(text, "torch unknown"));
    cr_assert(says(text, "n/a"));
    free(text);
}

Test(table, shortens_in_the_middle) {
    char text[64];
    cr_assert(eq(str, mesa_table_shorten(text, sizeof text, "abcdefghij", 10), "abcdefghij"));
    cr_assert(eq(str, mesa_table_shorten(text, sizeof text, "abcdefghij", 8), "abc..hij"));
    cr_assert(eq(str, mesa_table_shorten(text, sizeof text, "a\nb\x7f", 8), "a?b?"));
    cr_assert(eq(str, mesa_table_shorten(text, sizeof text, "ä\xffö", 8), "ä\xef\xbf\xbdö"));
    cr_assert(eq(str, mesa_table_shorten(text, sizeof text, "ääääääääää", 8), "äää..äää"));
}

/* Every text of up to 30 random bytes becomes valid UTF-8 that fits. */
Test(table, shortens_anything) {
    srand(11);
    for (int round = 0; round < 20000; round++) {
        char text[31] = {0}, ret[64];
        size_t length = (size_t)rand() % 31, size = 16 + (size_t)rand() % 48;
        size_t columns = 3 + (size_t)rand() % 30, shown = 0;
        for (size_t i = 0; i < length; i++)
            text[i] = (char)(rand() % 3 == 0 ? 1 + rand() % 255 : 0xc0 + rand() % 64);
        mesa_table_shorten(ret, size, text, columns);
        cr_assert(lt(sz, strlen(ret), size));
        for (const char *at = ret; *at != '\0'; at += mesa_utf8_length(at)) {
            cr_assert(gt(sz, mesa_utf8_length(at), 0));
            shown++;
        }
        cr_assert(le(sz, shown, columns));
    }
}

Test(utf8, knows_well_formed_sequences) {
    static const struct {
        const char *text;
        size_t length;
    } cases[] = {
        {"a", 1},
        {"\xc3\xa4", 2},
        {"\xe2\x82\xac", 3},
        {"\xf0\x9f\x98\x80", 4},
        {"\xf4\x8f\xbf\xbf", 4},
        {"\x80", 0},             /* a continuation alone */
        {"\xc0\x80", 0},         /* overlong */
        {"\xe0\x9f\xbf", 0},     /* overlong */
        {"\xf0\x8f\xbf\xbf", 0}, /* overlong */
        {"\xed\xa0\x80", 0},     /* a surrogate */
        {"\xf4\x90\x80\x80", 0}, /* past U+10FFFF */
        {"\xe2\x82", 0},         /* cut off */
        {"\xf0\x9f\x98", 0},
        {"\xff", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert(eq(sz, mesa_utf8_length(cases[i].text), cases[i].length), "case %zu", i);
}
