/* What libFuzzer calls, so that a target and the replay of its seeds agree on it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TESTS_FUZZ_FUZZ_H
#define MESA_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
