/* From text to rules: lines, rules, words. A line is cut into rules at `;` and a rule into words at
 * blanks; the first word is a pattern, each other one a way or `key=value`. The first mistake ends the
 * parse and says where it is, what was expected and which known word is near.
 *
 * SPDX-License-Identifier: MIT */
#include "policy/rule.h"

#include "classify/op.h"
#include "policy/file.h"
#include "policy/glob.h"
#include "policy/nearest.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Far above what anybody writes; they bound time and memory for what nobody wrote by hand. */
#define MOST_LINE_BYTES 4096
#define MOST_RULES      10000
#define MOST_DEPTH      16
#define MOST_INCLUDES   256

/* One text being read; texts that include each other form a chain. */
struct text {
    struct mesa_policy *policy;
    struct mesa_mistake *mistake;
    unsigned *includes;       /* of the whole parse */
    const struct text *outer; /* which includes this one; NULL for the first */
    const char *label;        /* owned by the policy */
};

struct line {
    const struct text *text;
    const char *begin, *at, *end;
    unsigned number;
};

struct word {
    const char *text; /* borrowed, not terminated */
    size_t length;
};
/* for "%.*s": long enough to recognise the word */
#define WORD(word) (int)((word).length < 60 ? (word).length : 60), (word).text

static bool word_is(struct word word, const char *text) {
    return strlen(text) == word.length && memcmp(text, word.text, word.length) == 0;
}

static char *word_copy(struct word word) {
    return strndup(word.text, word.length);
}

/* ---- mistakes ---------------------------------------------------------------------------------- */

/* Paths can be longer than the message; their ends tell more than their beginnings. */
static void mistake_set_file(struct mesa_mistake *mistake, const char *label) {
    size_t length = strlen(label), most = sizeof mistake->file - 1;
    if (length > most)
        snprintf(mistake->file, sizeof mistake->file, "...%s", label + length - (most - 3));
    else
        memcpy(mistake->file, label, length + 1);
    mistake->place.file = mistake->file;
}

/* Messages go to terminals and logs, and policies may hold any byte. */
static void mistake_make_printable(struct mesa_mistake *mistake) {
    for (char *c = mistake->text; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    }
}

__attribute__((format(printf, 6, 0))) static void
mistake_write(struct mesa_mistake *mistake, const char *label, unsigned line, unsigned column,
              const char *suggestion, const char *format, va_list arguments) {
    mistake_set_file(mistake, label);
    mistake->place.line = line;
    mistake->place.column = column;
    int most = (int)sizeof mistake->text;
    int used =
        snprintf(mistake->text, sizeof mistake->text, "%s:%u:%u: ", mistake->file, line, column);
    int n = vsnprintf(mistake->text + used, (size_t)(most - used), format, arguments);
    used = n < 0 || n >= most - used ? most : used + n;
    if (suggestion != NULL && used < most)
        snprintf(mistake->text + used, (size_t)(most - used), "; did you mean '%s'?", suggestion);
    mistake_make_printable(mistake);
}

void mesa_mistake_fill(struct mesa_mistake *ret_mistake, const char *label, const char *suggestion,
                       const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    mistake_write(ret_mistake, label, 1, 1, suggestion, format, arguments);
    va_end(arguments);
}

/* Returns false, so that a parser can end with it. */
__attribute__((format(printf, 4, 5))) static bool
fail(const struct line *line, const char *at, const char *suggestion, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    mistake_write(line->text->mistake, line->text->label, line->number,
                  (unsigned)(at - line->begin) + 1, suggestion, format, arguments);
    va_end(arguments);
    return false;
}

static bool fail_memory(const struct line *line) {
    return fail(line, line->at, NULL, "out of memory");
}

/* Names that were possible: looks whether one matches, finds the nearest, lists them for a message. */
struct choice {
    const char *pattern;
    bool is_glob, found, more;
    struct mesa_nearest nearest;
    const char *names[12];
    size_t count;
};

