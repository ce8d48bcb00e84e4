/* The generated table (gen_ops.py writes op_table.c), as op.c sees it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CLASSIFY_OP_TABLE_H
#define MESA_CLASSIFY_OP_TABLE_H

#include "classify/op.h"

/* Sorted by name; of equal names the one without overload first. */
extern const struct mesa_op mesa_op_table[];
extern const size_t mesa_op_table_count;

/* One way in which symbols spell an op, sorted by name in byte order. */
struct mesa_op_spelling {
    const char *name;
    uint16_t op; /* index into mesa_op_table */
    bool is_inplace;
};
extern const struct mesa_op_spelling mesa_op_spellings[];
extern const size_t mesa_op_spelling_count;

#endif
