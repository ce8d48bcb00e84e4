/* Turns at the dynamic linker and at libunwind. Their locks may not be held by another thread when a
 * process forks: its child would wait for them for ever. So whoever calls dladdr, dl_iterate_phdr, dlsym
 * or unw_* once libmesa is at work does it between begin and end, and a fork waits until nobody does.
 *
 * Any thread; not nested. Take none of libmesa's locks in between.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CLASSIFY_LOADER_H
#define MESA_CLASSIFY_LOADER_H

void mesa_loader_begin(void);
void mesa_loader_end(void);

/* Fork handlers. */
void mesa_loader_prefork(void);
void mesa_loader_postfork_parent(void);
void mesa_loader_postfork_child(void);

#endif
