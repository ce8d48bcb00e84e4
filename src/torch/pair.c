/* Which two tensors are compared, and how. See pair.h.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/pair.h"

#include <string.h>

_Thread_local struct mesa_pair mesa_pair __attribute__((tls_model("initial-exec")));

static bool same_geometry(const struct mesa_view *a, const struct mesa_view *b) {
    size_t dims = (size_t)a->ndim * sizeof(int64_t);
    return a->dtype == b->dtype && a->ndim == b->ndim && memcmp(a->sizes, b->sizes, dims) == 0 &&
           memcmp(a->strides, b->strides, dims) == 0;
}

bool mesa_pair_match(const struct mesa_op_argument *row, const struct mesa_tensor *tensor,
                     const struct mesa_view *view, const void **ret_partner) {
    const struct mesa_pair *pair = &mesa_pair;
    if (pair->op == NULL || strcmp(pair->op, row->op) != 0)
        return false;
    bool is_self = mesa_pair_is_self(row);
    const struct mesa_tensor *partner = is_self ? pair->other : pair->self;
    struct mesa_view partner_view;
    if ((is_self ? pair->self : pair->other)->impl != tensor->impl ||
        !mesa_impl_is_plain(partner->impl) || mesa_tensor_view(partner, &partner_view) != MESA_OK ||
        !same_geometry(view, &partner_view))
        return false;
    *ret_partner = partner_view.data;
    return true;
}
