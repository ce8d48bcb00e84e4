/* Patterns for names: `*`, `?`, `[abc]`, `[a-z]`, `[!a-z]`; all else stands for itself.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_POLICY_GLOB_H
#define MESA_POLICY_GLOB_H

#include <stdbool.h>
#include <stddef.h>

/* True if `text` has a character that is special in a pattern. */
bool mesa_glob_is_pattern(const char *text, size_t length);

/* NULL if `text` is a sound pattern, else the `[` that no `]` closes. */
const char *mesa_glob_fault(const char *text, size_t length);

/* True if all of `name` matches. Time is at most the product of the lengths. */
bool mesa_glob_match(const char *pattern, const char *name);

#endif
