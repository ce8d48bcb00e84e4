/* The report for programs; docs/report.md and docs/report.schema.json describe it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_REPORT_JSON_H
#define MESA_REPORT_JSON_H

#include "report/account.h"
#include "report/buffer.h"

#define MESA_JSON_FORMAT         "libmesa report"
#define MESA_JSON_FORMAT_VERSION 1

void mesa_json_render(const struct mesa_account *account, struct mesa_buffer *buffer);

/* Names of reasons as they stand in JSON: "policy", "unknown_op", ...; NULL for MESA_KEPT_NOT. */
const char *mesa_json_kept_name(enum mesa_kept why);

#endif
