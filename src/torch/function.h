/* Which autograd.Function saves next. libtorch_python links the outputs of a function to its node, and
 * saves what save_for_backward() was given right after that; the saves themselves do not show the node.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_FUNCTION_H
#define MESA_TORCH_FUNCTION_H

#include "classify/symbol.h"
#include "torch/torch.h"

/* The object that a node of libtorch's own was last found in: nearly all are. */
extern _Atomic(const struct mesa_object *) mesa_function_native;

/* A class name was noted in this thread, and no other node since. */
extern _Thread_local bool mesa_function_is_noted;

void mesa_function_note_slowly(const void *node);

/* An output was linked to a node (ARMED only). Some loads for what is not written in Python. */
static inline void mesa_function_note(const void *node) {
    const struct mesa_object *native =
        atomic_load_explicit(&mesa_function_native, memory_order_acquire);
    uintptr_t vtable = node == NULL ? 0 : (uintptr_t)mesa_word_at(node, 0);
    if (native == NULL || vtable < native->begin || vtable >= native->end || mesa_function_is_noted)
        mesa_function_note_slowly(node);
}

#endif
