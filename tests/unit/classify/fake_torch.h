/* A libtorch made of a few exported functions: ops whose symbols are spelled as PyTorch's are, which
 * call kernels, which construct saved variables. What a site is found from is all there: symbols,
 * frames, return addresses.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TESTS_FAKE_TORCH_H
#define MESA_TESTS_FAKE_TORCH_H

#include "classify/site.h"

#include <stdbool.h>

enum { FAKE_MOST_SAVES = 32 };

/* What the calling thread's saves gave since fake_reset(). */
struct fake_saves {
    int count;
    struct mesa_site *sites[FAKE_MOST_SAVES]; /* NULL for a save that was only noted */
};
extern _Thread_local struct fake_saves fake_saves;

/* Which saves of the thread are only noted: bit k = the k-th since fake_reset(). */
extern _Thread_local unsigned fake_noted;
/* The same for saves that nobody looks at: libmesa is not ready yet. */
extern _Thread_local unsigned fake_missed;

void fake_reset(void);

/* The constructor. */
void fake_construct(bool is_output);

/* Ops. `saved` has bit k set if the k-th argument in order of saves is saved. */
void fake_layer_norm(unsigned saved) __asm__("_ZN2at4_ops17native_layer_norm4callERKNS_6TensorE");
void fake_mm(unsigned saved) __asm__(
    "_ZN2at4_ops2mm10redispatchEN3c1014DispatchKeySetERKNS_6TensorES6_");
void fake_mul(unsigned saved) __asm__("_ZN2at4_ops10mul_Tensor4callERKNS_6TensorES4_");
void fake_mul_inplace(unsigned saved) __asm__("_ZN2at4_ops11mul__Tensor4callERNS_6TensorERKS2_");
void fake_div(unsigned saved) __asm__("_ZN2at4_ops10div_Tensor4callERKNS_6TensorES4_");
void fake_relu(unsigned saved) __asm__("_ZN2at4_ops4relu4callERKNS_6TensorE");
void fake_relu_inplace(unsigned saved) __asm__("_ZN2at4_ops5relu_4callERNS_6TensorE");
void fake_max_dim(unsigned saved) __asm__("_ZN2at4_ops7max_dim4callERKNS_6TensorElb");
void fake_unheard_of(unsigned saved) __asm__("_ZN2at4_ops17frobnicate_Tensor4callERKNS_6TensorE");

/* Ops whose kernels save through code that they share, which nothing tells from a kernel. */
void fake_gelu(unsigned saved) __asm__("_ZN2at4_ops4gelu4callERKNS_6TensorEN3c1011basic_viewE");
void fake_silu(unsigned saved) __asm__("_ZN2at4_ops4silu4callERKNS_6TensorE");

/* Ops that save lists of `length` tensors through the helper they share. */
void fake_index(unsigned length) __asm__("_ZN2at4_ops12index_Tensor4callERKNS_6TensorE");
void fake_index_put(unsigned length) __asm__("_ZN2at4_ops9index_put4callERKNS_6TensorE");
void fake_foreach(unsigned length) __asm__(
    "_ZN2at4_ops17_foreach_mul_List4callEN3c108ArrayRefINS_6TensorEEES5_"); /* not in the table */

/* mm's kernel called as the boxed interface does: no symbol of the op in the stack. The second is called
 * by Python code that an op's function called. */
void fake_mm_boxed(unsigned saved);
void fake_mm_from_python(unsigned saved) __asm__("_ZN2at4_ops5outer4callERKNS_6TensorE");

/* C++ autograd functions of two classes. */
void fake_cpp_function(unsigned saved) __asm__(
    "_ZN5torch8autograd8FunctionI6MyNormE5applyIS2_JRN2at6TensorEEEENSt9enable_ifE");
void fake_other_cpp_function(unsigned saved) __asm__(
    "_ZN5torch8autograd8FunctionIN6models6RotateEE5applyIS3_JRN2at6TensorEEEE");

/* What stands between: Python's evaluation loop, which calls mm's kernel, and the function that all C++
 * autograd functions save through. */
void fake_evaluate(unsigned saved) __asm__("_PyEval_EvalFrameDefault");
void fake_save_variables(unsigned saved) __asm__(
    "_ZN5torch8autograd15AutogradContext14save_variablesEv");

#endif
