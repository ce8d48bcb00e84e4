/* Makes tiny tensors and calls, by the list of classify/calibration.h. The calls go to the operators'
 * exported entry points, the same code that the program will run.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/calibrate.h"

#include "classify/calibration.h"
#include "classify/site.h"
#include "torch/torch.h"

#include <dlfcn.h>
#include <string.h>

_Thread_local bool mesa_calibrating __attribute__((tls_model("initial-exec")));

/* c10::Scalar, holding the double 1.0: a tag of zero, then the value at byte 16. */
static const struct {
    _Alignas(16) uint64_t tag, unused;
    double value, imaginary;
} scalar_one = {.value = 1.0};

/* How a C compiler sees a function that returns an at::Tensor: through a pointer to room for it. */
struct returned {
    struct mesa_tensor tensor;
    void *unused[3];
};

/* No op of the list takes more than 3 tensors, 2 scalars and an integer; all fit in registers, and what
 * is passed beyond an op's own parameters is not looked at. */
typedef struct returned call_function(const void *, const void *, const void *, const void *,
                                      const void *);
typedef struct mesa_tensor *call_inplace(const void *, const void *, const void *, const void *,
                                         const void *);

/* `shape` has a digit for each size. All ones, requires a gradient. */
static struct mesa_tensor *leaf(const char *shape) {
    int64_t sizes[4], strides[4], elements = 1;
    size_t ndim = strlen(shape);
    for (size_t i = ndim; i-- > 0;) {
        sizes[i] = shape[i] - '0';
        strides[i] = elements;
        elements *= sizes[i];
    }
    struct mesa_tensor tensor;
    mesa_torch.empty_strided_cpu(&tensor, (struct mesa_array_ref){sizes, ndim},
                                 (struct mesa_array_ref){strides, ndim},
                                 (int8_t)mesa_torch.torch_dtype[MESA_F32], false);
    float *data = mesa_word_at(mesa_impl_storage(tensor.impl), mesa_torch.storage_data);
    for (int64_t i = 0; i < elements; i++)
        data[i] = 1.0f;
    mesa_torch.impl_set_requires_grad(tensor.impl, true);
    return mesa_tensor_adopt(tensor);
}

/* A tensor that an op made, for in-place calls, which leaves refuse. */
static struct mesa_tensor *computed(const char *shape) {
    call_function *multiply;
    *(void **)&multiply =
        dlsym(mesa_torch.library, "_ZN2at4_ops10mul_Tensor4callERKNS_6TensorES4_");
    if (multiply == NULL)
        return NULL;
    struct mesa_tensor *a = leaf(shape);
    struct returned product = multiply(a, a, NULL, NULL, NULL);
    mesa_tensor_free(a);
    return mesa_tensor_adopt(product.tensor);
}

static void run(const struct mesa_calibration *c, const void *function) {
    struct mesa_tensor *tensors[MESA_CALIBRATION_MOST_TENSORS] = {NULL};
    const void *arguments[MESA_CALIBRATION_MOST_TENSORS + 3] = {NULL};
    unsigned count = 0;
    for (; count < c->tensors; count++) {
        tensors[count] =
            c->is_inplace && count == 0 ? computed(c->shapes[0]) : leaf(c->shapes[count]);
        arguments[count] = tensors[count];
    }
    for (unsigned i = 0; i < c->scalars; i++)
        arguments[count++] = &scalar_one;
    if (c->has_integer)
        arguments[count] = (const void *)(intptr_t)c->integer;
    const void **a = arguments;
    mesa_site_calibrate_begin(mesa_calibration_op(c));
    mesa_calibrating = true;
    if (c->is_inplace) {
        call_inplace *call;
        memcpy(&call, &function, sizeof call);
        (void)call(a[0], a[1], a[2], a[3], a[4]);
    } else {
        call_function *call;
        memcpy(&call, &function, sizeof call);
        struct returned result = call(a[0], a[1], a[2], a[3], a[4]);
        mesa_tensor_free(mesa_tensor_adopt(result.tensor));
    }
    mesa_calibrating = false;
    mesa_site_calibrate_end();
    for (unsigned i = 0; i < c->tensors; i++)
        mesa_tensor_free(tensors[i]);
}

void mesa_calibrate(void) {
    bool grad_mode = mesa_torch.grad_mode_enabled();
    mesa_torch.grad_mode_set(true);
    const struct mesa_calibration *c;
    for (size_t i = 0; (c = mesa_calibration_at(i)) != NULL; i++) {
        const void *function = dlsym(mesa_torch.library, c->symbol);
        if (function != NULL)
            run(c, function);
    }
    mesa_torch.grad_mode_set(grad_mode);
}