static void choice_begin(struct choice *choice, const char *pattern, bool is_glob) {
    *choice = (struct choice){.pattern = pattern, .is_glob = is_glob};
    mesa_nearest_begin(&choice->nearest, pattern, strlen(pattern));
}

static void choice_offer(struct choice *choice, const char *name) {
    choice->found |= choice->is_glob ? mesa_glob_match(choice->pattern, name)
                                     : strcmp(choice->pattern, name) == 0;
    mesa_nearest_try(&choice->nearest, name);
    for (size_t i = 0; i < choice->count; i++) {
        if (strcmp(choice->names[i], name) == 0)
            return;
    }
    if (choice->count < sizeof choice->names / sizeof choice->names[0])
        choice->names[choice->count++] = name;
    else
        choice->more = true;
}

static const char *choice_list(const struct choice *choice, char *ret, size_t size) {
    size_t used = 0;
    ret[0] = '\0';
    for (size_t i = 0; i < choice->count && used < size; i++) {
        const char *between = i == 0 ? "" : i + 1 < choice->count || choice->more ? ", " : " or ";
        int n = snprintf(ret + used, size - used, "%s%s", between, choice->names[i]);
        used += n < 0 ? size : (size_t)n;
    }
    if (choice->more && used < size)
        snprintf(ret + used, size - used, ", ...");
    return ret;
}

static const char *nearest_of(struct word word, const char *const *words) {
    return mesa_policy_nearest(word.text, word.length, words);
}

/* ---- words ------------------------------------------------------------------------------------- */

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

/* The next word of the rule; length 0 at its end. Quotes belong to the word and may hold blanks. */
static bool next_word(struct line *line, struct word *ret_word) {
    while (line->at < line->end && is_blank(*line->at))
        line->at++;
    const char *begin = line->at;
    for (; line->at < line->end; line->at++) {
        char c = *line->at;
        if (is_blank(c) || c == ';' || c == '#')
            break;
        if (c == '"') {
            const char *close = memchr(line->at + 1, '"', (size_t)(line->end - line->at - 1));
            if (close == NULL)
                return fail(line, line->at, NULL, "no closing quote on this line; expected '\"'");
            line->at = close;
        }
    }
    *ret_word = (struct word){begin, (size_t)(line->at - begin)};
    return true;
}

/* Takes the quotes off a word that is all in quotes. False with a mistake if they close early or
 * hold nothing. */
static bool unquote(const struct line *line, struct word *word) {
    if (word->length == 0 || word->text[0] != '"')
        return true;
    const char *close = memchr(word->text + 1, '"', word->length - 1);
    if (close != word->text + word->length - 1)
        return fail(line, close + 1, NULL, "expected a blank after the closing quote");
    if (word->length == 2)
        return fail(line, word->text, NULL, "expected a name between the quotes");
    *word = (struct word){word->text + 1, word->length - 2};
    return true;
}

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

static bool whole_number(struct word value, size_t least, size_t most, size_t *ret_number) {
    const char *at = value.text, *end = value.text + value.length;
    return take_number(&at, end, most, ret_number) && at == end && *ret_number >= least;
}

static bool parse_bits(const struct line *line, struct word value, struct mesa_rule *rule) {
    size_t bits;
    if (!whole_number(value, 1, 8, &bits))
        return fail(line, value.text, NULL, "'%.*s' bits; expected 1 to 8", WORD(value));
    rule->settings.bits = (unsigned)bits;
    return true;
}

static const char *const group_names[] = {
    [MESA_BY_BLOCK] = "",          [MESA_BY_ROW] = "row",       [MESA_BY_HEAD] = "head",
    [MESA_BY_CHANNEL] = "channel", [MESA_BY_TENSOR] = "tensor", NULL,
};

