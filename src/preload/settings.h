/* The MESA_ variables of the environment (docs: README, `mesa --help`).
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_PRELOAD_SETTINGS_H
#define MESA_PRELOAD_SETTINGS_H

#include "codec/kernels/kernels.h"
#include "policy/policy.h"
#include "report/report.h"

#include <stdbool.h>
#include <stddef.h>

enum mesa_log_level { MESA_LOG_ERROR, MESA_LOG_WARN, MESA_LOG_INFO, MESA_LOG_DEBUG };

struct mesa_environment {
    struct mesa_policy *policy; /* owned; NULL after a mistake */
    struct mesa_report_target report;
    size_t min_bytes;
    uint64_t seed;
    enum mesa_isa isa;
    bool verify, explain, strict, heap;
};

/* Reads everything; a mistake is one line on stderr each. False if libmesa should not run because of
 * one (then, with `strict`, the caller ends the process). Init only. */
bool mesa_environment_read(struct mesa_environment *ret_environment);

/* One line "mesa: TEXT" on stderr, if `level` is to be shown. Stack buffer, one write. */
void mesa_log(enum mesa_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
