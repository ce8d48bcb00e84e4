/* Aligned columns of text. Must not know what the cells mean.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_REPORT_TABLE_H
#define MESA_REPORT_TABLE_H

#include "report/buffer.h"

#include <stdbool.h>
#include <stddef.h>

enum { MESA_TABLE_CELL = 64, MESA_TABLE_COLUMNS = 13, MESA_TABLE_LINES = 36 };

struct mesa_table_column {
    const char *head;
    bool right; /* numbers stand on the right */
};

struct mesa_table {
    const struct mesa_table_column *columns; /* borrowed */
    size_t column_count, line_count;
    char cells[MESA_TABLE_LINES][MESA_TABLE_COLUMNS][MESA_TABLE_CELL];
};

/* A line of heads and one for each line of cells. Each column is as wide as its widest cell. */
void mesa_table_render(const struct mesa_table *table, struct mesa_buffer *buffer);

/* Copies text so that it takes at most `columns` on a screen: the middle of longer text becomes "..",
 * control characters become '?' and broken UTF-8 U+FFFD. Returns ret. */
char *mesa_table_shorten(char *ret, size_t size, const char *text, size_t columns);

#endif
