/* A kernel in a shared library of its own, called by an op of the fake libtorch or by nobody. Built
 * twice: as an extension, and under the name of PyTorch's Python binding.
 *
 * SPDX-License-Identifier: MIT */
#include <stdbool.h>

__attribute__((visibility("default"))) void foreign_kernel(void (*construct)(bool is_output));

void foreign_kernel(void (*construct)(bool is_output)) {
    construct(false);
    __asm__ volatile("" : : : "memory");
}
