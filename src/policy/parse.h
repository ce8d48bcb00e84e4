/* What the files of the parser share: texts, lines and words, and how to end with a mistake. Private to
 * this folder; rule.h has what comes out.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_POLICY_PARSE_H
#define MESA_POLICY_PARSE_H

#include "policy/nearest.h"
#include "policy/rule.h"

/* One text being read; texts that include each other form a chain. */
struct mesa_text {
    struct mesa_policy *policy;
    struct mesa_mistake *mistake;
    unsigned *includes;            /* of the whole parse */
    const struct mesa_text *outer; /* which includes this one; NULL for the first */
    const char *label;             /* owned by the policy */
};

struct mesa_line {
    const struct mesa_text *text;
    const char *begin, *at, *end;
    unsigned number;
};

struct mesa_word {
    const char *text; /* borrowed, not terminated; in the line, so that mistakes know the column */
    size_t length;
};
/* for "%.*s": long enough to recognise the word */
#define MESA_WORD(word) (int)((word).length < 60 ? (word).length : 60), (word).text

bool mesa_word_is(struct mesa_word word, const char *text);
char *mesa_word_copy(struct mesa_word word); /* the caller frees it; NULL without memory */
const char *mesa_word_nearest(struct mesa_word word, const char *const *words);

/* Takes the quotes off a word that is all in quotes. False with a mistake if they close early or
 * hold nothing. */
bool mesa_word_unquote(const struct mesa_line *line, struct mesa_word *word);

/* Writes the mistake at `at`, with a suggestion unless NULL. Returns false, so that a parser can end
 * with it. */
__attribute__((format(printf, 4, 5))) bool mesa_line_fail(const struct mesa_line *line,
                                                          const char *at, const char *suggestion,
                                                          const char *format, ...);
bool mesa_line_fail_memory(const struct mesa_line *line);

/* The parts of a rule. False on a mistake. */
bool mesa_rule_parse_pattern(const struct mesa_line *line, struct mesa_word word,
                             struct mesa_rule *rule);
bool mesa_rule_parse_setting(const struct mesa_line *line, struct mesa_word word,
                             struct mesa_rule *rule);
bool mesa_rule_parse_seen(const struct mesa_line *line, struct mesa_word name,
                          struct mesa_rule *rule);

/* All ops and groups of ops. */
void mesa_nearest_try_ops(struct mesa_nearest *nearest);

#endif
