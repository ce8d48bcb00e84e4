/* Look-ups in the table of ops. Both names of ops and spellings of symbols are found by binary search
 * in sorted arrays; the generator has checked them. Must not know how a site is found.
 *
 * SPDX-License-Identifier: MIT */
#include "classify/op.h"

#include "classify/op_table.h"

#include <string.h>

/* Like strcmp(name, wanted), where `wanted` is `length` bytes long and not terminated. */
static int compare_name(const char *name, const char *wanted, size_t length) {
    int difference = strncmp(name, wanted, length);
    return difference != 0 ? difference : name[length] != '\0';
}

const struct mesa_op *mesa_op_find(const char *name, size_t length) {
    const char *dot = memchr(name, '.', length);
    size_t base = dot ? (size_t)(dot - name) : length;
    size_t begin = 0;
    size_t end = mesa_op_table_count;
    while (begin < end) { /* the first row of that name */
        size_t middle = begin + (end - begin) / 2;
        if (compare_name(mesa_op_table[middle].name, name, base) < 0)
            begin = middle + 1;
        else
            end = middle;
    }
    for (; begin < mesa_op_table_count; begin++) {
        const struct mesa_op *op = &mesa_op_table[begin];
        if (compare_name(op->name, name, base) != 0)
            return NULL;
        if (!dot || compare_name(op->overload, dot + 1, length - base - 1) == 0)
            return op;
    }
    return NULL;
}

const struct mesa_op *mesa_op_of_symbol(const char *name, size_t length, bool *ret_inplace) {
    size_t begin = 0;
    size_t end = mesa_op_spelling_count;
    while (begin < end) {
        size_t middle = begin + (end - begin) / 2;
        const struct mesa_op_spelling *spelling = &mesa_op_spellings[middle];
        int difference = compare_name(spelling->name, name, length);
        if (difference == 0) {
            *ret_inplace = spelling->is_inplace;
            return &mesa_op_table[spelling->op];
        }
        if (difference < 0)
            begin = middle + 1;
        else
            end = middle;
    }
    return NULL;
}

size_t mesa_op_count(void) {
    return mesa_op_table_count;
}

const struct mesa_op *mesa_op_at(size_t index) {
    return index < mesa_op_table_count ? &mesa_op_table[index] : NULL;
}
