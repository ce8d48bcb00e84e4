/* Names of report files: what stands for %p, %r and %h, and which format a name asks for.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_REPORT_TARGET_H
#define MESA_REPORT_TARGET_H

#include "report/account.h"
#include "report/buffer.h"

struct mesa_report_format {
    const char *extension;
    void (*render)(const struct mesa_account *account, struct mesa_buffer *buffer);
};

/* NULL if the name asks for no format that there is. */
const struct mesa_report_format *mesa_report_format_of(const char *path);

/* Appends the path that a pattern of struct mesa_report_target means for this account. */
void mesa_report_expand(const char *pattern, const struct mesa_account *account,
                        struct mesa_buffer *buffer);

#endif
