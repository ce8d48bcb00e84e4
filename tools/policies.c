/* `mesa policies`: the shipped ones, and mistakes in the user's own.
 *
 * SPDX-License-Identifier: MIT */
#include "launcher.h"

#include "policy/policy.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SHIPPED_NAMES = 64 };

static int list_policies(void) {
    struct mesa_shipped shipped;
    for (size_t i = 0; mesa_policy_shipped(i, &shipped); i++)
        printf("%-12s %s\n", shipped.name, shipped.summary);
    return EXIT_GOOD;
}

static int show_policy(const char *name) {
    const char *names[SHIPPED_NAMES + 1] = {NULL};
    struct mesa_shipped shipped;
    for (size_t i = 0; mesa_policy_shipped(i, &shipped); i++) {
        if (strcmp(shipped.name, name) == 0) {
            fwrite(shipped.text, 1, shipped.length, stdout);
            return EXIT_GOOD;
        }
        if (i < SHIPPED_NAMES)
            names[i] = shipped.name;
    }
    return launcher_unknown("policy", name, names);
}

/* What a mistake says stands first on its line, as editors and CI expect FILE:LINE:COLUMN. */
static int check_policy(const char *file) {
    if (access(file, R_OK) != 0)
        return launcher_mistake("%s: %s", file, strerror(errno));
    struct mesa_mistake mistake;
    struct mesa_policy *policy = mesa_policy_load(file, &mistake);
    if (policy == NULL) {
        fprintf(stderr, "%s\n", mistake.text);
        return EXIT_MISTAKE;
    }
    mesa_policy_free(policy);
    printf("%s: no mistakes\n", file);
    return EXIT_GOOD;
}

int launcher_policies(char **words) {
    static const char *const known[] = {"show", "check", "list", NULL};
    const char *verb = words[1], *object = verb == NULL ? NULL : words[2];
    if (verb == NULL)
        return list_policies();
    if (launcher_is_help(verb))
        return launcher_help(words[0]);
    if (strcmp(verb, "list") == 0 && object == NULL)
        return list_policies();
    bool show = strcmp(verb, "show") == 0;
    if (!show && strcmp(verb, "check") != 0)
        return launcher_unknown("command mesa policies", verb, known);
    if (object == NULL || words[3] != NULL)
        return launcher_mistake("mesa policies %s takes one %s", verb, show ? "name" : "file");
    return show ? show_policy(object) : check_policy(object);
}
