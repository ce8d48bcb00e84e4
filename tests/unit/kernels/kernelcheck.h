/* Between the two halves of kernelcheck: the comparison with the scalar kernels (kernelcheck.c) and
 * the benchmark (kernelbench.c).
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TESTS_KERNELCHECK_H
#define MESA_TESTS_KERNELCHECK_H

#include "codec/kernels/kernels.h"

/* Small, seeded, the same everywhere. */
uint64_t random_bits(void);
/* 0 <= result < limit; limit >= 1 */
size_t random_below(size_t limit);

/* Times the hot entries of `table` whose line contains `only` on sources of `mib` MiB, interleaved
 * with memcpy of the same source, and prints ratios. Returns an exit status. */
int kernelbench(const struct mesa_kernels *table, size_t mib, const char *only);

#endif
