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
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a field is here; counts are kept within their type. */
enum field_kind {
    FIELD_COUNT,    /* uint64_t, or int64_t */
    FIELD_UNSIGNED, /* unsigned */
    FIELD_LONG,     /* long */
    FIELD_NUMBER,   /* double, NaN if not known */
    FIELD_TRUTH,    /* bool */
    FIELD_TEXT,     /* const char *, borrowed from the JSON tree, NULL if not known */
};

/* Where a member of a JSON object goes. */
struct field {
    const char *key;
    enum field_kind kind;
    size_t at; /* offset in the structure that is read into */
};

/* NULL for what is missing or of another type. */
static const char *get_string(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static uint64_t get_count(const json_t *object, const char *key) {
    json_int_t value = json_integer_value(json_object_get(object, key));
    return value < 0 ? 0 : (uint64_t)value;
}

static void read_field(const json_t *object, const struct field *field, void *at) {
    const json_t *value = json_object_get(object, field->key);
    uint64_t count = get_count(object, field->key);
    switch (field->kind) {
    case FIELD_COUNT:
        *(uint64_t *)at = count;
        break;
    case FIELD_UNSIGNED:
        *(unsigned *)at = (unsigned)count;
        break;
    case FIELD_LONG:
        *(long *)at = (long)count;
        break;
    case FIELD_NUMBER:
        *(double *)at = json_is_number(value) ? json_number_value(value) : (double)NAN;
        break;
    case FIELD_TRUTH:
        *(bool *)at = json_is_true(value);
        break;
    case FIELD_TEXT:
        *(const char **)at = json_string_value(value);
        break;
    }
}

/* Takes NULL for an object that is missing. */
static void read_fields(const json_t *object, const struct field *fields, size_t count,
                        void *ret_structure) {
    for (size_t i = 0; i < count; i++)
        read_field(object, &fields[i], (char *)ret_structure + fields[i].at);
}

#define READ_FIELDS(object, fields, ret_structure)                                                 \
    read_fields(object, fields, sizeof fields / sizeof *fields, ret_structure)

#define SUM(key, kind)                                                                             \
    { #key, FIELD_##kind, offsetof(struct mesa_verify_sums, key) }
static const struct field sum_fields[] = {
    SUM(error2, NUMBER),
    SUM(value2, NUMBER),
    SUM(dot, NUMBER),
    SUM(restored2, NUMBER),
};
static const struct field error_fields[] = {
    SUM(largest, NUMBER),
    SUM(elements, COUNT),
    SUM(sign_flips, COUNT),
    SUM(zero_changes, COUNT),
};

#define ROW(key, kind)                                                                             \
    { #key, FIELD_##kind, offsetof(struct mesa_account_row, key) }
static const struct field row_fields[] = {
    ROW(op, TEXT),
    ROW(argument, TEXT),
    ROW(way, TEXT),
    ROW(tensors, COUNT),
    ROW(shared, COUNT),
    ROW(elements, COUNT),
    ROW(would_bytes_total, COUNT),
    ROW(held_bytes_total, COUNT),
    ROW(would_bytes_peak, COUNT),
    ROW(held_bytes_peak, COUNT),
    ROW(pack_ns, COUNT),
    ROW(unpack_ns, COUNT),
    ROW(unpacks, COUNT),
};

#define ACCOUNT(key, kind, member)                                                                 \
    { key, FIELD_##kind, offsetof(struct mesa_account, member) }
static const struct field environment_fields[] = {
    ACCOUNT("libmesa", TEXT, run.version),
    ACCOUNT("torch", TEXT, run.torch_version),
    ACCOUNT("isa", TEXT, run.isa),
    ACCOUNT("threads", UNSIGNED, run.threads),
};
static const struct field policy_fields[] = {
    ACCOUNT("name", TEXT, run.policy),
};
static const struct field run_fields[] = {
    ACCOUNT("command", TEXT, run.command),
    ACCOUNT("seconds", NUMBER, run.seconds),
    ACCOUNT("verified", TRUTH, run.verified),
    ACCOUNT("pid", LONG, pid),
    ACCOUNT("rank", UNSIGNED, rank),
    ACCOUNT("peak_rss_bytes", COUNT, peak_rss_bytes),
    ACCOUNT("would_bytes_peak", COUNT, totals.would_bytes_peak),
    ACCOUNT("held_bytes_peak", COUNT, totals.held_bytes_peak),
    ACCOUNT("tensors", COUNT, totals.tensors),
    ACCOUNT("pack_ns", COUNT, totals.pack_ns),
    ACCOUNT("unpack_ns", COUNT, totals.unpack_ns),
    ACCOUNT("steps", COUNT, totals.steps),
};

static enum mesa_kept find_kept(const char *name) {
    for (int why = MESA_KEPT_NOT + 1; name != NULL && why < MESA_KEPT_COUNT; why++)
        if (strcmp(name, mesa_json_kept_name((enum mesa_kept)why)) == 0)
            return (enum mesa_kept)why;
    return MESA_KEPT_NOT;
}

static enum mesa_dtype find_dtype(const char *name) {
    enum mesa_dtype dtype = name == NULL ? MESA_DTYPE_COUNT : mesa_dtype_find(name);
    return dtype == MESA_DTYPE_COUNT ? MESA_DTYPE_OTHER : dtype;
}

static const char *name_of(const char *text) {
    return text == NULL ? "" : text;
}

static void read_row(const json_t *record, struct mesa_account_row *ret_row) {
    const json_t *errors = json_object_get(record, "errors");
    READ_FIELDS(record, row_fields, ret_row);
    ret_row->op = name_of(ret_row->op);
    ret_row->argument = name_of(ret_row->argument);
    ret_row->way = name_of(ret_row->way);
    ret_row->dtype = find_dtype(get_string(record, "dtype"));
    ret_row->kept = find_kept(get_string(record, "kept"));
    READ_FIELDS(errors, error_fields, &ret_row->sums);
    READ_FIELDS(json_object_get(errors, "sums"), sum_fields, &ret_row->sums);
    ret_row->verified = ret_row->sums.elements != 0;
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
    const json_t *environment = json_object_get(root, "environment");
    const char *host = get_string(environment, "host");
    READ_FIELDS(environment, environment_fields, account);
    READ_FIELDS(json_object_get(root, "policy"), policy_fields, account);
    READ_FIELDS(json_object_get(root, "run"), run_fields, account);
    if (account->run.version == NULL)
        account->run.version = "(unknown version)";
    if (!isfinite(account->run.seconds))
        account->run.seconds = 0;
    mesa_print_into(account->host, sizeof account->host, "%s", host == NULL ? "unknown" : host);
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
