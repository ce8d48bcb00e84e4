/* The other words of a rule: how to hold tensors, and on which conditions.
 *
 * SPDX-License-Identifier: MIT */
#include "policy/parse.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* ---- values ------------------------------------------------------------------------------------ */

static const char *const way_names[MESA_WAY_COUNT + 1] = {
    [MESA_WAY_OFF] = "off",         [MESA_WAY_KEEP] = "keep",         [MESA_WAY_EXACT] = "exact",
    [MESA_WAY_AUTO] = "auto",       [MESA_WAY_SHAPE] = "shape",       [MESA_WAY_MASK] = "mask",
    [MESA_WAY_NARROW] = "narrow",   [MESA_WAY_SPARSE] = "sparse",     [MESA_WAY_AFFINE] = "affine",
    [MESA_WAY_FLOAT16] = "float16", [MESA_WAY_BFLOAT16] = "bfloat16",
};

const char *mesa_way_name(enum mesa_way way) {
    return way_names[way];
}

/* Decimal digits at *at, moved past them. False if there are none or the number is above `most`. */
static bool take_number(const char **at, const char *end, size_t most, size_t *ret_number) {
    const char *begin = *at;
    size_t number = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at) {
        size_t digit = (size_t)(**at - '0');
        if (digit > most || number > (most - digit) / 10)
            return false;
        number = number * 10 + digit;
    }
    *ret_number = number;
    return *at != begin;
}

static bool whole_number(struct mesa_word value, size_t least, size_t most, size_t *ret_number) {
    const char *at = value.text, *end = value.text + value.length;
    return take_number(&at, end, most, ret_number) && at == end && *ret_number >= least;
}

static bool parse_bits(const struct mesa_line *line, struct mesa_word value,
                       struct mesa_rule *rule) {
    size_t bits;
    if (!whole_number(value, 1, MESA_MOST_CODE_BITS, &bits) &&
        !whole_number(value, MESA_SHORT_FLOAT_BITS, MESA_SHORT_FLOAT_BITS, &bits))
        return mesa_line_fail(line, value.text, NULL, "'%.*s' bits; expected 1 to 12, or 16",
                              MESA_WORD(value));
    rule->settings.bits = (unsigned)bits;
    return true;
}

static const char *const group_names[] = {
    [MESA_BY_BLOCK] = "",          [MESA_BY_ROW] = "row",       [MESA_BY_HEAD] = "head",
    [MESA_BY_CHANNEL] = "channel", [MESA_BY_TENSOR] = "tensor", NULL,
};

static bool parse_group(const struct mesa_line *line, struct mesa_word value,
                        struct mesa_rule *rule) {
    for (int by = MESA_BY_ROW; by <= MESA_BY_TENSOR; by++) {
        if (mesa_word_is(value, group_names[by])) {
            rule->settings.by = (enum mesa_group_by)by;
            return true;
        }
    }
    rule->settings.by = MESA_BY_BLOCK;
    if (!whole_number(value, 16, 1024, &rule->settings.group))
        return mesa_line_fail(
            line, value.text, mesa_word_nearest(value, group_names + MESA_BY_ROW),
            "unknown group '%.*s'; expected 16 to 1024, row, head, channel or tensor",
            MESA_WORD(value));
    return true;
}

static bool parse_round(const struct mesa_line *line, struct mesa_word value,
                        struct mesa_rule *rule) {
    static const char *const names[] = {"nearest", "stochastic", NULL};
    if (!mesa_word_is(value, names[0]) && !mesa_word_is(value, names[1]))
        return mesa_line_fail(line, value.text, mesa_word_nearest(value, names),
                              "unknown rounding '%.*s'; expected nearest or stochastic",
                              MESA_WORD(value));
    rule->settings.rounding =
        mesa_word_is(value, names[0]) ? MESA_ROUND_NEAREST : MESA_ROUND_STOCHASTIC;
    return true;
}

/* Cuts the next item off a list with commas. False at its end. */
static bool next_item(struct mesa_word *list, struct mesa_word *ret_item) {
    if (list->text == NULL)
        return false;
    const char *comma = memchr(list->text, ',', list->length);
    size_t length = comma == NULL ? list->length : (size_t)(comma - list->text);
    *ret_item = (struct mesa_word){list->text, length};
    *list = comma == NULL ? (struct mesa_word){NULL, 0}
                          : (struct mesa_word){comma + 1, list->length - length - 1};
    return true;
}

static bool parse_dtype(const struct mesa_line *line, struct mesa_word value,
                        struct mesa_rule *rule) {
    struct mesa_word item;
    while (next_item(&value, &item)) {
        char name[16];
        snprintf(name, sizeof name, "%.*s", MESA_WORD(item));
        enum mesa_dtype dtype =
            item.length < sizeof name ? mesa_dtype_find(name) : MESA_DTYPE_COUNT;
        if (dtype == MESA_DTYPE_COUNT) {
            const char *names[MESA_DTYPE_OTHER + 1] = {NULL};
            for (int i = 0; i < MESA_DTYPE_OTHER; i++)
                names[i] = mesa_dtype_name((enum mesa_dtype)i);
            return mesa_line_fail(
                line, item.text, mesa_word_nearest(item, names),
                "unknown dtype '%.*s'; expected a type of PyTorch's, as float32 or "
                "bfloat16, or several with commas",
                MESA_WORD(item));
        }
        rule->dtypes |= 1u << dtype;
    }
    return true;
}

