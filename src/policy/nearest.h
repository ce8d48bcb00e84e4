/* The known word that somebody most likely meant.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_POLICY_NEAREST_H
#define MESA_POLICY_NEAREST_H

#include <stddef.h>

/* A search in progress: begin, try every known word, take `best` (NULL: none is near). */
struct mesa_nearest {
    const char *word; /* borrowed */
    size_t length;
    const char *best; /* borrowed from the caller of try */
    size_t distance;  /* of best; before that, one more than is near enough */
};

void mesa_nearest_begin(struct mesa_nearest *nearest, const char *word, size_t length);
void mesa_nearest_try(struct mesa_nearest *nearest, const char *candidate);

#endif