static bool parse_group(const struct line *line, struct word value, struct mesa_rule *rule) {
    for (int by = MESA_BY_ROW; by <= MESA_BY_TENSOR; by++) {
        if (word_is(value, group_names[by])) {
            rule->settings.by = (enum mesa_group_by)by;
            return true;
        }
    }
    rule->settings.by = MESA_BY_BLOCK;
    if (!whole_number(value, 16, 1024, &rule->settings.group))
        return fail(line, value.text, nearest_of(value, group_names + MESA_BY_ROW),
                    "unknown group '%.*s'; expected 16 to 1024, row, head, channel or tensor",
                    WORD(value));
    return true;
}

static bool parse_round(const struct line *line, struct word value, struct mesa_rule *rule) {
    static const char *const names[] = {"nearest", "stochastic", NULL};
    if (!word_is(value, names[0]) && !word_is(value, names[1]))
        return fail(line, value.text, nearest_of(value, names),
                    "unknown rounding '%.*s'; expected nearest or stochastic", WORD(value));
    rule->settings.rounding = word_is(value, names[0]) ? MESA_ROUND_NEAREST : MESA_ROUND_STOCHASTIC;
    return true;
}

/* Cuts the next item off a list with commas. False at its end. */
static bool next_item(struct word *list, struct word *ret_item) {
    if (list->text == NULL)
        return false;
    const char *comma = memchr(list->text, ',', list->length);
    size_t length = comma == NULL ? list->length : (size_t)(comma - list->text);
    *ret_item = (struct word){list->text, length};
    *list = comma == NULL ? (struct word){NULL, 0}
                          : (struct word){comma + 1, list->length - length - 1};
    return true;
}

static bool parse_dtype(const struct line *line, struct word value, struct mesa_rule *rule) {
    struct word item;
    while (next_item(&value, &item)) {
        char name[16];
        snprintf(name, sizeof name, "%.*s", WORD(item));
        enum mesa_dtype dtype =
            item.length < sizeof name ? mesa_dtype_find(name) : MESA_DTYPE_COUNT;
        if (dtype == MESA_DTYPE_COUNT) {
            const char *names[MESA_DTYPE_OTHER + 1] = {NULL};
            for (int i = 0; i < MESA_DTYPE_OTHER; i++)
                names[i] = mesa_dtype_name((enum mesa_dtype)i);
            return fail(line, item.text, nearest_of(item, names),
                        "unknown dtype '%.*s'; expected a type of PyTorch's, as float32 or "
                        "bfloat16, or several with commas",
                        WORD(item));
        }
        rule->dtypes |= 1u << dtype;
    }
    return true;
}

static bool parse_min_bytes(const struct line *line, struct word value, struct mesa_rule *rule) {
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
    return fail(line, value.text, NULL,
                "'%.*s' bytes; expected a number, or one with K, M or G behind it", WORD(value));
}

