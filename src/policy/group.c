/* The table of op groups. docs/policies.md lists it too; a test compares the two.
 *
 * SPDX-License-Identifier: MIT */
#include "policy/group.h"

#include "policy/glob.h"

#include <string.h>

static const struct mesa_op_group groups[] = {
    {"linear",
     {"addmm", "mm", "linear"},
     {{"input", {"mat1", "self", "input"}}, {"weight", {"mat2", "weight"}}}},
    {"matmul",
     {"mm", "bmm", "addmm", "baddbmm", "addbmm", "matmul"},
     {{"left", {"self", "mat1", "batch1"}}, {"right", {"mat2", "batch2", "other"}}}},
    {"conv",
     {"convolution", "_convolution", "convolution_overrideable", "cudnn_convolution",
      "cudnn_convolution_transpose", "mkldnn_convolution", "_conv_depthwise2d", "conv_depthwise3d",
      "_slow_conv2d_forward", "slow_conv3d_forward", "slow_conv_dilated2d", "slow_conv_dilated3d",
      "slow_conv_transpose2d", "slow_conv_transpose3d", "_nnpack_spatial_convolution", "conv_tbc"},
     {{"input", {"input", "self"}}, {"weight", {"weight"}}}},
    {"attention",
     {"_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
      "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
      "_scaled_dot_product_fused_attention_overrideable", "_flash_attention_forward",
      "_efficient_attention_forward", "_cudnn_attention_forward"},
     {{"query", {"query"}},
      {"key", {"key"}},
      {"value", {"value"}},
      {"output", {"output"}},
      {"mask", {"attn_mask", "attn_bias", "bias"}},
      {"logsumexp", {"logsumexp", "log_sumexp", "softmax_logsumexp"}}}},
    {"softmax", {"_softmax", "_safe_softmax", "_masked_softmax"}, {{"output", {"result"}}}},
    {"log_softmax", {"_log_softmax"}, {{"output", {"result"}}}},
    {"cross_entropy",
     {"_log_softmax", "nll_loss_forward", "nll_loss2d_forward"},
     {{"target", {"target"}}}},
    {"layer_norm",
     {"native_layer_norm"},
     {{"input", {"input"}}, {"mean", {"result1"}}, {"rstd", {"result2"}}}},
    {"rms_norm", {"_fused_rms_norm"}, {{"input", {"input"}}, {"rstd", {"result1"}}}},
    {"group_norm",
     {"native_group_norm"},
     {{"input", {"input"}}, {"mean", {"result1"}}, {"rstd", {"result2"}}}},
    {"batch_norm",
     {"native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit",
      "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_stats",
      "_native_batch_norm_legit_no_training", "_batch_norm_with_update",
      "_batch_norm_with_update_functional", "_batch_norm_no_update"},
     {{"input", {"input"}}, {"mean", {"result1"}}, {"rstd", {"result2"}}}},
    {"dropout", {"native_dropout", "_fused_dropout"}, {{"mask", {"result1"}}}},
    {"activation",
     {"gelu", "silu", "mish", "elu", "celu", "leaky_relu", "relu", "threshold", "hardtanh",
      "hardswish", "hardsigmoid", "softplus", "log_sigmoid_forward", "glu", "_prelu_kernel",
      "sigmoid", "tanh"},
     {{"input", {"self"}}, {"output", {"result"}}}},
    {"max_pool",
     {"max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d",
      "adaptive_max_pool3d", "fractional_max_pool2d", "fractional_max_pool3d"},
     {{"input", {"self"}}, {"indices", {"result1"}}}},
    {"avg_pool",
     {"avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"},
     {{"input", {"self"}}}},
    {"rnn",
     {"mkldnn_rnn_layer", "_cudnn_rnn", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"},
     {{"input", {"input"}}}},
};

const struct mesa_op_group *mesa_op_group_at(size_t index) {
    return index < sizeof groups / sizeof groups[0] ? &groups[index] : NULL;
}

const struct mesa_op_group *mesa_op_group_find(const char *name, size_t length) {
    const struct mesa_op_group *group;
    for (size_t i = 0; (group = mesa_op_group_at(i)) != NULL; i++) {
        if (strlen(group->name) == length && memcmp(group->name, name, length) == 0)
            return group;
    }
    return NULL;
}

static bool list_has(const char *const *names, size_t most, const char *name) {
    for (size_t i = 0; i < most && names[i] != NULL; i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return false;
}

bool mesa_op_group_has(const struct mesa_op_group *group, const char *op) {
    return list_has(group->ops, MESA_GROUP_MOST_OPS, op);
}

bool mesa_op_group_alias_covers(const struct mesa_op_group *group, const char *pattern,
                                bool is_glob, const char *argument) {
    for (size_t i = 0; i < MESA_GROUP_MOST_ALIASES && group->aliases[i].name != NULL; i++) {
        const struct mesa_op_alias *alias = &group->aliases[i];
        bool named =
            is_glob ? mesa_glob_match(pattern, alias->name) : strcmp(pattern, alias->name) == 0;
        if (named && list_has(alias->arguments, MESA_GROUP_MOST_NAMES, argument))
            return true;
    }
    return false;
}
