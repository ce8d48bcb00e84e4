/* It is no lock, because a fork must not wait for ever: the forking thread may hold the dynamic linker's
 * lock, which a thread between begin and end waits for.
 *
 * SPDX-License-Identifier: MIT */
#include "classify/loader.h"

#include <stdatomic.h>
#include <time.h>

/* Of 50 us, so more than a second: a thread that a busy machine does not run must not be given up. */
enum { MOST_FORK_PAUSES = 20000 };

static _Atomic unsigned busy;
static _Atomic unsigned forking;

static void pause_briefly(void) {
    struct timespec moment = {.tv_nsec = 50 * 1000};
    nanosleep(&moment, NULL);
}

void mesa_loader_begin(void) {
    for (;;) {
        atomic_fetch_add(&busy, 1);
        if (atomic_load(&forking) == 0)
            return;
        atomic_fetch_sub(&busy, 1);
        pause_briefly();
    }
}

void mesa_loader_end(void) {
    atomic_fetch_sub(&busy, 1);
}

void mesa_loader_prefork(void) {
    atomic_fetch_add(&forking, 1);
    for (int i = 0; i < MOST_FORK_PAUSES && atomic_load(&busy) > 0; i++)
        pause_briefly();
}

void mesa_loader_postfork_parent(void) {
    atomic_fetch_sub(&forking, 1);
}

void mesa_loader_postfork_child(void) {
    atomic_store(&forking, 0); /* the other threads, in their turns or forking, are not here */
    atomic_store(&busy, 0);
}