static bool parse_min_bytes(const struct mesa_line *line, struct mesa_word value,
                            struct mesa_rule *rule) {
    const char *at = value.text, *end = value.text + value.length;
    size_t bytes;
    if (!take_number(&at, end, SIZE_MAX, &bytes))
        goto fail;
    if (at < end) {
        static const char units[] = "KkMmGg";
        const char *unit = strchr(units, *at++);
        if (unit == NULL)
            goto fail;
        unsigned shift = 10 * ((unsigned)(unit - units) / 2 + 1);
        if (bytes > SIZE_MAX >> shift)
            goto fail;
        bytes <<= shift;
    }
    if (at < end)
        goto fail;
    rule->least_bytes = bytes;
    return true;
fail:
    return mesa_line_fail(line, value.text, NULL,
                          "'%.*s' bytes; expected a number, or one with K, M or G behind it",
                          MESA_WORD(value));
}

static bool parse_span(struct mesa_word item, struct mesa_layer_span *ret_span) {
    const char *at = item.text, *end = item.text + item.length;
    size_t first, last;
    if (!take_number(&at, end, UINT_MAX - 1, &first))
        return false;
    last = first;
    if (at < end && *at == '-') {
        at++;
        if (at == end)
            last = UINT_MAX;
        else if (!take_number(&at, end, UINT_MAX - 1, &last))
            return false;
    }
    *ret_span = (struct mesa_layer_span){(unsigned)first, (unsigned)last};
    return at == end && first <= last;
}

static bool parse_layer(const struct mesa_line *line, struct mesa_word value,
                        struct mesa_rule *rule) {
    struct mesa_word item;
    while (next_item(&value, &item)) {
        if (rule->span_count == MESA_RULE_MOST_SPANS)
            return mesa_line_fail(line, item.text, NULL,
                                  "too many layers; expected at most %d ranges",
                                  MESA_RULE_MOST_SPANS);
        if (!parse_span(item, &rule->spans[rule->span_count++]))
            return mesa_line_fail(
                line, item.text, NULL,
                "'%.*s' is no layer; expected N, N-M with N <= M, N- or several with commas",
                MESA_WORD(item));
    }
    return true;
}

/* ---- settings ---------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    unsigned has;
    bool (*parse)(const struct mesa_line *line, struct mesa_word value, struct mesa_rule *rule);
} keys[] = {
    {"bits", MESA_RULE_SETS_BITS, parse_bits},
    {"group", MESA_RULE_SETS_GROUP, parse_group},
    {"round", MESA_RULE_SETS_ROUND, parse_round},
    {"dtype", MESA_RULE_HAS_DTYPE, parse_dtype},
    {"min_bytes", MESA_RULE_HAS_BYTES, parse_min_bytes},
    {"layer", MESA_RULE_HAS_LAYER, parse_layer},
    {"seen", MESA_RULE_HAS_SEEN, mesa_rule_parse_seen},
};
#define KEY_COUNT (sizeof keys / sizeof keys[0])
#define KEYS      "bits=, group=, round=, dtype=, min_bytes=, layer= or seen="

static bool parse_key(const struct mesa_line *line, struct mesa_word word, size_t key_length,
                      struct mesa_rule *rule) {
    struct mesa_word key = {word.text, key_length};
    struct mesa_word value = {word.text + key_length + 1, word.length - key_length - 1};
    const char *names[KEY_COUNT + 1] = {NULL};
    for (size_t i = 0; i < KEY_COUNT; i++) {
        names[i] = keys[i].name;
        if (!mesa_word_is(key, keys[i].name))
            continue;
        if ((rule->has & keys[i].has) != 0 && keys[i].has != MESA_RULE_HAS_SEEN)
            return mesa_line_fail(line, word.text, NULL,
                                  "'%s=' twice in one rule; expected it once", keys[i].name);
        rule->has |= keys[i].has;
        return keys[i].parse(line, value, rule);
    }
    return mesa_line_fail(line, word.text, mesa_word_nearest(key, names),
                          "unknown setting '%.*s='; expected " KEYS, MESA_WORD(key));
}

static bool parse_way(const struct mesa_line *line, struct mesa_word word, struct mesa_rule *rule) {
    for (int way = 0; way < MESA_WAY_COUNT; way++) {
        if (!mesa_word_is(word, way_names[way]))
            continue;
        if ((rule->has & MESA_RULE_SETS_WAY) != 0)
            return mesa_line_fail(line, word.text, NULL,
                                  "'%s' after '%s'; expected one way in a rule", way_names[way],
                                  way_names[rule->settings.way]);
        rule->has |= MESA_RULE_SETS_WAY;
        rule->settings.way = (enum mesa_way)way;
        return true;
    }
    const char *names[MESA_WAY_COUNT + KEY_COUNT + 1] = {NULL};
    memcpy(names, way_names, sizeof way_names);
    for (size_t i = 0; i < KEY_COUNT; i++)
        names[MESA_WAY_COUNT + i] = keys[i].name;
    return mesa_line_fail(
        line, word.text, mesa_word_nearest(word, names),
        "unknown setting '%.*s'; expected off, keep, exact, auto, shape, mask, narrow, "
        "sparse, affine, float16, bfloat16, " KEYS,
        MESA_WORD(word));
}

bool mesa_rule_parse_setting(const struct mesa_line *line, struct mesa_word word,
                             struct mesa_rule *rule) {
    const char *equals = memchr(word.text, '=', word.length);
    if (equals == NULL)
        return parse_way(line, word, rule);
    return parse_key(line, word, (size_t)(equals - word.text), rule);
}
