/* The symbols of libtorch that libmesa defines in its place. Each calls the original first, so the
 * framework is in a state of its own making whatever libmesa does afterwards. No decisions here.
 *
 * SPDX-License-Identifier: MIT */
#include "preload/export.h"
#include "preload/start.h"
#include "torch/hook.h"
#include "torch/saved.h"

#include <errno.h>

/* The optional constructor delegates to the Tensor constructor through the PLT: that inner call is the
 * same save seen a second time. */
static _Thread_local bool in_optional __attribute__((tls_model("initial-exec")));

static void leave_optional(const bool *outer) {
    in_optional = *outer;
}

/* std::optional<at::Tensor>: the tensor, then a byte that says whether it is there. */
struct optional_tensor {
    struct mesa_tensor tensor;
    bool engaged;
};

static void constructed(bool armed, void *saved, const struct mesa_tensor *tensor, bool is_output,
                        bool is_inplace_on_view, uintptr_t return_address, uintptr_t stack) {
    int before = errno;
    struct mesa_save save = {
        .return_address = return_address,
        .stack = stack,
        .is_output = is_output,
        .is_inplace_on_view = is_inplace_on_view,
        .is_defined = tensor != NULL,
    };
    if (armed)
        mesa_saved_constructed(saved, tensor, &save);
    else
        mesa_start_try(saved, tensor, &save);
    errno = before;
}

/* The stack pointer that the caller had: where this frame begins. */
#define CALLER_STACK ((uintptr_t)__builtin_dwarf_cfa())

EXPORT void mesa_saved_variable_from_tensor(
    void *saved, const struct mesa_tensor *tensor, bool is_output,
    bool is_inplace_on_view) __asm__("_ZN5torch8autograd13SavedVariableC1ERKN2at6TensorEbb");
void mesa_saved_variable_from_tensor(void *saved, const struct mesa_tensor *tensor, bool is_output,
                                     bool is_inplace_on_view) {
    bool inner = in_optional;
    in_optional = false;
    bool armed = mesa_start();
    mesa_torch.saved_from_tensor(saved, tensor, is_output, is_inplace_on_view);
    if (!inner)
        constructed(armed, saved, tensor, is_output, is_inplace_on_view,
                    (uintptr_t)__builtin_return_address(0), CALLER_STACK);
}

EXPORT void mesa_saved_variable_from_optional(
    void *saved, const struct optional_tensor *optional, bool is_output,
    bool is_inplace_on_view) __asm__("_ZN5torch8autograd13SavedVariableC1ERKSt8optionalIN2at6Tensor"
                                     "EEbb");
void mesa_saved_variable_from_optional(void *saved, const struct optional_tensor *optional,
                                       bool is_output, bool is_inplace_on_view) {
    bool armed = mesa_start();
    const bool outer __attribute__((cleanup(leave_optional), unused)) = in_optional;
    in_optional = true;
    mesa_torch.saved_from_optional(saved, optional, is_output, is_inplace_on_view);
    in_optional = false;
    constructed(armed, saved, optional->engaged ? &optional->tensor : NULL, is_output,
                is_inplace_on_view, (uintptr_t)__builtin_return_address(0), CALLER_STACK);
}

/* Base-object constructors: the same code for a class without virtual bases. */
EXPORT void mesa_saved_variable_from_tensor_base(
    void *, const struct mesa_tensor *, bool,
    bool) __asm__("_ZN5torch8autograd13SavedVariableC2ERKN2at6TensorEbb")
    __attribute__((alias("_ZN5torch8autograd13SavedVariableC1ERKN2at6TensorEbb")));
EXPORT void mesa_saved_variable_from_optional_base(
    void *, const struct optional_tensor *, bool,
    bool) __asm__("_ZN5torch8autograd13SavedVariableC2ERKSt8optionalIN2at6TensorEEbb")
    __attribute__((alias("_ZN5torch8autograd13SavedVariableC1ERKSt8optionalIN2at6TensorEEbb")));

/* The program sets hooks of its own on one saved tensor. */
EXPORT void mesa_saved_variable_register_hooks(void *saved, void **unique_hooks) __asm__(
    "_ZN5torch8autograd13SavedVariable14register_hooksEOSt10unique_ptrINS0_18SavedVariableHooksE"
    "St14default_deleteIS3_EE");
void mesa_saved_variable_register_hooks(void *saved, void **unique_hooks) {
    if (mesa_start()) {
        struct mesa_hook *hook = mesa_hook_in(saved);
        if (hook != NULL)
            mesa_hook_take_out(hook, saved);
    }
    mesa_torch.saved_register_hooks(saved, unique_hooks);
}
