/* Matching: all rules in order, each writes the settings it has. A policy has tens of rules and is
 * asked once for a site and a span of sizes, so nothing is indexed.
 *
 * SPDX-License-Identifier: MIT */
#include "policy/rule.h"

#include "policy/glob.h"

#include <stdlib.h>
#include <string.h>

static bool name_matches(const char *pattern, bool is_glob, const char *name) {
    return is_glob ? mesa_glob_match(pattern, name) : strcmp(pattern, name) == 0;
}

static bool op_matches(const struct mesa_rule *rule, const struct mesa_subject *subject) {
    bool is_custom = strcmp(subject->argument, MESA_CUSTOM_ARGUMENT) == 0;
    switch (rule->kind) {
    case MESA_RULE_OP: /* a Python class may be called "relu" too */
        return !is_custom && strcmp(rule->op, subject->op) == 0;
    case MESA_RULE_GROUP:
        return !is_custom && mesa_op_group_has(rule->group, subject->op);
    case MESA_RULE_GLOB:
        return mesa_glob_match(rule->op, subject->op);
    case MESA_RULE_CUSTOM:
        return is_custom && name_matches(rule->op, rule->op_is_glob, subject->op);
    }
    return false;
}

static bool argument_matches(const struct mesa_rule *rule, const char *argument) {
    if (rule->argument == NULL || name_matches(rule->argument, rule->argument_is_glob, argument))
        return true;
    return rule->kind == MESA_RULE_GROUP &&
           mesa_op_group_alias_covers(rule->group, rule->argument, rule->argument_is_glob,
                                      argument);
}

static bool conditions_hold(const struct mesa_rule *rule, const struct mesa_subject *subject) {
    if ((rule->has & MESA_RULE_HAS_DTYPE) != 0 && (rule->dtypes >> subject->dtype & 1) == 0)
        return false;
    if ((rule->has & MESA_RULE_HAS_BYTES) != 0 && subject->bytes < rule->least_bytes)
        return false;
    if ((rule->has & MESA_RULE_HAS_SEEN) != 0 && (rule->seen & ~subject->seen) != 0)
        return false;
    if ((rule->has & MESA_RULE_HAS_LAYER) == 0)
        return true;
    for (unsigned i = 0; i < rule->span_count; i++) {
        if (rule->spans[i].first <= subject->layer && subject->layer <= rule->spans[i].last)
            return true;
    }
    return false;
}

bool mesa_rule_matches(const struct mesa_rule *rule, const struct mesa_subject *subject) {
    return op_matches(rule, subject) && argument_matches(rule, subject->argument) &&
           conditions_hold(rule, subject);
}

bool mesa_rule_is_universal(const struct mesa_rule *rule) {
    return rule->kind == MESA_RULE_GLOB && strspn(rule->op, "*") == strlen(rule->op) &&
           (rule->argument == NULL || strspn(rule->argument, "*") == strlen(rule->argument)) &&
           (rule->has & MESA_RULE_CONDITIONS) == 0;
}

void mesa_rule_done(struct mesa_rule *rule) {
    free(rule->op);
    free(rule->argument);
}

void mesa_policy_match(const struct mesa_policy *policy, const struct mesa_subject *subject,
                       struct mesa_settings *ret_settings, struct mesa_place *ret_place) {
    struct mesa_settings settings = {.way = MESA_WAY_KEEP,
                                     .bits = 8,
                                     .by = MESA_BY_BLOCK,
                                     .group = 128,
                                     .rounding = MESA_ROUND_NEAREST};
    struct mesa_place place = {.file = NULL};
    for (size_t i = 0; i < policy->count; i++) {
        const struct mesa_rule *rule = &policy->rules[i];
        if (!mesa_rule_matches(rule, subject))
            continue;
        place = rule->place;
        if ((rule->has & MESA_RULE_SETS_WAY) != 0)
            settings.way = rule->settings.way;
        if ((rule->has & MESA_RULE_SETS_BITS) != 0)
            settings.bits = rule->settings.bits;
        if ((rule->has & MESA_RULE_SETS_ROUND) != 0)
            settings.rounding = rule->settings.rounding;
        if ((rule->has & MESA_RULE_SETS_GROUP) != 0) {
            settings.by = rule->settings.by;
            if (settings.by == MESA_BY_BLOCK) /* else what blocks fall back to stays known */
                settings.group = rule->settings.group;
        }
    }
    *ret_settings = settings;
    if (ret_place != NULL)
        *ret_place = place;
}

bool mesa_policy_uses_layers(const struct mesa_policy *policy) {
    return policy->uses_layers;
}

void mesa_policy_span(const struct mesa_policy *policy, const struct mesa_subject *subject,
                      size_t *ret_least, size_t *ret_end) {
    *ret_least = 0;
    *ret_end = SIZE_MAX;
    for (size_t i = 0; i < policy->count; i++) {
        const struct mesa_rule *rule = &policy->rules[i];
        if ((rule->has & MESA_RULE_HAS_BYTES) == 0 || !op_matches(rule, subject) ||
            !argument_matches(rule, subject->argument))
            continue;
        size_t least = rule->least_bytes;
        if (least <= subject->bytes && least > *ret_least)
            *ret_least = least;
        if (least > subject->bytes && least < *ret_end)
            *ret_end = least;
    }
}

bool mesa_policy_is_off(const struct mesa_policy *policy) {
    bool off = false;
    for (size_t i = 0; i < policy->count; i++) {
        const struct mesa_rule *rule = &policy->rules[i];
        if ((rule->has & MESA_RULE_SETS_WAY) == 0)
            continue;
        if (rule->settings.way != MESA_WAY_OFF)
            off = false;
        else if (mesa_rule_is_universal(rule))
            off = true;
    }
    return off;
}

bool mesa_policy_keeps_all(const struct mesa_policy *policy) {
    for (size_t i = 0; i < policy->count; i++) {
        const struct mesa_rule *rule = &policy->rules[i];
        if ((rule->has & MESA_RULE_SETS_WAY) != 0 && rule->settings.way != MESA_WAY_OFF &&
            rule->settings.way != MESA_WAY_KEEP)
            return false;
    }
    return true;
}
