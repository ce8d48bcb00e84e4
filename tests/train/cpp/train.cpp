// Three training steps with libtorch, without Python. Prints the loss and the norms of gradients.
//
// SPDX-License-Identifier: MIT
#include <cstdio>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

extern "C" int train(void) {
    at::set_num_threads(1);
    at::manual_seed(0);
    at::Tensor w = (at::randn({256, 256}) / 16).requires_grad_();
    at::Tensor v = (at::randn({256, 256}) / 16).requires_grad_();
    for (int step = 0; step < 3; step++) {
        at::Tensor x = at::randn({128, 256});
        at::Tensor h = at::layer_norm(at::gelu(at::matmul(x, w)), {256});
        at::Tensor y = at::softmax(at::relu(at::matmul(h, v)), -1);
        at::Tensor loss = (y * y).sum();
        loss.backward();
        std::printf("%.9g %.9g %.9g\n", loss.item<double>(), w.grad().norm().item<double>(),
                    v.grad().norm().item<double>());
    }
    return 0;
}
