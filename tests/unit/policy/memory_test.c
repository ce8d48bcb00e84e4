/* Every allocation of a load fails in turn: each time there is a mistake that says so and nothing
 * leaks (run under a sanitizer to see that), until none fails and the policy is there.
 *
 * SPDX-License-Identifier: MIT */
#include "policy/policy.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The linker sends the module's allocations here (--wrap). */
static unsigned until_failure; /* 0: none fails */

static bool fails(void) {
    return until_failure > 0 && --until_failure == 0;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);

void *__wrap_malloc(size_t size) {
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size) {
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size) {
    return fails() ? NULL : __real_realloc(old, size);
}

char *__wrap_strdup(const char *text) {
    return fails() ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t size) {
    return fails() ? NULL : __real_strndup(text, size);
}

static void fail_each(const char *source) {
    struct mesa_mistake mistake;
    struct mesa_policy *policy;
    unsigned failures = 0;
    do {
        memset(&mistake, 0, sizeof mistake);
        until_failure = ++failures;
        policy = mesa_policy_load(source, &mistake);
        bool failed = until_failure == 0;
        until_failure = 0;
        cr_assert_eq(policy == NULL, failed, "allocation %u of %s", failures, source);
        if (failed)
            cr_assert_not_null(strstr(mistake.text, "out of memory"), "%s", mistake.text);
    } while (policy == NULL);
    mesa_policy_free(policy);
    cr_assert_gt(failures, 3);
}

Test(memory, shipped) {
    fail_each("default");
}

Test(memory, inline_rules) {
    fail_each("* auto; linear.input keep; custom:My* affine; include 4bit; \"a b\" mask;"
              "*.input group=row");
}

Test(memory, files) {
    char path[] = "/tmp/mesa-memory-XXXXXX";
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    char source[128];
    for (int i = 0; i < 100; i++) /* more rules and bytes than fit the first allocation */
        cr_assert_gt(dprintf(fd, "linear.input bits=%d # %0100d\n", i % 8 + 1, i), 0);
    close(fd);
    fail_each(path);
    snprintf(source, sizeof source, "include %s", path);
    fail_each(source);
    unlink(path);
}
