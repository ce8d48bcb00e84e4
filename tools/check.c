/* `mesa check`: becomes the given Python with libmesa loaded, running check.py, which is built into
 * the launcher so that there is nothing to find.
 *
 * SPDX-License-Identifier: MIT */
#include "launcher.h"

#include "check_script.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the user has set for training must not change what is checked. */
static bool set_environment(void) {
    return setenv("MESA_POLICY", "default", 1) == 0 && setenv("MESA_REPORT", "none", 1) == 0 &&
           unsetenv("MESA_STRICT") == 0 && unsetenv("MESA_VERIFY") == 0 &&
           unsetenv("MESA_MIN_BYTES") == 0 && unsetenv("MESA_EXPLAIN") == 0;
}

int launcher_check(char **words) {
    static const char *const known[] = {"--python", "--help", NULL};
    char *python = "python3";
    for (words++; *words != NULL; words++) {
        if (launcher_is_help(*words))
            return launcher_help("check");
        if (strncmp(*words, "--python=", strlen("--python=")) == 0)
            python = *words + strlen("--python=");
        else if (strcmp(*words, "--python") != 0)
            return launcher_unknown("option", *words, known);
        else if (*++words == NULL)
            return launcher_mistake("--python needs the name of a Python");
        else
            python = *words;
    }
    if (!set_environment()) {
        perror("mesa: environment");
        return EXIT_NO_LIBRARY;
    }
    int code = launcher_preload();
    char *command[] = {python, "-c", (char *)check_script, MESA_VERSION, NULL};
    return code == EXIT_GOOD ? launcher_exec(command) : code;
}
