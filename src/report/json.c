/* The JSON report. A small emitter keeps commas and indentation right, so that what follows reads
 * like the schema. Numbers that JSON does not know (NaN, infinity) become null.
 *
 * SPDX-License-Identifier: MIT */
#include "report/json.h"

#include "report/utf8.h"

#include <math.h>
#include <string.h>

/* Where in the text the emitter is. Objects and arrays of depth below `inline_depth` have one member
 * a line; deeper ones stand on one line, so a record is a line. */
struct emitter {
    struct mesa_buffer *buffer; /* borrowed */
    int depth, inline_depth;
    bool first; /* the next member is the first of its object or array */
};

static void emit_string(struct mesa_buffer *buffer, const char *text) {
    mesa_buffer_text(buffer, "\"");
    for (; *text != '\0';) {
        size_t length = mesa_utf8_length(text);
        unsigned char byte = (unsigned char)*text;
        if (length == 0)
            mesa_buffer_text(buffer, "\\ufffd");
        else if (byte == '"' || byte == '\\')
            mesa_buffer_append(buffer, (char[]){'\\', *text}, 2);
        else if (byte < ' ' || byte == 0x7f)
            mesa_buffer_print(buffer, "\\u%04x", byte);
        else
            mesa_buffer_append(buffer, text, length);
        text += length == 0 ? 1 : length;
    }
    mesa_buffer_text(buffer, "\"");
}

static void begin_line(struct emitter *emitter) {
    if (emitter->depth >= emitter->inline_depth)
        return;
    mesa_buffer_print(emitter->buffer, "\n%*s", 2 * emitter->depth, "");
}

/* What stands before every value: comma, line, key (NULL in an array). */
static void begin_member(struct emitter *emitter, const char *key) {
    bool on_line = emitter->depth >= emitter->inline_depth;
    if (!emitter->first)
        mesa_buffer_text(emitter->buffer, on_line ? ", " : ",");
    emitter->first = false;
    if (emitter->depth != 0)
        begin_line(emitter);
    if (key == NULL)
        return;
    emit_string(emitter->buffer, key);
    mesa_buffer_text(emitter->buffer, ": ");
}

static void begin(struct emitter *emitter, const char *key, const char *bracket) {
    begin_member(emitter, key);
    mesa_buffer_text(emitter->buffer, bracket);
    emitter->depth++;
    emitter->first = true;
}

static void end(struct emitter *emitter, const char *bracket) {
    emitter->depth--;
    if (!emitter->first && emitter->depth + 1 < emitter->inline_depth)
        begin_line(emitter);
    mesa_buffer_text(emitter->buffer, bracket);
    emitter->first = false;
}

static void put_null(struct emitter *emitter, const char *key) {
    begin_member(emitter, key);
    mesa_buffer_text(emitter->buffer, "null");
}

static void put_string(struct emitter *emitter, const char *key, const char *text) {
    if (text == NULL) {
        put_null(emitter, key);
        return;
    }
    begin_member(emitter, key);
    emit_string(emitter->buffer, text);
}

static void put_count(struct emitter *emitter, const char *key, uint64_t count) {
    begin_member(emitter, key);
    mesa_buffer_print(emitter->buffer, "%llu", (unsigned long long)count);
}

static void put_bool(struct emitter *emitter, const char *key, bool value) {
    begin_member(emitter, key);
    mesa_buffer_text(emitter->buffer, value ? "true" : "false");
}

/* 17 digits: reading gives back the same double. */
static void put_exact(struct emitter *emitter, const char *key, double number) {
    if (!isfinite(number)) {
        put_null(emitter, key);
        return;
    }
    begin_member(emitter, key);
    mesa_buffer_print(emitter->buffer, "%.17g", number);
}

/* For what is only looked at. */
static void put_rounded(struct emitter *emitter, const char *key, double number) {
    if (!isfinite(number)) {
        put_null(emitter, key);
        return;
    }
    begin_member(emitter, key);
    mesa_buffer_print(emitter->buffer, "%.9g", number);
}

static const char *const kept_names[MESA_KEPT_COUNT] = {
    [MESA_KEPT_POLICY] = "policy",         [MESA_KEPT_PARAMETER] = "parameter",
    [MESA_KEPT_FROZEN] = "frozen",         [MESA_KEPT_ALIVE] = "alive",
    [MESA_KEPT_UNKNOWN_OP] = "unknown_op", [MESA_KEPT_EXACT] = "exact",
    [MESA_KEPT_VALUES] = "values",         [MESA_KEPT_LAYOUT] = "layout",
    [MESA_KEPT_DTYPE] = "dtype",           [MESA_KEPT_NO_MEMORY] = "no_memory",
    [MESA_KEPT_LOOKED_AT] = "looked_at",   [MESA_KEPT_HOOKED] = "hooked",
    [MESA_KEPT_KIND] = "kind",
};

const char *mesa_json_kept_name(enum mesa_kept why) {
    return kept_names[why];
}

static void put_run(struct emitter *emitter, const struct mesa_account *account) {
    const struct mesa_ledger_totals *totals = &account->totals;
    begin(emitter, "run", "{");
    put_string(emitter, "command", account->run.command);
    put_string(emitter, "written", account->written);
    put_count(emitter, "pid", (uint64_t)account->pid);
    put_count(emitter, "rank", account->rank);
    put_exact(emitter, "seconds", account->run.seconds);
    put_count(emitter, "steps", totals->steps);
    put_count(emitter, "tensors", totals->tensors);
    put_count(emitter, "pack_ns", totals->pack_ns);
    put_count(emitter, "unpack_ns", totals->unpack_ns);
    put_count(emitter, "would_bytes_peak", (uint64_t)totals->would_bytes_peak);
    put_count(emitter, "held_bytes_peak", (uint64_t)totals->held_bytes_peak);
    put_count(emitter, "would_bytes", (uint64_t)totals->would_bytes);
    put_count(emitter, "held_bytes", (uint64_t)totals->held_bytes);
    if (totals->held_bytes_peak > 0)
        put_rounded(emitter, "ratio",
                    (double)totals->would_bytes_peak / (double)totals->held_bytes_peak);
    else
        put_null(emitter, "ratio");
    put_count(emitter, "peak_rss_bytes", account->peak_rss_bytes);
    put_bool(emitter, "verified", account->run.verified);
    end(emitter, "}");
}

