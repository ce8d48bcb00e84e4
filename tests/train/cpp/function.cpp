// A function of autograd in C++, as an extension would have it: saves an input, its output, an
// intermediate value, an undefined tensor and a list.
//
// SPDX-License-Identifier: MIT
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <ATen/ATen.h>

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct Swish : torch::autograd::Function<Swish> {
    static Variable forward(AutogradContext *context, const Variable &x, const Variable &scale) {
        at::Tensor gate = at::sigmoid(x);
        at::Tensor y = x * gate * scale;
        context->save_for_backward({x, gate, at::Tensor(), scale, y});
        return y;
    }

    static variable_list backward(AutogradContext *context, variable_list gradients) {
        variable_list saved = context->get_saved_variables();
        const at::Tensor &x = saved[0], &gate = saved[1], &scale = saved[3], &y = saved[4];
        TORCH_CHECK(!saved[2].defined(), "an undefined tensor came back defined");
        TORCH_CHECK(y.sizes() == x.sizes(), "the output came back with another shape");
        at::Tensor slope = gate * (1 + x * (1 - gate));
        return {gradients[0] * slope * scale, (gradients[0] * x * gate).sum_to_size(scale.sizes())};
    }
};

at::Tensor swish(const at::Tensor &x, const at::Tensor &scale) {
    return Swish::apply(x, scale);
}

} // namespace

TORCH_LIBRARY(mesa_test, library) {
    library.def("swish(Tensor x, Tensor scale) -> Tensor", swish);
}
