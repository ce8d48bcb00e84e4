/* From text to rules: lines, rules, words. A line is cut into rules at `;` and a rule into words at
 * blanks; the first word is a pattern, each other one a way or `key=value`. The first mistake ends the
 * parse and says where it is, what was expected and which known word is near.
 *
 * SPDX-License-Identifier: MIT */
#include "policy/parse.h"

#include "policy/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Far above what anybody writes; they bound time and memory for what nobody wrote by hand. */
#define MOST_LINE_BYTES 4096
#define MOST_RULES      10000
#define MOST_DEPTH      16
#define MOST_INCLUDES   256

/* ---- words ------------------------------------------------------------------------------------- */

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

/* The next word of the rule; length 0 at its end. Quotes belong to the word and may hold blanks. */
static bool next_word(struct mesa_line *line, struct mesa_word *ret_word) {
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
                return mesa_line_fail(line, line->at, NULL,
                                      "no closing quote on this line; expected '\"'");
            line->at = close;
        }
    }
    *ret_word = (struct mesa_word){begin, (size_t)(line->at - begin)};
    return true;
}

/* ---- rules, lines, texts ----------------------------------------------------------------------- */

static struct mesa_rule *add_rule(const struct mesa_line *line, const char *at) {
    struct mesa_policy *policy = line->text->policy;
    if (policy->count == MOST_RULES) {
        mesa_line_fail(line, at, NULL, "too many rules; expected at most %d", MOST_RULES);
        return NULL;
    }
    if (policy->count == policy->capacity) {
        size_t capacity = policy->capacity == 0 ? 32 : policy->capacity * 2;
        struct mesa_rule *rules = realloc(policy->rules, capacity * sizeof *rules);
        if (rules == NULL) {
            mesa_line_fail_memory(line);
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

static bool parse_rule(struct mesa_line *line, struct mesa_word pattern) {
    struct mesa_rule *rule = add_rule(line, pattern.text);
    if (rule == NULL || !mesa_rule_parse_pattern(line, pattern, rule))
        return false;
    struct mesa_word word;
    for (;;) {
        if (!next_word(line, &word))
            return false;
        if (word.length == 0)
            break;
        if (!mesa_rule_parse_setting(line, word, rule))
            return false;
    }
    if ((rule->has & MESA_RULE_SETTINGS) == 0)
        return mesa_line_fail(
            line, line->at, NULL,
            "no setting for '%.*s'; expected a way such as keep or affine, bits=, group= "
            "or round=",
            MESA_WORD(pattern));
    line->text->policy->uses_layers |= (rule->has & MESA_RULE_HAS_LAYER) != 0;
    return true;
}

/* False with a mistake if the text called `label` may not be included here. */
static bool check_chain(const struct mesa_line *line, const char *at, const char *label) {
    unsigned depth = 0;
    for (const struct mesa_text *text = line->text; text != NULL; text = text->outer, depth++) {
        if (strcmp(text->label, label) == 0 || mesa_file_is_same(text->label, label))
            return mesa_line_fail(line, at, NULL, "'%s' includes itself; expected another policy",
                                  label);
    }
    if (depth >= MOST_DEPTH)
        return mesa_line_fail(line, at, NULL, "includes too deep; expected at most %d levels",
                              MOST_DEPTH);
    if (++*line->text->includes > MOST_INCLUDES)
        return mesa_line_fail(line, at, NULL, "too many includes; expected at most %d",
                              MOST_INCLUDES);
    return true;
}

static bool parse_text(const struct mesa_text *text, const char *bytes, size_t length);

/* Reads a text where another includes it. */
static bool parse_inner(const struct mesa_line *line, const char *at, const char *label,
                        const char *bytes, size_t length) {
    struct mesa_text text = *line->text;
    text.outer = line->text;
    text.label = mesa_policy_keep_label(text.policy, label);
    if (text.label == NULL)
        return mesa_line_fail(line, at, NULL, "out of memory");
    return parse_text(&text, bytes, length);
}

static bool include_shipped(const struct mesa_line *line, const char *at,
                            const struct mesa_shipped *shipped) {
    char label[64];
    snprintf(label, sizeof label, "policy %s", shipped->name);
    return check_chain(line, at, label) &&
           parse_inner(line, at, label, shipped->text, shipped->length);
}

static bool include_file(const struct mesa_line *line, struct mesa_word name) {
    char *path = mesa_file_beside(line->text->label, name.text, name.length);
    if (path == NULL)
        return mesa_line_fail_memory(line);
    size_t length;
    const char *reason;
    char *bytes = NULL;
    bool done = check_chain(line, name.text, path);
    if (done) {
        bytes = mesa_file_read(path, &length, &reason);
        done = bytes != NULL
                   ? parse_inner(line, name.text, path, bytes, length)
                   : mesa_line_fail(line, name.text, mesa_shipped_nearest(name.text, name.length),
                                    "cannot read '%s': %s; expected a shipped policy or a file",
                                    path, reason);
    }
    free(bytes);
    free(path);
    return done;
}

static bool parse_include(struct mesa_line *line) {
    struct mesa_word name, rest;
    if (!next_word(line, &name) || !mesa_word_unquote(line, &name))
        return false;
    if (name.length == 0)
        return mesa_line_fail(line, line->at, NULL, "expected a policy or a file after 'include'");
    if (!next_word(line, &rest))
        return false;
    if (rest.length > 0)
        return mesa_line_fail(line, rest.text, NULL,
                              "'%.*s' after the name to include; expected the end of the rule",
                              MESA_WORD(rest));
    struct mesa_shipped shipped;
    if (mesa_shipped_find(name.text, name.length, &shipped))
        return include_shipped(line, name.text, &shipped);
    return include_file(line, name);
}

static bool parse_line(struct mesa_line *line) {
    while (line->at < line->end) {
        struct mesa_word first;
        if (!next_word(line, &first))
            return false;
        if (first.length > 0) {
            bool done =
                mesa_word_is(first, "include") ? parse_include(line) : parse_rule(line, first);
            if (!done)
                return false;
        }
        if (line->at == line->end || *line->at == '#')
            return true;
        line->at++; /* the ';' at which a rule ends */
    }
    return true;
}

static bool check_line(const struct mesa_line *line) {
    const char *nul = memchr(line->begin, '\0', (size_t)(line->end - line->begin));
    if (nul != NULL)
        return mesa_line_fail(line, nul, NULL, "a byte that is 0; expected text");
    if (line->end - line->begin > MOST_LINE_BYTES)
        return mesa_line_fail(line, line->begin + MOST_LINE_BYTES, NULL,
                              "line too long; expected at most %d bytes", MOST_LINE_BYTES);
    return true;
}

static bool parse_text(const struct mesa_text *text, const char *bytes, size_t length) {
    static const char byte_order_mark[] = "\xef\xbb\xbf"; /* as editors on Windows write it */
    const char *at = bytes, *end = bytes + length;
    if (length >= 3 && memcmp(bytes, byte_order_mark, 3) == 0)
        at += 3;
    for (unsigned number = 1; at < end; number++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        struct mesa_line line = {
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
    struct mesa_text text = {.policy = policy, .mistake = ret_mistake, .includes = &includes};
    text.label = mesa_policy_keep_label(policy, label);
    if (text.label == NULL) {
        mesa_mistake_fill(ret_mistake, label, NULL, "out of memory");
        return false;
    }
    return parse_text(&text, bytes, length);
}