static bool parse_span(struct word item, struct mesa_layer_span *ret_span) {
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

static bool parse_layer(const struct line *line, struct word value, struct mesa_rule *rule) {
    struct word item;
    while (next_item(&value, &item)) {
        if (rule->span_count == MESA_RULE_MOST_SPANS)
            return fail(line, item.text, NULL, "too many layers; expected at most %d ranges",
                        MESA_RULE_MOST_SPANS);
        if (!parse_span(item, &rule->spans[rule->span_count++]))
            return fail(
                line, item.text, NULL,
                "'%.*s' is no layer; expected N, N-M with N <= M, N- or several with commas",
                WORD(item));
    }
    return true;
}

/* ---- settings ---------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    unsigned has;
    bool (*parse)(const struct line *line, struct word value, struct mesa_rule *rule);
} keys[] = {
    {"bits", MESA_RULE_SETS_BITS, parse_bits},
    {"group", MESA_RULE_SETS_GROUP, parse_group},
    {"round", MESA_RULE_SETS_ROUND, parse_round},
    {"dtype", MESA_RULE_HAS_DTYPE, parse_dtype},
    {"min_bytes", MESA_RULE_HAS_BYTES, parse_min_bytes},
    {"layer", MESA_RULE_HAS_LAYER, parse_layer},
};
#define KEY_COUNT (sizeof keys / sizeof keys[0])
#define KEYS      "bits=, group=, round=, dtype=, min_bytes= or layer="

static bool parse_key(const struct line *line, struct word word, size_t key_length,
                      struct mesa_rule *rule) {
    struct word key = {word.text, key_length};
    struct word value = {word.text + key_length + 1, word.length - key_length - 1};
    const char *names[KEY_COUNT + 1] = {NULL};
    for (size_t i = 0; i < KEY_COUNT; i++) {
        names[i] = keys[i].name;
        if (!word_is(key, keys[i].name))
            continue;
        if ((rule->has & keys[i].has) != 0)
            return fail(line, word.text, NULL, "'%s=' twice in one rule; expected it once",
                        keys[i].name);
        rule->has |= keys[i].has;
        return keys[i].parse(line, value, rule);
    }
    return fail(line, word.text, nearest_of(key, names), "unknown setting '%.*s='; expected " KEYS,
                WORD(key));
}

static bool parse_way(const struct line *line, struct word word, struct mesa_rule *rule) {
    for (int way = 0; way < MESA_WAY_COUNT; way++) {
        if (!word_is(word, way_names[way]))
            continue;
        if ((rule->has & MESA_RULE_SETS_WAY) != 0)
            return fail(line, word.text, NULL, "'%s' after '%s'; expected one way in a rule",
                        way_names[way], way_names[rule->settings.way]);
        rule->has |= MESA_RULE_SETS_WAY;
        rule->settings.way = (enum mesa_way)way;
        return true;
    }
    const char *names[MESA_WAY_COUNT + KEY_COUNT + 1] = {NULL};
    memcpy(names, way_names, sizeof way_names);
    for (size_t i = 0; i < KEY_COUNT; i++)
        names[MESA_WAY_COUNT + i] = keys[i].name;
    return fail(line, word.text, nearest_of(word, names),
                "unknown setting '%.*s'; expected off, keep, exact, auto, shape, mask, narrow, "
                "sparse, affine, float16, bfloat16, " KEYS,
                WORD(word));
}

static bool parse_setting(const struct line *line, struct word word, struct mesa_rule *rule) {
    const char *equals = memchr(word.text, '=', word.length);
    if (equals == NULL)
        return parse_way(line, word, rule);
    return parse_key(line, word, (size_t)(equals - word.text), rule);
}

/* ---- patterns ---------------------------------------------------------------------------------- */

static bool parse_custom(const struct line *line, struct word name, struct mesa_rule *rule) {
    bool is_quoted = name.length > 0 && name.text[0] == '"';
    if (!unquote(line, &name))
        return false;
    if (name.length == 0)
        return fail(line, name.text, NULL,
                    "expected the class of an autograd function after 'custom:'");
    const char *fault = is_quoted ? NULL : mesa_glob_fault(name.text, name.length);
    if (fault != NULL)
        return fail(line, fault, NULL, "'[' without its ']'");
    rule->kind = MESA_RULE_CUSTOM;
    rule->op_is_glob = !is_quoted && mesa_glob_is_pattern(name.text, name.length);
    rule->op = word_copy(name);
    return rule->op != NULL || fail_memory(line);
}

/* The dot between op and argument, or NULL: the first one that is not in a set. */
static const char *find_dot(struct word word) {
    bool in_set = false;
    for (const char *at = word.text; at < word.text + word.length; at++) {
        if (*at == '[' || *at == ']')
            in_set = *at == '[';
        else if (*at == '.' && !in_set)
            return at;
    }
    return NULL;
}

static bool fail_op(const struct line *line, struct word name) {
    struct mesa_nearest nearest;
    mesa_nearest_begin(&nearest, name.text, name.length);
    const struct mesa_op_group *group;
    for (size_t i = 0; (group = mesa_op_group_at(i)) != NULL; i++)
        mesa_nearest_try(&nearest, group->name);
    for (size_t i = 0; i < mesa_op_count(); i++)
        mesa_nearest_try(&nearest, mesa_op_at(i)->name);
    mesa_nearest_try(&nearest, "custom");
    mesa_nearest_try(&nearest, "unknown");
    mesa_nearest_try(&nearest, "include");
    return fail(line, name.text, nearest.best,
                "unknown op '%.*s'; expected an op of PyTorch's, a group like linear, a pattern "
                "with *, custom:CLASS or include",
                WORD(name));
}

static bool parse_op(const struct line *line, struct word name, struct mesa_rule *rule) {
    rule->op_is_glob = mesa_glob_is_pattern(name.text, name.length);
    if (rule->op_is_glob) {
        rule->kind = MESA_RULE_GLOB;
    } else if (word_is(name, "custom")) {
        rule->kind = MESA_RULE_CUSTOM;
        rule->op_is_glob = true;
        name = (struct word){"*", 1};
    } else if ((rule->group = mesa_op_group_find(name.text, name.length)) != NULL) {
        rule->kind = MESA_RULE_GROUP;
    } else if (word_is(name, "unknown") || mesa_op_find(name.text, name.length) != NULL) {
        rule->kind = MESA_RULE_OP;
    } else {
        return fail_op(line, name);
    }
    rule->op = word_copy(name);
    return rule->op != NULL || fail_memory(line);
}

static void offer_op(struct choice *choice, const struct mesa_op *op) {
    for (size_t i = 0; op != NULL && i < op->count; i++)
        choice_offer(choice, op->arguments[i].argument);
}

static void offer_group(struct choice *choice, const struct mesa_op_group *group) {
    for (size_t i = 0; i < MESA_GROUP_MOST_ALIASES && group->aliases[i].name != NULL; i++)
        choice_offer(choice, group->aliases[i].name);
    for (size_t i = 0; i < MESA_GROUP_MOST_OPS && group->ops[i] != NULL; i++)
        offer_op(choice, mesa_op_find(group->ops[i], strlen(group->ops[i])));
}

/* Offers all argument names that the op part of the rule could save. */
static void offer_arguments(struct choice *choice, const struct mesa_rule *rule) {
    switch (rule->kind) {
    case MESA_RULE_OP:
        offer_op(choice, mesa_op_find(rule->op, strlen(rule->op)));
        if (strcmp(rule->op, "unknown") == 0)
            choice_offer(choice, "?");
        break;
    case MESA_RULE_GROUP:
        offer_group(choice, rule->group);
        break;
    case MESA_RULE_GLOB:
        for (size_t i = 0; i < mesa_op_count(); i++) {
            if (mesa_glob_match(rule->op, mesa_op_at(i)->name))
                offer_op(choice, mesa_op_at(i));
        }
        choice_offer(choice, MESA_CUSTOM_ARGUMENT);
        break;
    case MESA_RULE_CUSTOM:
        choice_offer(choice, MESA_CUSTOM_ARGUMENT);
        break;
    }
}

static bool parse_argument(const struct line *line, struct word op, struct word name,
                           struct mesa_rule *rule) {
    rule->argument = word_copy(name);
    if (rule->argument == NULL)
        return fail_memory(line);
    rule->argument_is_glob = mesa_glob_is_pattern(name.text, name.length);
    struct choice choice;
    choice_begin(&choice, rule->argument, rule->argument_is_glob);
    offer_arguments(&choice, rule);
    char list[200];
    return choice.found || fail(line, name.text, choice.nearest.best,
                                "'%.*s' saves no argument '%.*s'; expected %s", WORD(op),
                                WORD(name), choice_list(&choice, list, sizeof list));
}

static bool parse_pattern(const struct line *line, struct word word, struct mesa_rule *rule) {
    static const char prefix[] = "custom:";
    size_t prefix_length = sizeof prefix - 1;
    if (word.text[0] == '"')
        return parse_custom(line, word, rule);
    if (word.length >= prefix_length && memcmp(word.text, prefix, prefix_length) == 0)
        return parse_custom(
            line, (struct word){word.text + prefix_length, word.length - prefix_length}, rule);

    const char *fault = mesa_glob_fault(word.text, word.length);
    if (fault != NULL)
        return fail(line, fault, NULL, "'[' without its ']'");
    const char *dot = find_dot(word);
    struct word op = {word.text, dot == NULL ? word.length : (size_t)(dot - word.text)};
    if (op.length == 0)
        return fail(line, op.text, NULL, "expected an op before '.'");
    if (!parse_op(line, op, rule))
        return false;
    if (dot == NULL)
        return true;
    struct word argument = {dot + 1, word.length - op.length - 1};
    if (argument.length == 0)
        return fail(line, argument.text, NULL, "expected an argument after '.'");
    return parse_argument(line, op, argument, rule);
}

/* ---- rules, lines, texts ----------------------------------------------------------------------- */

static struct mesa_rule *add_rule(const struct line *line, const char *at) {
    struct mesa_policy *policy = line->text->policy;
    if (policy->count == MOST_RULES) {
        fail(line, at, NULL, "too many rules; expected at most %d", MOST_RULES);
        return NULL;
    }
    if (policy->count == policy->capacity) {
        size_t capacity = policy->capacity == 0 ? 32 : policy->capacity * 2;
        struct mesa_rule *rules = realloc(policy->rules, capacity * sizeof *rules);
        if (rules == NULL) {
            fail_memory(line);
            return NULL;
        }
        policy->rules = rules;
        policy->capacity = capacity;
    }
    struct mesa_rule *rule = &policy->rules[policy->count++];
    *rule = (struct mesa_rule){
        .place = {line->text->label, line->number, (unsigned)(at - line->begin) + 1}};
    return rule;
}

static bool parse_rule(struct line *line, struct word pattern) {
    struct mesa_rule *rule = add_rule(line, pattern.text);
    if (rule == NULL || !parse_pattern(line, pattern, rule))
        return false;
    struct word word;
    for (;;) {
        if (!next_word(line, &word))
            return false;
        if (word.length == 0)
            break;
        if (!parse_setting(line, word, rule))
            return false;
    }
    if ((rule->has & MESA_RULE_SETTINGS) == 0)
        return fail(line, line->at, NULL,
                    "no setting for '%.*s'; expected a way such as keep or affine, bits=, group= "
                    "or round=",
                    WORD(pattern));
    return true;
}

/* The depth of the chain; false with a mistake if `label` is in it already. */
static bool check_chain(const struct line *line, const char *at, const char *label) {
    unsigned depth = 0;
    for (const struct text *text = line->text; text != NULL; text = text->outer, depth++) {
        if (strcmp(text->label, label) == 0 || mesa_file_is_same(text->label, label))
            return fail(line, at, NULL, "'%s' includes itself; expected another policy", label);
    }
    if (depth >= MOST_DEPTH)
        return fail(line, at, NULL, "includes too deep; expected at most %d levels", MOST_DEPTH);
    if (++*line->text->includes > MOST_INCLUDES)
        return fail(line, at, NULL, "too many includes; expected at most %d", MOST_INCLUDES);
    return true;
}

static bool parse_text(const struct text *text, const char *bytes, size_t length);

static bool parse_inner(const struct line *line, const char *at, const char *label,
                        const char *bytes, size_t length) {
    struct text text = *line->text;
    text.outer = line->text;
    text.label = mesa_policy_keep_label(text.policy, label);
    if (text.label == NULL)
        return fail(line, at, NULL, "out of memory");
    return parse_text(&text, bytes, length);
}

static bool include_shipped(const struct line *line, const char *at,
                            const struct mesa_shipped *shipped) {
    char label[64];
    snprintf(label, sizeof label, "policy %s", shipped->name);
    return check_chain(line, at, label) &&
           parse_inner(line, at, label, shipped->text, shipped->length);
}

static bool include_file(const struct line *line, struct word name) {
    char *path = mesa_file_beside(line->text->label, name.text, name.length);
    if (path == NULL)
        return fail_memory(line);
    size_t length;
    const char *reason;
    char *bytes = NULL;
    bool done = check_chain(line, name.text, path);
    if (done) {
        bytes = mesa_file_read(path, &length, &reason);
        done = bytes != NULL ? parse_inner(line, name.text, path, bytes, length)
                             : fail(line, name.text, mesa_shipped_nearest(name.text, name.length),
                                    "cannot read '%s': %s; expected a shipped policy or a file",
                                    path, reason);
    }
    free(bytes);
    free(path);
    return done;
}

static bool parse_include(struct line *line) {
    struct word name, rest;
    if (!next_word(line, &name) || !unquote(line, &name))
        return false;
    if (name.length == 0)
        return fail(line, line->at, NULL, "expected a policy or a file after 'include'");
    if (!next_word(line, &rest))
        return false;
    if (rest.length > 0)
        return fail(line, rest.text, NULL,
                    "'%.*s' after the name to include; expected the end of the rule", WORD(rest));
    struct mesa_shipped shipped;
    if (mesa_shipped_find(name.text, name.length, &shipped))
        return include_shipped(line, name.text, &shipped);
    return include_file(line, name);
}

static bool parse_line(struct line *line) {
    while (line->at < line->end) {
        struct word first;
        if (!next_word(line, &first))
            return false;
        if (first.length > 0) {
            bool done = word_is(first, "include") ? parse_include(line) : parse_rule(line, first);
            if (!done)
                return false;
        }
        if (line->at == line->end || *line->at == '#')
            return true;
        line->at++; /* the ';' at which a rule ends */
    }
    return true;
}

static bool check_line(const struct line *line) {
    const char *nul = memchr(line->begin, '\0', (size_t)(line->end - line->begin));
    if (nul != NULL)
        return fail(line, nul, NULL, "a byte that is 0; expected text");
    if (line->end - line->begin > MOST_LINE_BYTES)
        return fail(line, line->begin + MOST_LINE_BYTES, NULL,
                    "line too long; expected at most %d bytes", MOST_LINE_BYTES);
    return true;
}

static bool parse_text(const struct text *text, const char *bytes, size_t length) {
    static const char byte_order_mark[] = "\xef\xbb\xbf"; /* as editors on Windows write it */
    const char *at = bytes, *end = bytes + length;
    if (length >= 3 && memcmp(bytes, byte_order_mark, 3) == 0)
        at += 3;
    for (unsigned number = 1; at < end; number++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        struct line line = {
            .text = text,
            .begin = at,
            .at = at,
            .end = newline == NULL ? end : newline,
            .number = number,
        };
        if (!check_line(&line) || !parse_line(&line))
            return false;
        at = newline == NULL ? end : newline + 1;
    }
    return true;
}

bool mesa_policy_parse_into(struct mesa_policy *policy, const char *label, const char *bytes,
                            size_t length, struct mesa_mistake *ret_mistake) {
    unsigned includes = 0;
    struct text text = {.policy = policy, .mistake = ret_mistake, .includes = &includes};
    text.label = mesa_policy_keep_label(policy, label);
    if (text.label == NULL) {
        mesa_mistake_fill(ret_mistake, label, NULL, "out of memory");
        return false;
    }
    return parse_text(&text, bytes, length);
}
