/* The report for people: at most MESA_TEXT_LINES lines, whatever was trained.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_REPORT_TEXT_H
#define MESA_REPORT_TEXT_H

#include "report/account.h"
#include "report/buffer.h"

enum { MESA_TEXT_LINES = 40 };

void mesa_text_render(const struct mesa_account *account, struct mesa_buffer *buffer);

#endif