static void put_environment(struct emitter *emitter, const struct mesa_account *account) {
    begin(emitter, "environment", "{");
    put_string(emitter, "libmesa", account->run.version);
    put_string(emitter, "torch", account->run.torch_version);
    put_string(emitter, "isa", account->run.isa);
    put_count(emitter, "threads", account->run.threads);
    put_string(emitter, "host", account->host);
    end(emitter, "}");
}

static void put_errors(struct emitter *emitter, const struct mesa_verify_sums *sums) {
    struct mesa_account_errors errors = mesa_account_errors(sums);
    begin(emitter, "errors", "{");
    put_rounded(emitter, "relative", errors.relative);
    put_exact(emitter, "largest", errors.largest);
    put_rounded(emitter, "cosine", errors.cosine);
    put_count(emitter, "sign_flips", sums->sign_flips);
    put_count(emitter, "zero_changes", sums->zero_changes);
    put_count(emitter, "elements", sums->elements);
    begin(emitter, "sums", "{");
    put_exact(emitter, "error2", sums->error2);
    put_exact(emitter, "value2", sums->value2);
    put_exact(emitter, "dot", sums->dot);
    put_exact(emitter, "restored2", sums->restored2);
    end(emitter, "}");
    end(emitter, "}");
}

static void put_record(struct emitter *emitter, const struct mesa_account_row *row) {
    begin(emitter, NULL, "{");
    put_string(emitter, "op", row->op);
    put_string(emitter, "argument", row->argument);
    put_string(emitter, "dtype", mesa_dtype_name(row->dtype));
    put_string(emitter, "way", row->way);
    put_string(emitter, "kept", mesa_json_kept_name(row->kept));
    put_count(emitter, "tensors", row->tensors);
    put_count(emitter, "shared", row->shared);
    put_count(emitter, "elements", row->elements);
    put_count(emitter, "would_bytes_total", row->would_bytes_total);
    put_count(emitter, "held_bytes_total", row->held_bytes_total);
    put_count(emitter, "would_bytes_peak", row->would_bytes_peak);
    put_count(emitter, "held_bytes_peak", row->held_bytes_peak);
    double bits = mesa_account_bits(row);
    if (bits >= 0)
        put_rounded(emitter, "bits_per_value", bits);
    else
        put_null(emitter, "bits_per_value");
    put_count(emitter, "pack_ns", row->pack_ns);
    put_count(emitter, "unpack_ns", row->unpack_ns);
    put_count(emitter, "unpacks", row->unpacks);
    if (row->verified)
        put_errors(emitter, &row->sums);
    else
        put_null(emitter, "errors");
    end(emitter, "}");
}

static void put_kept(struct emitter *emitter, const struct mesa_account *account) {
    begin(emitter, "kept", "[");
    for (int why = MESA_KEPT_NOT + 1; why < MESA_KEPT_COUNT; why++) {
        if (account->totals.kept[why] == 0)
            continue;
        begin(emitter, NULL, "{");
        put_string(emitter, "reason", mesa_json_kept_name((enum mesa_kept)why));
        put_string(emitter, "text", mesa_kept_text((enum mesa_kept)why));
        put_count(emitter, "tensors", account->totals.kept[why]);
        end(emitter, "}");
    }
    end(emitter, "]");
}

static void put_series(struct emitter *emitter, const struct mesa_account *account) {
    begin(emitter, "series", "{");
    put_count(emitter, "steps_per_point", account->totals.steps_per_point);
    emitter->inline_depth++; /* points are one deeper than records, and a line each too */
    begin(emitter, "points", "[");
    for (size_t i = 0; i < account->point_count; i++) {
        const struct mesa_step_point *point = &account->points[i];
        begin(emitter, NULL, "{");
        put_rounded(emitter, "seconds", point->seconds);
        put_count(emitter, "would_bytes_peak", point->would_bytes_peak);
        put_count(emitter, "held_bytes_peak", point->held_bytes_peak);
        put_count(emitter, "would_bytes_end", point->would_bytes_end);
        put_count(emitter, "held_bytes_end", point->held_bytes_end);
        end(emitter, "}");
    }
    end(emitter, "]");
    emitter->inline_depth--;
    end(emitter, "}");
}

void mesa_json_render(const struct mesa_account *account, struct mesa_buffer *buffer) {
    struct emitter emitter = {.buffer = buffer, .inline_depth = 3, .first = true};
    begin(&emitter, NULL, "{");
    put_string(&emitter, "format", MESA_JSON_FORMAT);
    put_count(&emitter, "format_version", MESA_JSON_FORMAT_VERSION);
    put_run(&emitter, account);
    put_environment(&emitter, account);
    begin(&emitter, "policy", "{");
    put_string(&emitter, "name", account->run.policy);
    end(&emitter, "}");
    begin(&emitter, "records", "[");
    for (size_t i = 0; i < account->row_count; i++)
        put_record(&emitter, &account->rows[i]);
    end(&emitter, "]");
    put_kept(&emitter, account);
    put_series(&emitter, account);
    end(&emitter, "}");
    mesa_buffer_text(buffer, "\n");
}
