/* How this process was told to work.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_CONFIG_H
#define MESA_TORCH_CONFIG_H

#include "policy/policy.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* const after start-up */
struct mesa_config {
    const struct mesa_policy *policy;
    size_t min_bytes; /* smaller tensors are left alone */
    uint64_t seed;    /* of stochastic rounding */
    bool verify;      /* keep originals beside and compare */
    bool explain;     /* tell on stderr what is done at each site, once */
    bool checksums;   /* of held bytes, checked before they are decoded */
};
extern struct mesa_config mesa_config;

#endif
