/* `mesa run` and `mesa explain`: checks what the user wrote, sets the environment and becomes the
 * program, so that signals and exit codes need no passing on.
 *
 * SPDX-License-Identifier: MIT */
#include "launcher.h"

#include "policy/policy.h"
#include "report/report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int launcher_validate_policy(const char *source) {
    struct mesa_mistake mistake;
    struct mesa_policy *policy = mesa_policy_load(source, &mistake);
    if (policy == NULL)
        return launcher_mistake("%s", mistake.text);
    mesa_policy_free(policy);
    return EXIT_GOOD;
}

static int validate_report(const char *text) {
    struct mesa_report_target target;
    char mistake[512];
    if (!mesa_report_parse(text, &target, mistake, sizeof mistake))
        return launcher_mistake("%s", mistake);
    mesa_report_target_done(&target);
    return EXIT_GOOD;
}

static int set_variable(const char *name, const char *value) {
    if (setenv(name, value, 1) == 0)
        return EXIT_GOOD;
    perror("mesa: environment");
    return EXIT_NO_LIBRARY;
}

/* "--policy P" or "--policy=P": sets *ret_value and moves *words on to the next word. NULL value if
 * the word is another one. */
static bool take_option(const char *name, char ***words, const char **ret_value) {
    const char *word = **words;
    size_t length = strlen(name);
    if (strncmp(word, name, length) != 0 || (word[length] != '\0' && word[length] != '='))
        return false;
    if (word[length] == '=') {
        *ret_value = word + length + 1;
        *words += 1;
    } else {
        *ret_value = (*words)[1];
        *words += (*words)[1] == NULL ? 1 : 2;
    }
    return true;
}

static int unknown_option(const char *word) {
    static const char *const known[] = {"--policy", "--report", "--verify", "--help", NULL};
    return launcher_unknown("option", word, known);
}

/* Reads options into the environment; *words then stand at the program. */
static int take_options(char ***words) {
    int code = EXIT_GOOD;
    while (code == EXIT_GOOD && **words != NULL && (**words)[0] == '-') {
        const char *word = **words, *value = NULL;
        if (strcmp(word, "--") == 0) {
            *words += 1;
            break;
        }
        if (strcmp(word, "--verify") == 0) {
            code = set_variable("MESA_VERIFY", "1");
            *words += 1;
        } else if (take_option("--policy", words, &value)) {
            code = value == NULL ? launcher_mistake("--policy needs a policy (see mesa policies)")
                                 : set_variable("MESA_POLICY", value);
        } else if (take_option("--report", words, &value)) {
            code = value == NULL ? launcher_mistake("--report needs text, none or a file name")
                                 : set_variable("MESA_REPORT", value);
        } else {
            code = unknown_option(word);
        }
    }
    return code;
}

static int validate_environment(void) {
    const char *policy = getenv("MESA_POLICY"), *report = getenv("MESA_REPORT");
    int code = EXIT_GOOD;
    if (policy != NULL && *policy != '\0')
        code = launcher_validate_policy(policy);
    if (code == EXIT_GOOD && report != NULL)
        code = validate_report(report);
    return code;
}

int launcher_exec(char **command) {
    execvp(command[0], command);
    int error = errno;
    fprintf(stderr, "mesa: %s: %s\n", command[0], strerror(error));
    return error == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_RUN;
}

static int run_under_libmesa(char **words) {
    const char *name = words[0];
    if (words[1] != NULL && launcher_is_help(words[1]))
        return launcher_help(name);
    words++;
    int code = take_options(&words);
    if (code == EXIT_GOOD && *words == NULL)
        code = launcher_mistake("there is no program to run (see mesa %s --help)", name);
    if (code == EXIT_GOOD)
        code = validate_environment();
    if (code == EXIT_GOOD)
        code = launcher_preload();
    return code == EXIT_GOOD ? launcher_exec(words) : code;
}

int launcher_run(char **words) {
    return run_under_libmesa(words);
}

int launcher_explain(char **words) {
    int code = set_variable("MESA_EXPLAIN", "1");
    return code == EXIT_GOOD ? run_under_libmesa(words) : code;
}
