/* Conditions seen=: what a program shows of itself while it trains. A policy numbers the names that its
 * rules ask for, so that what was seen is a set of bits which anyone can keep and compare.
 *
 * SPDX-License-Identifier: MIT */
#include "policy/parse.h"

#include "classify/op.h"
#include "policy/nearest.h"

#include <string.h>

static bool is_known(struct mesa_word name) {
    return mesa_word_is(name, MESA_FROZEN_WEIGHTS) ||
           mesa_op_group_find(name.text, name.length) != NULL ||
           mesa_op_find(name.text, name.length) != NULL;
}

static bool fail_name(const struct mesa_line *line, struct mesa_word name) {
    struct mesa_nearest nearest;
    mesa_nearest_begin(&nearest, name.text, name.length);
    mesa_nearest_try_ops(&nearest);
    mesa_nearest_try(&nearest, MESA_FROZEN_WEIGHTS);
    return mesa_line_fail(line, name.text, nearest.best,
                          "unknown op '%.*s'; expected an op of PyTorch's, a group like linear, "
                          "or " MESA_FROZEN_WEIGHTS,
                          MESA_WORD(name));
}

bool mesa_rule_parse_seen(const struct mesa_line *line, struct mesa_word name,
                          struct mesa_rule *rule) {
    struct mesa_policy *policy = line->text->policy;
    if (!is_known(name))
        return fail_name(line, name);
    unsigned i = 0;
    while (i < policy->sight_count && !mesa_word_is(name, policy->sights[i]))
        i++;
    if (i == MESA_MOST_SIGHTS)
        return mesa_line_fail(line, name.text, NULL,
                              "'%.*s' is one too many; expected at most %d different names in all "
                              "conditions seen=",
                              MESA_WORD(name), MESA_MOST_SIGHTS);
    if (i == policy->sight_count) {
        policy->sights[i] = mesa_word_copy(name);
        if (policy->sights[i] == NULL)
            return mesa_line_fail_memory(line);
        policy->sight_count++;
    }
    rule->seen |= 1u << i;
    return true;
}

uint32_t mesa_policy_sights(const struct mesa_policy *policy, const char *name) {
    uint32_t sights = 0;
    for (unsigned i = 0; i < policy->sight_count; i++) {
        const char *asked = policy->sights[i];
        const struct mesa_op_group *group = mesa_op_group_find(asked, strlen(asked));
        if (strcmp(asked, name) == 0 || (group != NULL && mesa_op_group_has(group, name)))
            sights |= 1u << i;
    }
    return sights;
}
