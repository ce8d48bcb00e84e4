/* The short names that people use for ops: `linear` is addmm, mm and linear, and its `input` is what
 * those call mat1, self and input.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_POLICY_GROUP_H
#define MESA_POLICY_GROUP_H

#include <stdbool.h>
#include <stddef.h>

#define MESA_GROUP_MOST_OPS     20
#define MESA_GROUP_MOST_ALIASES 8
#define MESA_GROUP_MOST_NAMES   4

/* A short name for an argument, whichever op of the group saves it. */
struct mesa_op_alias {
    const char *name;
    const char *arguments[MESA_GROUP_MOST_NAMES]; /* up to the first NULL */
};

struct mesa_op_group {
    const char *name;
    const char *ops[MESA_GROUP_MOST_OPS];                  /* up to the first NULL */
    struct mesa_op_alias aliases[MESA_GROUP_MOST_ALIASES]; /* up to the first without a name */
};

/* NULL if there is no such group; `name` need not be terminated. */
const struct mesa_op_group *mesa_op_group_find(const char *name, size_t length);
/* Index from 0 until NULL. */
const struct mesa_op_group *mesa_op_group_at(size_t index);

bool mesa_op_group_has(const struct mesa_op_group *group, const char *op);

/* True if the alias `name` of the group (NULL: any alias that `pattern` matches as a glob) stands for
 * `argument`. */
bool mesa_op_group_alias_covers(const struct mesa_op_group *group, const char *pattern,
                                bool is_glob, const char *argument);

#endif
