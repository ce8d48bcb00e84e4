/* Asks libmesa from C what it holds, and works without libmesa as well.
 *
 *   cc -Iinclude -o mesa_totals examples/mesa_totals.c -ldl
 *   mesa run ./mesa_totals
 *
 * SPDX-License-Identifier: MIT */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* RTLD_DEFAULT */
#endif
#include "mesa.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>

int main(void) {
    /* A program that must run without libmesa looks the functions up instead of linking to them. */
    int (*totals_of)(struct mesa_totals *) = NULL;
    *(void **)&totals_of = dlsym(RTLD_DEFAULT, "mesa_totals");
    if (totals_of == NULL) {
        puts("libmesa is not loaded");
        return 0;
    }
    struct mesa_totals totals = {.size = sizeof totals};
    if (totals_of(&totals) != 0) {
        puts("this libmesa is of another version");
        return 1;
    }
    printf("held now      %" PRIu64 " bytes instead of %" PRIu64 "\n", totals.held_bytes,
           totals.would_bytes);
    printf("held at peak  %" PRIu64 " bytes instead of %" PRIu64 "\n", totals.held_bytes_peak,
           totals.would_bytes_peak);
    printf("saved         %" PRIu64 " tensors in %" PRIu64 " steps\n", totals.tensors,
           totals.steps);
    printf("packing       %.3f s, unpacking %.3f s\n", (double)totals.pack_ns * 1e-9,
           (double)totals.unpack_ns * 1e-9);
    return 0;
}
