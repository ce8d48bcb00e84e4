/* A policy's life: found by name, as a file or as rules inline; parsed; freed. The ways of the parser
 * and the matcher meet in rule.h only.
 *
 * SPDX-License-Identifier: MIT */
#include "policy/policy.h"

#include "policy/file.h"
#include "policy/nearest.h"
#include "policy/rule.h"

#include <stdlib.h>
#include <string.h>

/* ---- shipped ----------------------------------------------------------------------------------- */

bool mesa_policy_shipped(size_t index, struct mesa_shipped *ret_shipped) {
    if (index >= mesa_shipped_count)
        return false;
    *ret_shipped = mesa_shipped[index];
    return true;
}

bool mesa_shipped_find(const char *name, size_t length, struct mesa_shipped *ret_shipped) {
    for (size_t i = 0; i < mesa_shipped_count; i++) {
        const char *known = mesa_shipped[i].name;
        if (strlen(known) == length && memcmp(known, name, length) == 0)
            return mesa_policy_shipped(i, ret_shipped);
    }
    return false;
}

const char *mesa_shipped_nearest(const char *name, size_t length) {
    struct mesa_nearest nearest;
    mesa_nearest_begin(&nearest, name, length);
    for (size_t i = 0; i < mesa_shipped_count; i++)
        mesa_nearest_try(&nearest, mesa_shipped[i].name);
    return nearest.best;
}

/* ---- life -------------------------------------------------------------------------------------- */

const char *mesa_policy_keep_label(struct mesa_policy *policy, const char *label) {
    struct mesa_policy_file *file = malloc(sizeof *file);
    char *copy = strdup(label);
    if (file == NULL || copy == NULL) {
        free(file);
        free(copy);
        return NULL;
    }
    *file = (struct mesa_policy_file){.label = copy, .next = policy->files};
    policy->files = file;
    return copy;
}

void mesa_policy_free(struct mesa_policy *policy) {
    if (policy == NULL)
        return;
    for (size_t i = 0; i < policy->count; i++)
        mesa_rule_done(&policy->rules[i]);
    free(policy->rules);
    for (unsigned i = 0; i < policy->sight_count; i++)
        free(policy->sights[i]);
    while (policy->files != NULL) {
        struct mesa_policy_file *file = policy->files;
        policy->files = file->next;
        free(file->label);
        free(file);
    }
    free(policy->name);
    free(policy);
}

/* `name` is shown in reports, `label` stands in places. */
static struct mesa_policy *create(const char *name, const char *label, const char *text,
                                  size_t length, struct mesa_mistake *ret_mistake) {
    struct mesa_policy *policy = calloc(1, sizeof *policy);
    if (policy != NULL)
        policy->name = strdup(name);
    if (policy == NULL || policy->name == NULL)
        mesa_mistake_fill(ret_mistake, label, NULL, "out of memory");
    else if (mesa_policy_parse_into(policy, label, text, length, ret_mistake))
        return policy;
    mesa_policy_free(policy);
    return NULL;
}

struct mesa_policy *mesa_policy_parse(const char *text, size_t length, const char *file,
                                      struct mesa_mistake *ret_mistake) {
    return create(file, file, length == 0 ? "" : text, length, ret_mistake);
}

const char *mesa_policy_name(const struct mesa_policy *policy) {
    return policy->name;
}

/* ---- load -------------------------------------------------------------------------------------- */

static struct mesa_policy *load_shipped(const struct mesa_shipped *shipped,
                                        struct mesa_mistake *ret_mistake) {
    char label[64] = "policy ";
    strncat(label, shipped->name, sizeof label - strlen(label) - 1);
    return create(shipped->name, label, shipped->text, shipped->length, ret_mistake);
}

static struct mesa_policy *load_file(const char *path, struct mesa_mistake *ret_mistake) {
    size_t length;
    const char *reason;
    char *text = mesa_file_read(path, &length, &reason);
    if (text == NULL) {
        mesa_mistake_fill(ret_mistake, path, mesa_shipped_nearest(path, strlen(path)),
                          "cannot read the policy: %s; expected a shipped policy, a file or rules",
                          reason);
        return NULL;
    }
    struct mesa_policy *policy = create(path, path, text, length, ret_mistake);
    free(text);
    return policy;
}

/* Rules have blanks; so may paths, but those have no '=' or ';', and only an `include` has a '/'. */
static bool is_inline(const char *source) {
    if (strpbrk(source, "=;\n") != NULL)
        return true;
    if (strchr(source, '/') != NULL && strncmp(source, "include", strlen("include")) != 0)
        return false;
    return strpbrk(source, " \t") != NULL;
}

struct mesa_policy *mesa_policy_load(const char *source, struct mesa_mistake *ret_mistake) {
    struct mesa_shipped shipped;
    if (mesa_shipped_find(source, strlen(source), &shipped))
        return load_shipped(&shipped, ret_mistake);
    if (mesa_file_exists(source))
        return load_file(source, ret_mistake);
    if (is_inline(source))
        return create(source, "MESA_POLICY", source, strlen(source), ret_mistake);
    if (strpbrk(source, "/.") != NULL)
        return load_file(source, ret_mistake);
    mesa_mistake_fill(ret_mistake, "MESA_POLICY", mesa_shipped_nearest(source, strlen(source)),
                      "unknown policy '%.60s'; expected a shipped policy, a file or rules", source);
    return NULL;
}
