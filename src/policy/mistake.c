/* Mistakes as text: "FILE:LINE:COLUMN: what is wrong; what was expected; did you mean ...?". Whatever
 * the policy holds, a message fits its buffer and a terminal.
 *
 * SPDX-License-Identifier: MIT */
#include "policy/parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Paths can be longer than the message; their ends tell more than their beginnings. */
static void mistake_set_file(struct mesa_mistake *mistake, const char *label) {
    size_t length = strlen(label), most = sizeof mistake->file - 1;
    if (length > most)
        snprintf(mistake->file, sizeof mistake->file, "...%s", label + length - (most - 3));
    else
        memcpy(mistake->file, label, length + 1);
    mistake->place.file = mistake->file;
}

/* Messages go to terminals and logs, and policies may hold any byte. */
static void mistake_make_printable(struct mesa_mistake *mistake) {
    for (char *c = mistake->text; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    }
}

__attribute__((format(printf, 6, 0))) static void
mistake_write(struct mesa_mistake *mistake, const char *label, unsigned line, unsigned column,
              const char *suggestion, const char *format, va_list arguments) {
    mistake_set_file(mistake, label);
    mistake->place.line = line;
    mistake->place.column = column;
    int most = (int)sizeof mistake->text;
    int used =
        snprintf(mistake->text, sizeof mistake->text, "%s:%u:%u: ", mistake->file, line, column);
    int n = vsnprintf(mistake->text + used, (size_t)(most - used), format, arguments);
    used = n < 0 || n >= most - used ? most : used + n;
    if (suggestion != NULL && used < most)
        snprintf(mistake->text + used, (size_t)(most - used), "; did you mean '%s'?", suggestion);
    mistake_make_printable(mistake);
}

void mesa_mistake_fill(struct mesa_mistake *ret_mistake, const char *label, const char *suggestion,
                       const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    mistake_write(ret_mistake, label, 1, 1, suggestion, format, arguments);
    va_end(arguments);
}

bool mesa_line_fail(const struct mesa_line *line, const char *at, const char *suggestion,
                    const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    mistake_write(line->text->mistake, line->text->label, line->number,
                  (unsigned)(at - line->begin) + 1, suggestion, format, arguments);
    va_end(arguments);
    return false;
}

bool mesa_line_fail_memory(const struct mesa_line *line) {
    return mesa_line_fail(line, line->at, NULL, "out of memory");
}
