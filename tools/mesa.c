/* The `mesa` launcher: trains a program under libmesa, and answers questions about policies, reports
 * and this machine. This file finds the command; what a command does stands in its own file.
 *
 * SPDX-License-Identifier: MIT */
#include "launcher.h"

#include "policy/policy.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define RUN_OPTIONS                                                                                \
    "  --policy P   a shipped policy, a policy file, or rules separated by ';'\n"                  \
    "  --report R   text, none, FILE.json or FILE.txt, several with ',' between\n"                 \
    "               (%p in a name is the process, %r the rank, %h the host)\n"                     \
    "  --verify     keep the originals too and report the error of each op\n"                      \
    "  --           what follows is the program, even if it begins with '-'\n"

struct command {
    const char *name;
    int (*run)(char **words);
    const char *help;
};

static const struct command commands[] = {
    {"run", launcher_run,
     "usage: mesa run [--policy P] [--report R] [--verify] [--] COMMAND [ARGUMENT...]\n"
     "\n"
     "Runs COMMAND with libmesa loaded, its signals and its exit code as without. A mistake in "
     "the\n"
     "policy or in a report name ends it before COMMAND starts, with exit code 2.\n"
     "\n" RUN_OPTIONS "\n"
     "examples:\n"
     "  mesa run python train.py --epochs 3\n"
     "  mesa run --policy lossless --report text,mesa.json -- python train.py\n"
     "  mesa run --policy 'include default; softmax.output bits=4' python train.py\n"
     "  mesa run --report 'rank%r.json' -- torchrun --nproc-per-node 4 train.py\n"},
    {"explain", launcher_explain,
     "usage: mesa explain [--policy P] [--report R] [--verify] [--] COMMAND [ARGUMENT...]\n"
     "\n"
     "As `mesa run`, and says once for each place that saves a tensor what it is, which rule "
     "matched\n"
     "and how the tensor is held.\n"
     "\n" RUN_OPTIONS "\n"
     "example:\n"
     "  mesa explain -- python train.py 2>explain.txt\n"},
    {"policies", launcher_policies,
     "usage: mesa policies\n"
     "       mesa policies show NAME\n"
     "       mesa policies check FILE\n"
     "\n"
     "Lists the policies that libmesa brings along, prints one, or looks for mistakes in a policy "
     "of\n"
     "yours (exit code 2 if there is one).\n"
     "\n"
     "examples:\n"
     "  mesa policies show default >mine.policy\n"
     "  mesa policies check mine.policy && mesa run --policy ./mine.policy python train.py\n"},
    {"check", launcher_check,
     "usage: mesa check [--python P]\n"
     "\n"
     "Starts the Python P (python3 if none is named), finds its torch, trains a small model with "
     "and\n"
     "without libmesa and says what works and what does not (exit code 1 if something does not).\n"
     "\n"
     "example:\n"
     "  mesa check --python ~/venv/bin/python\n"},
    {"report", launcher_report,
     "usage: mesa report FILE.json...\n"
     "\n"
     "Prints the text report of runs that were reported as JSON; '-' is the standard input.\n"
     "\n"
     "example:\n"
     "  mesa run --report mesa.json python train.py; mesa report mesa.json\n"},
};

enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static const char overview[] =
    "usage: mesa COMMAND ...\n"
    "\n"
    "Trains PyTorch programs with a fraction of the activation memory, without a change to them.\n"
    "\n"
    "  mesa run [--policy P] [--report R] [--verify] [--] COMMAND...   train under libmesa\n"
    "  mesa explain [--] COMMAND...     the same, and say why each tensor is held as it is\n"
    "  mesa policies                    list the policies that libmesa brings along\n"
    "  mesa policies show NAME          print one\n"
    "  mesa policies check FILE         look for mistakes in one of yours\n"
    "  mesa check [--python P]          does libmesa work with the torch of this Python?\n"
    "  mesa report FILE.json            print a report again\n"
    "  mesa help COMMAND, mesa --help, mesa --version\n"
    "\n"
    "examples:\n"
    "  mesa run python train.py\n"
    "  mesa run --policy lossless --report text,mesa.json -- python train.py --epochs 3\n"
    "  mesa explain -- python train.py 2>explain.txt\n";

int launcher_mistake(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("mesa: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return EXIT_MISTAKE;
}

int launcher_unknown(const char *what, const char *word, const char *const *known) {
    const char *nearest = mesa_policy_nearest(word, strlen(word), known);
    if (nearest == NULL)
        return launcher_mistake("there is no %s '%s' (see mesa --help)", what, word);
    return launcher_mistake("there is no %s '%s'; did you mean '%s'?", what, word, nearest);
}

bool launcher_is_help(const char *word) {
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static const struct command *find_command(const char *name) {
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static int unknown_command(const char *word) {
    const char *names[COMMAND_COUNT + 2] = {NULL};
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        names[i] = commands[i].name;
    names[COMMAND_COUNT] = "help";
    if (word[0] == '-')
        return launcher_unknown("option", word, (const char *[]){"--help", "--version", NULL});
    if (mesa_policy_nearest(word, strlen(word), names) == NULL)
        return launcher_mistake("there is no command '%s'; a program is run by `mesa run %s`", word,
                                word);
    return launcher_unknown("command", word, names);
}

int launcher_help(const char *name) {
    const struct command *command = find_command(name);
    if (command == NULL)
        return unknown_command(name);
    fputs(command->help, stdout);
    return EXIT_GOOD;
}

static int run_command(char **words) {
    const struct command *command = find_command(words[0]);
    if (command != NULL)
        return command->run(words);
    if (strcmp(words[0], "help") == 0 && words[1] != NULL)
        return launcher_help(words[1]);
    if (launcher_is_help(words[0]) || strcmp(words[0], "help") == 0) {
        fputs(overview, stdout);
        return EXIT_GOOD;
    }
    if (strcmp(words[0], "--version") == 0) {
        puts("mesa " MESA_VERSION);
        return EXIT_GOOD;
    }
    return unknown_command(words[0]);
}

int main(int count, char **words) {
    if (count < 2) {
        fputs(overview, stderr);
        return EXIT_MISTAKE;
    }
    int code = run_command(words + 1);
    if (fflush(stdout) != 0 && code == EXIT_GOOD) {
        perror("mesa: standard output");
        code = EXIT_BROKEN;
    }
    return code;
}
