/* The commands of the `mesa` launcher. Each takes its own words (words[0] is the command's name, NULL
 * ends them) and returns the exit code.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TOOLS_LAUNCHER_H
#define MESA_TOOLS_LAUNCHER_H

#include <stdbool.h>

/* Exit codes of our own; a program that was started gives its own. 125 to 127 are those of env(1). */
enum {
    EXIT_GOOD = 0,
    EXIT_BROKEN = 1,  /* `mesa check` found something that does not work; a file is unreadable */
    EXIT_MISTAKE = 2, /* in the command line, a policy or a report name */
    EXIT_NO_LIBRARY = 125, /* libmesa.so was not found, or there is no memory */
    EXIT_NOT_RUN = 126,    /* the program is there but cannot be started */
    EXIT_NOT_FOUND = 127,  /* there is no such program */
};

int launcher_run(char **words);
int launcher_explain(char **words);
int launcher_policies(char **words);
int launcher_check(char **words);
int launcher_report(char **words);

/* Prints "mesa: ..." on stderr and returns EXIT_MISTAKE. */
int launcher_mistake(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* For a word that is not one of `known` (NULL-terminated): as launcher_mistake(), with the nearest. */
int launcher_unknown(const char *what, const char *word, const char *const *known);

/* True if `word` is -h or --help. */
bool launcher_is_help(const char *word);
/* Prints the help of one command; returns EXIT_GOOD. */
int launcher_help(const char *command);

/* Puts libmesa.so into LD_PRELOAD beside what is there. EXIT_GOOD, or a code after a message. */
int launcher_preload(void);

/* Becomes the program; returns only if that failed, with the exit code, after a message. */
int launcher_exec(char **command);

/* EXIT_GOOD if `policy` (as in MESA_POLICY) has no mistake; else EXIT_MISTAKE after a message. */
int launcher_validate_policy(const char *policy);

#endif
