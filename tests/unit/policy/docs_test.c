/* docs/policies.md against the tables it describes: what is missing there is printed as it should be
 * written.
 *
 * SPDX-License-Identifier: MIT */
#include "policy/group.h"
#include "policy/policy.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *docs; /* MESA_POLICIES_MD, terminated */

static void read_docs(void) {
    FILE *file = fopen(MESA_POLICIES_MD, "r");
    cr_assert_not_null(file, "%s", MESA_POLICIES_MD);
    docs = calloc(1, 1 << 17);
    cr_assert_not_null(docs);
    cr_assert_gt(fread(docs, 1, (1 << 17) - 1, file), 1000);
    fclose(file);
}

static void drop_docs(void) {
    free(docs);
}

TestSuite(docs, .init = read_docs, .fini = drop_docs);

static void expect_text(const char *text) {
    cr_expect_not_null(strstr(docs, text), "not in docs/policies.md:\n%s", text);
}

static void expect_row(const char *name) {
    char row[128];
    snprintf(row, sizeof row, "\n| `%s` | ", name);
    expect_text(row);
}

Test(docs, has_all_ways) {
    for (int way = 0; way < MESA_WAY_COUNT; way++)
        expect_row(mesa_way_name((enum mesa_way)way));
}

Test(docs, has_all_settings_and_conditions) {
    static const char *const rows[] = {
        "bits=1` .. `bits=12",
        "bits=16",
        "group=16` .. `group=1024",
        "group=row",
        "group=head",
        "group=channel",
        "group=tensor",
        "round=nearest",
        "round=stochastic",
        "dtype=TYPE",
        "min_bytes=SIZE",
        "layer=N",
        "seen=OP",
        "seen=frozen_weights",
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        expect_row(rows[i]);
    for (int dtype = 0; dtype < MESA_DTYPE_OTHER; dtype++) {
        char name[32];
        snprintf(name, sizeof name, "`%s`", mesa_dtype_name((enum mesa_dtype)dtype));
        expect_text(name);
    }
}

static void add(char *row, size_t size, const char *before, const char *name) {
    size_t used = strlen(row);
    snprintf(row + used, size - used, "%s`%s`", before, name);
}

Test(docs, has_all_groups) {
    const struct mesa_op_group *group;
    for (size_t i = 0; (group = mesa_op_group_at(i)) != NULL; i++) {
        char row[2048] = "\n| ";
        add(row, sizeof row, "", group->name);
        for (size_t o = 0; o < MESA_GROUP_MOST_OPS && group->ops[o] != NULL; o++)
            add(row, sizeof row, o == 0 ? " | " : ", ", group->ops[o]);
        for (size_t a = 0; a < MESA_GROUP_MOST_ALIASES && group->aliases[a].name != NULL; a++) {
            const char *const *names = group->aliases[a].arguments;
            add(row, sizeof row, a == 0 ? " | " : "; ", group->aliases[a].name);
            for (size_t n = 0; n < MESA_GROUP_MOST_NAMES && names[n] != NULL; n++)
                add(row, sizeof row, n == 0 ? " = " : ", ", names[n]);
        }
        strcat(row, " |\n");
        expect_text(row);
    }
}

Test(docs, has_all_shipped_policies) {
    struct mesa_shipped shipped;
    for (size_t i = 0; mesa_policy_shipped(i, &shipped); i++) {
        char row[512];
        snprintf(row, sizeof row, "\n| `%s` | %s |\n", shipped.name, shipped.summary);
        expect_text(row);
    }
}

/* Every example between ```policy fences parses. */
Test(docs, has_sound_examples) {
    static const char fence[] = "\n```policy\n";
    int examples = 0;
    for (const char *at = docs; (at = strstr(at, fence)) != NULL; examples++) {
        at += strlen(fence);
        const char *end = strstr(at, "\n```");
        cr_assert_not_null(end);
        struct mesa_mistake mistake;
        struct mesa_policy *policy =
            mesa_policy_parse(at, (size_t)(end - at), "docs/policies.md", &mistake);
        cr_expect_not_null(policy, "example %d: %s", examples + 1, mistake.text);
        mesa_policy_free(policy);
    }
    cr_assert_geq(examples, 4);
}
