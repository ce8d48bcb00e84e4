/* Who asks for a saved tensor: the engine, or the program through `grad_fn._saved_*`. Only asked where
 * what is held would not look like the values (a mask, a shape).
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_CALLER_H
#define MESA_TORCH_CALLER_H

#include <stdbool.h>

/* True if the function that called SavedVariable::unpack lies in libtorch_python.so: an attribute
 * getter. The engine's nodes lie in libtorch_cpu.so. Any thread; a few microseconds. */
bool mesa_caller_is_program(void);

#endif
