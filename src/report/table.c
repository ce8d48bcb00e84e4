/* Widths are counted in characters, not bytes, so that names in UTF-8 stay in line.
 *
 * SPDX-License-Identifier: MIT */
#include "report/table.h"

#include "report/utf8.h"

#include <string.h>

static size_t count_characters(const char *text) {
    size_t count = 0;
    for (; *text != '\0'; text++)
        count += ((unsigned char)*text & 0xc0) != 0x80;
    return count;
}

static size_t column_width(const struct mesa_table *table, size_t column) {
    size_t width = count_characters(table->columns[column].head);
    for (size_t i = 0; i < table->line_count; i++) {
        size_t cell = count_characters(table->cells[i][column]);
        width = cell > width ? cell : width;
    }
    return width;
}

static void append_blanks(struct mesa_buffer *buffer, size_t count) {
    mesa_buffer_print(buffer, "%*s", (int)count, "");
}

/* `pending` blanks stand before the next visible character, so that lines do not end in blanks. */
static void append_cell(struct mesa_buffer *buffer, const char *text, size_t width, bool right,
                        size_t *pending) {
    size_t blanks = width - count_characters(text);
    if (right)
        *pending += blanks;
    if (*text != '\0') {
        append_blanks(buffer, *pending);
        mesa_buffer_text(buffer, text);
        *pending = 0;
    }
    if (!right)
        *pending += blanks;
    *pending += 2;
}

void mesa_table_render(const struct mesa_table *table, struct mesa_buffer *buffer) {
    size_t widths[MESA_TABLE_COLUMNS];
    for (size_t column = 0; column < table->column_count; column++)
        widths[column] = column_width(table, column);
    for (size_t line = 0; line <= table->line_count; line++) {
        size_t pending = 2;
        for (size_t column = 0; column < table->column_count; column++) {
            const struct mesa_table_column *of = &table->columns[column];
            append_cell(buffer, line == 0 ? of->head : table->cells[line - 1][column],
                        widths[column], of->right, &pending);
        }
        mesa_buffer_text(buffer, "\n");
    }
}

/* Length in bytes of the character at `text`, broken bytes one by one. */
static size_t step(const char *text) {
    size_t length = mesa_utf8_length(text);
    return length == 0 ? 1 : length;
}

static size_t count_steps(const char *text) {
    size_t count = 0;
    for (; *text != '\0'; text += step(text))
        count++;
    return count;
}

/* Appends up to `count` characters from *text on, made printable; stops before `end`. */
static char *copy_characters(char *to, const char *end, const char **text, size_t count) {
    for (; count > 0 && **text != '\0'; count--) {
        size_t length = mesa_utf8_length(*text);
        bool control = length == 1 && ((unsigned char)**text < ' ' || **text == 0x7f);
        const char *shown = length == 0 ? "\xef\xbf\xbd" /* U+FFFD */ : control ? "?" : *text;
        size_t needed = length == 0 ? 3 : length;
        if (needed > (size_t)(end - to))
            break;
        memcpy(to, shown, needed);
        to += needed;
        *text += step(*text);
    }
    return to;
}

char *mesa_table_shorten(char *ret, size_t size, const char *text, size_t columns) {
    const char *end = ret + size - 1;
    char *to = ret;
    size_t count = count_steps(text);
    if (count > columns) {
        size_t head = (columns - 2) / 2, tail = columns - 2 - head;
        to = copy_characters(to, end, &text, head);
        const char *dots = "..";
        to = copy_characters(to, end, &dots, 2);
        for (size_t rest = count_steps(text); rest > tail; rest--)
            text += step(text);
    }
    to = copy_characters(to, end, &text, columns);
    *to = '\0';
    return ret;
}
