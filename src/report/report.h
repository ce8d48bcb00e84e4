/* Reports out of the ledger: text, JSON. One file for each format, one row in the table of formats.
 * Must not call back into the modules that fill the ledger.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_REPORT_REPORT_H
#define MESA_REPORT_REPORT_H

#include "report/ledger.h"
#include "status.h"

#include <stdio.h>

/* Facts about the run that the ledger does not hold. Strings borrowed; NULL where not known. */
struct mesa_run {
    const char *version;       /* libmesa's */
    const char *torch_version; /* as libtorch says */
    const char *isa;
    const char *policy;  /* name */
    const char *command; /* command line, blanks between words */
    double seconds;      /* since the first saved tensor */
    unsigned threads;
    bool verified;
};

/* Where reports go: MESA_REPORT parsed. */
struct mesa_report_target {
    bool text; /* to stderr */
    /* owned: absolute patterns (relative ones are taken from the directory at the time of parsing)
     * with %p pid, %r rank (RANK or LOCAL_RANK or 0), %h host, %% */
    char *files[8];
    size_t file_count;
};
/* False on a mistake (unknown format, unknown % letter), then ret_mistake has one line. */
bool mesa_report_parse(const char *text, struct mesa_report_target *ret_target, char *ret_mistake,
                       size_t mistake_size);
void mesa_report_target_done(struct mesa_report_target *target);

/* Writes all targets. Failures are one line on stderr each and nothing more. Nothing is written if
 * no tensor was ever considered. */
void mesa_report_write(const struct mesa_report_target *target, const struct mesa_run *run);

/* The text report alone, at most 40 lines, to a descriptor. */
void mesa_report_text(int fd, const struct mesa_run *run);

/* Memory of this process in bytes, 0 if unknown. */
size_t mesa_report_peak_rss(void);

#endif
