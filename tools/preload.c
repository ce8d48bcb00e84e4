/* Finds libmesa.so from where the launcher itself stands, and puts it into LD_PRELOAD. Ours goes to
 * the end of the list: sanitizers insist on being first, and nothing that others preload defines the
 * symbols that we do.
 *
 * SPDX-License-Identifier: MIT */
#include "launcher.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* From the launcher's directory: side by side, installed (MESA_LIBRARY_DIR is the way from bindir to
 * libdir, such as "../lib/x86_64-linux-gnu"), and in the build directory. */
static const char *const places[] = {".", "../lib", MESA_LIBRARY_DIR, "../src/preload", NULL};

/* The directory of this program; false if /proc is not there. */
static bool find_own_directory(char ret_directory[PATH_MAX]) {
    ssize_t length = readlink("/proc/self/exe", ret_directory, PATH_MAX - 1);
    if (length <= 0)
        return false;
    ret_directory[length] = '\0';
    char *slash = strrchr(ret_directory, '/');
    if (slash == NULL)
        return false;
    *(slash == ret_directory ? slash + 1 : slash) = '\0';
    return true;
}

/* An allocated absolute path without links, or NULL. */
static char *find_library(const char *directory) {
    for (const char *const *place = places; *place != NULL; place++) {
        char candidate[PATH_MAX + 64];
        int length = snprintf(candidate, sizeof candidate, "%s/%s/libmesa.so", directory, *place);
        char *path =
            length < 0 || (size_t)length >= sizeof candidate ? NULL : realpath(candidate, NULL);
        if (path != NULL)
            return path;
    }
    return NULL;
}

/* True if `path` is one of the items of an LD_PRELOAD list. */
static bool is_listed(const char *list, const char *path) {
    size_t length = strlen(path);
    for (const char *at = list; (at = strstr(at, path)) != NULL; at++) {
        bool begins = at == list || strchr(" :", at[-1]) != NULL;
        if (begins && strchr(" :", at[length]) != NULL) /* finds the NUL at the end as well */
            return true;
    }
    return false;
}

static int add_to_preload(const char *path) {
    const char *before = getenv("LD_PRELOAD");
    if (before == NULL)
        before = "";
    if (is_listed(before, path))
        return EXIT_GOOD;
    size_t size = strlen(before) + strlen(path) + 2;
    char *list = malloc(size);
    int code = EXIT_NO_LIBRARY;
    if (list != NULL) {
        snprintf(list, size, "%s%s%s", before, *before == '\0' ? "" : ":", path);
        code = setenv("LD_PRELOAD", list, 1) == 0 ? EXIT_GOOD : EXIT_NO_LIBRARY;
    }
    if (code != EXIT_GOOD)
        perror("mesa: LD_PRELOAD");
    free(list);
    return code;
}

int launcher_preload(void) {
    char directory[PATH_MAX];
    char *path = find_own_directory(directory) ? find_library(directory) : NULL;
    int code = EXIT_NO_LIBRARY;
    if (path == NULL)
        fputs("mesa: libmesa.so is neither beside this program nor in ../lib\n", stderr);
    else if (strpbrk(path, " :") != NULL) /* LD_PRELOAD knows no quoting */
        fprintf(stderr, "mesa: %s: cannot be preloaded from a path with a blank or ':'\n", path);
    else
        code = add_to_preload(path);
    free(path);
    return code;
}
