/* Errors that reach the program, raised as the RuntimeError that it would see from PyTorch itself.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_MESSAGE_H
#define MESA_TORCH_MESSAGE_H

#include "torch/hook.h"

/* "one of the variables needed for gradient computation has been modified by an inplace operation",
 * in PyTorch's own words (torch/csrc/autograd/saved_variable.cpp). */
void mesa_raise_modified(const struct mesa_hook *hook) __attribute__((noreturn));

/* The program looks at a saved tensor of which only a mask or the shape is held. */
void mesa_raise_not_held(const struct mesa_hook *hook) __attribute__((noreturn));

void mesa_raise_no_memory(void) __attribute__((noreturn));

/* Compares the checksum of held bytes, where checksums are on. */
void mesa_raise_if_damaged(const struct mesa_hook *hook, const struct mesa_held *held);

#endif
