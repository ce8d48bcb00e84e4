/* Reading and making tensors through the table. Must not decide anything.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/torch.h"

#include "classify/loader.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static struct mesa_tensor *unconst(const struct mesa_tensor *tensor) {
    return (struct mesa_tensor *)(uintptr_t)tensor; /* the shim takes handles without const */
}

enum mesa_dtype mesa_tensor_dtype(const struct mesa_tensor *tensor) {
    int32_t number = -1;
    if (mesa_torch.get_dtype(unconst(tensor), &number) != 0 || number < 0 ||
        number >= (int32_t)sizeof mesa_torch.dtype_of)
        return MESA_DTYPE_OTHER;
    return (enum mesa_dtype)mesa_torch.dtype_of[number];
}

enum mesa_status mesa_tensor_view(const struct mesa_tensor *tensor, struct mesa_view *ret_view) {
    int64_t dim = 0, offset = 0, *sizes = NULL, *strides = NULL;
    struct mesa_tensor *t = unconst(tensor);
    if (mesa_torch.get_dim(t, &dim) != 0 || dim > MESA_MAX_DIMS ||
        mesa_torch.get_sizes(t, &sizes) != 0 || mesa_torch.get_strides(t, &strides) != 0 ||
        mesa_torch.get_storage_offset(t, &offset) != 0)
        return MESA_DECLINED;
    ret_view->dtype = mesa_tensor_dtype(tensor);
    ret_view->ndim = (int)dim;
    ret_view->elements = 1;
    for (int i = 0; i < (int)dim; i++) {
        ret_view->sizes[i] = sizes[i];
        ret_view->strides[i] = strides[i];
        ret_view->elements *= (size_t)sizes[i];
    }
    /* Read from the storage, not by data_ptr(): that would materialise a copy-on-write storage. */
    const char *data = mesa_word_at(mesa_impl_storage(tensor->impl), mesa_torch.storage_data);
    ret_view->data = data + (size_t)offset * mesa_dtype_bytes(ret_view->dtype);
    return MESA_OK;
}

size_t mesa_tensor_storage_bytes(const struct mesa_tensor *tensor) {
    int64_t bytes = 0;
    if (mesa_torch.get_storage_size(unconst(tensor), &bytes) != 0 || bytes < 0)
        return 0;
    return (size_t)bytes;
}

enum mesa_view_kind mesa_view_kind(const struct mesa_tensor *view) {
    if (mesa_torch.view_kind == 0)
        return MESA_VIEW_PLAIN;
    const unsigned char *meta = mesa_torch.tensor_view_meta(view);
    unsigned kind = meta[mesa_torch.view_kind];
    return kind < MESA_VIEW_KINDS ? (enum mesa_view_kind)kind : MESA_VIEW_PLAIN;
}

/* "_ZTVN5torch8autograd9generated12ExpBackward0E" -> "ExpBackward0": the last length-prefixed part. */
static void last_mangled_part(const char *mangled, char *ret_name, size_t size) {
    ret_name[0] = '\0';
    const char *p = mangled + strlen("_ZTV");
    if (*p == 'N')
        p++;
    while (*p >= '1' && *p <= '9') {
        char *end;
        size_t length = strtoul(p, &end, 10);
        if (length > strlen(end))
            return;
        size_t kept = length < size ? length : size - 1;
        memcpy(ret_name, end, kept);
        ret_name[kept] = '\0';
        p = end + length;
    }
}

void mesa_node_class(const void *node, char *ret_name, size_t size) {
    Dl_info info;
    ret_name[0] = '\0';
    if (node == NULL)
        return;
    mesa_loader_begin();
    bool is_found = dladdr(mesa_word_at(node, 0), &info) != 0;
    mesa_loader_end();
    if (is_found && info.dli_sname != NULL && strncmp(info.dli_sname, "_ZTV", 4) == 0)
        last_mangled_part(info.dli_sname, ret_name, size);
}

typedef void name_function(struct mesa_cxx_string *ret, const void *node);

static void ask_name(name_function *name, const void *node, char *ret_name, size_t size) {
    struct mesa_cxx_string text;
    name(&text, node);
    size_t kept = text.length < size ? text.length : size - 1;
    memcpy(ret_name, text.text, kept);
    ret_name[kept] = '\0';
    if (text.text != text.local)
        mesa_torch.cxx_delete(text.text);
}

void mesa_node_own_name(const void *node, char *ret_name, size_t size) {
    ret_name[0] = '\0';
    name_function *name;
    if (mesa_torch.node_name_slot == 0)
        return;
    *(void **)&name =
        mesa_word_at(mesa_word_at(node, 0), mesa_torch.node_name_slot * sizeof(void *));
    ask_name(name, node, ret_name, size);
}

void mesa_node_name(const void *node, char *ret_name, size_t size) {
    ret_name[0] = '\0';
    if (node == NULL)
        return;
    if (mesa_torch.node_forward_op_name != NULL)
        ask_name(mesa_torch.node_forward_op_name, node, ret_name, size);
    else
        mesa_node_own_name(node, ret_name, size);
}

struct mesa_tensor *mesa_tensor_adopt(struct mesa_tensor by_value) {
    struct mesa_tensor *handle = mesa_torch.cxx_new(sizeof *handle);
    *handle = by_value;
    return handle;
}

struct mesa_tensor *mesa_tensor_create(enum mesa_dtype dtype, size_t elements, void **ret_data) {
    const int64_t size = (int64_t)elements, stride = 1;
    struct mesa_tensor tensor;
    mesa_torch.empty_strided_cpu(&tensor, (struct mesa_array_ref){&size, 1},
                                 (struct mesa_array_ref){&stride, 1},
                                 (int8_t)mesa_torch.torch_dtype[dtype], false);
    *ret_data = mesa_word_at(mesa_impl_storage(tensor.impl), mesa_torch.storage_data);
    return mesa_tensor_adopt(tensor);
}

struct mesa_tensor *mesa_tensor_alias(struct mesa_tensor *base, int ndim, const int64_t *sizes,
                                      const int64_t *strides, int64_t offset) {
    struct mesa_tensor *alias = NULL;
    if (mesa_torch.reinterpret_tensor(base, ndim, sizes, strides, offset, &alias) != 0)
        return NULL;
    return alias;
}

void mesa_tensor_free(struct mesa_tensor *tensor) {
    if (tensor != NULL)
        (void)mesa_torch.delete_handle(tensor);
}

void mesa_tensor_move_out(struct mesa_tensor *tensor, struct mesa_tensor *ret_tensor) {
    ret_tensor->impl = tensor->impl;
    mesa_torch.cxx_delete(tensor); /* the shell only: its reference has moved */
}

struct parallel_call {
    void (*body)(void *, size_t, size_t);
    void *context;
};

static void run_part(int64_t begin, int64_t end, void *context) {
    const struct parallel_call *call = context;
    call->body(call->context, (size_t)begin, (size_t)end);
}

void mesa_torch_parallel_for(size_t count, size_t grain,
                             void (*body)(void *context, size_t begin, size_t end), void *context) {
    if (mesa_torch.parallel_for == NULL || count <= grain || mesa_torch.in_parallel_region()) {
        body(context, 0, count);
        return;
    }
    struct parallel_call call = {body, context};
    (void)mesa_torch.parallel_for(0, (int64_t)count, (int64_t)grain, run_part, &call);
}
