/* Where characters begin and end in UTF-8: names of Python classes and command lines may hold
 * anything.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_REPORT_UTF8_H
#define MESA_REPORT_UTF8_H

#include <stddef.h>

/* Bytes of the character that `text` (NUL-terminated, not empty) begins with: 1 to 4; 0 if these
 * bytes are no character (overlong, surrogate, cut off, past U+10FFFF). */
size_t mesa_utf8_length(const char *text);

#endif
