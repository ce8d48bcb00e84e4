/* Leaving: the report at exit or on a signal, and forks.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_PRELOAD_LEAVE_H
#define MESA_PRELOAD_LEAVE_H

/* Called once, when the library arms itself: a process that never trains installs nothing. */
void mesa_leave_install(void);

/* Writes the reports now. Any thread; concurrent calls write one after the other. */
void mesa_leave_report(void);

#endif
