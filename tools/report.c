/* `mesa report`: reads a JSON report back into an account and renders it with the code that rendered
 * the text at exit. Fields that are missing or of another type count as 0 or as not known, so that
 * later versions may add and leave out.
 *
 * SPDX-License-Identifier: MIT */
#include "launcher.h"

#include "report/account.h"
#include "report/buffer.h"
#include "report/json.h"
#include "report/text.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All getters take NULL and give what stands for "not known". */
static uint64_t get_count(const json_t *object, const char *key) {
    json_int_t value = json_integer_value(json_object_get(object, key));
    return value < 0 ? 0 : (uint64_t)value;
}

static double get_number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static const char *get_string(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static const char *get_name(const json_t *object, const char *key) {
    const char *text = get_string(object, key);
    return text == NULL ? "" : text;
}

static enum mesa_kept find_kept(const char *name) {
    for (int why = MESA_KEPT_NOT + 1; name != NULL && why < MESA_KEPT_COUNT; why++)
        if (strcmp(name, mesa_json_kept_name((enum mesa_kept)why)) == 0)
            return (enum mesa_kept)why;
    return MESA_KEPT_NOT;
}

static enum mesa_dtype find_dtype(const char *name) {
    enum mesa_dtype dtype = mesa_dtype_find(name);
    return dtype == MESA_DTYPE_COUNT ? MESA_DTYPE_OTHER : dtype;
}

static void read_errors(const json_t *errors, struct mesa_account_row *row) {
    const json_t *sums = json_object_get(errors, "sums");
    row->sums = (struct mesa_verify_sums){
        .error2 = get_number(sums, "error2"),
        .value2 = get_number(sums, "value2"),
        .dot = get_number(sums, "dot"),
        .restored2 = get_number(sums, "restored2"),
        .largest = get_number(errors, "largest"),
        .elements = get_count(errors, "elements"),
        .sign_flips = get_count(errors, "sign_flips"),
        .zero_changes = get_count(errors, "zero_changes"),
    };
    row->verified = row->sums.elements != 0;
}

static void read_row(const json_t *record, struct mesa_account_row *ret_row) {
    *ret_row = (struct mesa_account_row){
        .op = get_name(record, "op"),
        .argument = get_name(record, "argument"),
        .way = get_name(record, "way"),
        .dtype = find_dtype(get_name(record, "dtype")),
        .kept = find_kept(get_string(record, "kept")),
        .tensors = get_count(record, "tensors"),
        .shared = get_count(record, "shared"),
        .elements = get_count(record, "elements"),
        .would_bytes_total = get_count(record, "would_bytes_total"),
        .held_bytes_total = get_count(record, "held_bytes_total"),
        .would_bytes_peak = get_count(record, "would_bytes_peak"),
        .held_bytes_peak = get_count(record, "held_bytes_peak"),
        .pack_ns = get_count(record, "pack_ns"),
        .unpack_ns = get_count(record, "unpack_ns"),
        .unpacks = get_count(record, "unpacks"),
    };
    read_errors(json_object_get(record, "errors"), ret_row);
}

static bool read_rows(const json_t *records, struct mesa_account *account) {
    size_t count = json_array_size(records);
    account->rows = calloc(count + 1, sizeof *account->rows);
    if (account->rows == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        read_row(json_array_get(records, i), &account->rows[i]);
    account->row_count = count;
    mesa_account_sort(account);
    return true;
}

static void read_run(const json_t *root, struct mesa_account *account) {
    const json_t *run = json_object_get(root, "run");
    const json_t *environment = json_object_get(root, "environment");
    const char *version = get_string(environment, "libmesa");
    const char *host = get_string(environment, "host");
    double seconds = get_number(run, "seconds");
    account->run = (struct mesa_run){
        .version = version == NULL ? "(unknown version)" : version,
        .torch_version = get_string(environment, "torch"),
        .isa = get_string(environment, "isa"),
        .policy = get_string(json_object_get(root, "policy"), "name"),
        .command = get_string(run, "command"),
        .seconds = isfinite(seconds) ? seconds : 0,
        .threads = (unsigned)get_count(environment, "threads"),
        .verified = json_is_true(json_object_get(run, "verified")),
    };
    mesa_print_into(account->host, sizeof account->host, "%s", host == NULL ? "unknown" : host);
    account->pid = (long)get_count(run, "pid");
    account->rank = (unsigned)get_count(run, "rank");
    account->peak_rss_bytes = get_count(run, "peak_rss_bytes");
    account->totals = (struct mesa_ledger_totals){
        .would_bytes_peak = (int64_t)get_count(run, "would_bytes_peak"),
        .held_bytes_peak = (int64_t)get_count(run, "held_bytes_peak"),
        .tensors = get_count(run, "tensors"),
        .pack_ns = get_count(run, "pack_ns"),
        .unpack_ns = get_count(run, "unpack_ns"),
        .steps = get_count(run, "steps"),
    };
}

static void read_kept(const json_t *kept, struct mesa_account *account) {
    for (size_t i = 0; i < json_array_size(kept); i++) {
        const json_t *group = json_array_get(kept, i);
        enum mesa_kept why = find_kept(get_string(group, "reason"));
        if (why != MESA_KEPT_NOT)
            account->totals.kept[why] = get_count(group, "tensors");
    }
}

/* Strings of the account are borrowed from root. */
static int print_account(const json_t *root) {
    struct mesa_account account = {0};
    struct mesa_buffer text = {0};
    read_run(root, &account);
    read_kept(json_object_get(root, "kept"), &account);
    int error = ENOMEM;
    if (read_rows(json_object_get(root, "records"), &account)) {
        mesa_text_render(&account, &text);
        error = text.failed ? ENOMEM : mesa_write_all(STDOUT_FILENO, text.bytes, text.length);
    }
    mesa_buffer_done(&text);
    mesa_account_done(&account);
    if (error == 0)
        return EXIT_GOOD;
    fprintf(stderr, "mesa: standard output: %s\n", strerror(error));
    return EXIT_BROKEN;
}

static int refuse(const char *file, const char *why) {
    fprintf(stderr, "mesa: %s: %s\n", file, why);
    return EXIT_BROKEN;
}

static int print_report(const char *file) {
    json_error_t error;
    json_t *root =
        strcmp(file, "-") == 0 ? json_loadf(stdin, 0, &error) : json_load_file(file, 0, &error);
    if (root == NULL) {
        if (error.line > 0)
            fprintf(stderr, "mesa: %s:%d:%d: %s\n", file, error.line, error.column, error.text);
        else
            fprintf(stderr, "mesa: %s\n", error.text); /* names the file itself */
        return EXIT_BROKEN;
    }
    int code;
    const char *format = get_string(root, "format");
    if (format == NULL || strcmp(format, MESA_JSON_FORMAT) != 0)
        code = refuse(file, "this is not a report of libmesa");
    else if (get_count(root, "format_version") != MESA_JSON_FORMAT_VERSION)
        code = refuse(file, "this report is of another version; use the mesa that wrote it");
    else
        code = print_account(root);
    json_decref(root);
    return code;
}

int launcher_report(char **words) {
    if (words[1] != NULL && launcher_is_help(words[1]))
        return launcher_help(words[0]);
    if (words[1] == NULL)
        return launcher_mistake("mesa report needs the name of a JSON report");
    int code = EXIT_GOOD;
    for (char **file = words + 1; *file != NULL; file++) {
        int file_code = print_report(*file);
        code = file_code == EXIT_GOOD ? code : file_code;
    }
    return code;
}
