/* A growable run of bytes to format a report into, and the one write that takes it out. There is no
 * stdio stream here, because the program's own streams may be locked, closed or half flushed when a
 * report is due. Must not know what is being written.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_REPORT_BUFFER_H
#define MESA_REPORT_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

/* Start with {0}. Once memory ran out `failed` stays set and every later call does nothing. */
struct mesa_buffer {
    char *bytes; /* owned */
    size_t length, room;
    bool failed;
};

void mesa_buffer_append(struct mesa_buffer *buffer, const char *bytes, size_t length);
void mesa_buffer_text(struct mesa_buffer *buffer, const char *text);
/* As printf in the "C" locale, whatever the program's locale is. */
void mesa_buffer_print(struct mesa_buffer *buffer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void mesa_buffer_done(struct mesa_buffer *buffer);

/* As snprintf in the "C" locale; returns ret. */
char *mesa_print_into(char *ret, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Writes all bytes, through short writes and EINTR. 0 or an errno. A pipe without a reader or a file
 * over the size limit is an error like others: the program gets no signal. */
int mesa_write_all(int fd, const char *bytes, size_t length);

/* Writes a file that appears under `path` complete or not at all. 0 or an errno. */
int mesa_write_file(const char *path, const char *bytes, size_t length);

#endif
