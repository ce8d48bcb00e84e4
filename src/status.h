/* What a call into one of our modules came to. Three outcomes are kept apart because they lead to
 * different things: a declined tensor stays with the framework (normal, counted by reason), want of
 * memory does the same but is counted apart, and a broken fact about libtorch disarms libmesa.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_STATUS_H
#define MESA_STATUS_H

enum mesa_status {
    MESA_OK = 0,
    MESA_DECLINED,  /* these values or this shape cannot be held as planned: keep the original */
    MESA_NO_MEMORY, /* no memory for the held bytes: keep the original */
    MESA_BROKEN,    /* something that was checked at start-up is not so */
};

#define MESA_MUST_CHECK __attribute__((warn_unused_result))

#endif
