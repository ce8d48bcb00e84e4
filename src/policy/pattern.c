/* The first word of a rule: which tensors it is for. Names that are spelled out must exist, in the
 * table of ops or in that of groups.
 *
 * SPDX-License-Identifier: MIT */
#include "policy/parse.h"

#include "classify/op.h"
#include "policy/glob.h"
#include "policy/nearest.h"

#include <stdio.h>
#include <string.h>

/* ---- the op part ------------------------------------------------------------------------------ */

static bool parse_custom(const struct mesa_line *line, struct mesa_word name,
                         struct mesa_rule *rule) {
    bool is_quoted = name.length > 0 && name.text[0] == '"';
    if (!mesa_word_unquote(line, &name))
        return false;
    if (name.length == 0)
        return mesa_line_fail(line, name.text, NULL,
                              "expected the class of an autograd function after 'custom:'");
    const char *fault = is_quoted ? NULL : mesa_glob_fault(name.text, name.length);
    if (fault != NULL)
        return mesa_line_fail(line, fault, NULL, "'[' without its ']'");
    rule->kind = MESA_RULE_CUSTOM;
    rule->op_is_glob = !is_quoted && mesa_glob_is_pattern(name.text, name.length);
    rule->op = mesa_word_copy(name);
    return rule->op != NULL || mesa_line_fail_memory(line);
}

/* The dot between op and argument, or NULL: the first one that is not in a set. */
static const char *find_dot(struct mesa_word word) {
    bool in_set = false;
    for (const char *at = word.text; at < word.text + word.length; at++) {
        if (*at == '[' || *at == ']')
            in_set = *at == '[';
        else if (*at == '.' && !in_set)
            return at;
    }
    return NULL;
}

void mesa_nearest_try_ops(struct mesa_nearest *nearest) {
    const struct mesa_op_group *group;
    for (size_t i = 0; (group = mesa_op_group_at(i)) != NULL; i++)
        mesa_nearest_try(nearest, group->name);
    for (size_t i = 0; i < mesa_op_count(); i++)
        mesa_nearest_try(nearest, mesa_op_at(i)->name);
}

static bool fail_op(const struct mesa_line *line, struct mesa_word name) {
    struct mesa_nearest nearest;
    struct mesa_shipped shipped;
    char include[64] = "";
    if (mesa_shipped_find(name.text, name.length, &shipped))
        snprintf(include, sizeof include, "include %s", shipped.name);
    mesa_nearest_begin(&nearest, name.text, name.length);
    mesa_nearest_try_ops(&nearest);
    mesa_nearest_try(&nearest, "custom");
    mesa_nearest_try(&nearest, "unknown");
    mesa_nearest_try(&nearest, "include");
    return mesa_line_fail(
        line, name.text, include[0] != '\0' ? include : nearest.best,
        "unknown op '%.*s'; expected an op of PyTorch's, a group like linear, a pattern "
        "with *, custom:CLASS or include",
        MESA_WORD(name));
}

static bool parse_op(const struct mesa_line *line, struct mesa_word name, struct mesa_rule *rule) {
    rule->op_is_glob = mesa_glob_is_pattern(name.text, name.length);
    if (rule->op_is_glob) {
        rule->kind = MESA_RULE_GLOB;
    } else if (mesa_word_is(name, "custom")) {
        rule->kind = MESA_RULE_CUSTOM;
        rule->op_is_glob = true;
        name = (struct mesa_word){"*", 1};
    } else if ((rule->group = mesa_op_group_find(name.text, name.length)) != NULL) {
        rule->kind = MESA_RULE_GROUP;
    } else if (mesa_word_is(name, "unknown") || mesa_op_find(name.text, name.length) != NULL) {
        rule->kind = MESA_RULE_OP;
    } else {
        return fail_op(line, name);
    }
    rule->op = mesa_word_copy(name);
    return rule->op != NULL || mesa_line_fail_memory(line);
}

/* ---- the argument part ------------------------------------------------------------------------ */

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

static bool parse_argument(const struct mesa_line *line, struct mesa_word op, struct mesa_word name,
                           struct mesa_rule *rule) {
    rule->argument = mesa_word_copy(name);
    if (rule->argument == NULL)
        return mesa_line_fail_memory(line);
    rule->argument_is_glob = mesa_glob_is_pattern(name.text, name.length);
    struct choice choice;
    choice_begin(&choice, rule->argument, rule->argument_is_glob);
    offer_arguments(&choice, rule);
    char list[200];
    return choice.found ||
           mesa_line_fail(line, name.text, choice.nearest.best,
                          "'%.*s' saves no argument '%.*s'; expected %s", MESA_WORD(op),
                          MESA_WORD(name), choice_list(&choice, list, sizeof list));
}

bool mesa_rule_parse_pattern(const struct mesa_line *line, struct mesa_word word,
                             struct mesa_rule *rule) {
    static const char prefix[] = "custom:";
    size_t prefix_length = sizeof prefix - 1;
    if (word.text[0] == '"')
        return parse_custom(line, word, rule);
    if (word.length >= prefix_length && memcmp(word.text, prefix, prefix_length) == 0)
        return parse_custom(
            line, (struct mesa_word){word.text + prefix_length, word.length - prefix_length}, rule);

    const char *fault = mesa_glob_fault(word.text, word.length);
    if (fault != NULL)
        return mesa_line_fail(line, fault, NULL, "'[' without its ']'");
    const char *dot = find_dot(word);
    struct mesa_word op = {word.text, dot == NULL ? word.length : (size_t)(dot - word.text)};
    if (op.length == 0)
        return mesa_line_fail(line, op.text, NULL, "expected an op before '.'");
    if (!parse_op(line, op, rule))
        return false;
    if (dot == NULL)
        return true;
    struct mesa_word argument = {dot + 1, word.length - op.length - 1};
    if (argument.length == 0)
        return mesa_line_fail(line, argument.text, NULL, "expected an argument after '.'");
    return parse_argument(line, op, argument, rule);
}
