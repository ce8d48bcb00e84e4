/* Reads policy files. The only part of this folder that touches the file system.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_POLICY_FILE_H
#define MESA_POLICY_FILE_H

#include <stdbool.h>
#include <stddef.h>

/* All of a regular file of at most 1 MiB. NULL if it cannot be had; then *ret_reason says why (a
 * constant or thread-local text, good until the next call). The caller frees the text. */
char *mesa_file_read(const char *path, size_t *ret_length, const char **ret_reason);

bool mesa_file_exists(const char *path);

/* Where `path` leads if it stands in the file called `from`: next to it, unless absolute. The caller
 * frees it; NULL without memory. */
char *mesa_file_beside(const char *from, const char *path, size_t path_length);

/* True if both paths lead to the same file. */
bool mesa_file_is_same(const char *a, const char *b);

#endif
