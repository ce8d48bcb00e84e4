/* libtorch links a tensor to the node that made it: the moment at which the node of a Python function
 * shows, just before it saves. See torch/function.h.
 *
 * SPDX-License-Identifier: MIT */
#include "preload/export.h"
#include "preload/start.h"
#include "torch/function.h"

/* An Edge passed by value lies in memory: an owned pointer to a node, then a number. */
EXPORT void mesa_set_gradient_edge(const struct mesa_tensor *tensor, void *const *edge) __asm__(
    "_ZN5torch8autograd4impl17set_gradient_edgeERKN2at6TensorENS0_4EdgeE");
void mesa_set_gradient_edge(const struct mesa_tensor *tensor, void *const *edge) {
    if (mesa_start())
        mesa_function_note(*edge);
    mesa_torch.set_gradient_edge(tensor, edge);
}
