/* Entry points of operators whose arguments decide what may be held of their saved tensors: each notes
 * the numbers, or the two tensors, and goes on to the original. See torch/scalars.h and torch/pair.h.
 *
 * SPDX-License-Identifier: MIT */
#include "classify/loader.h"
#include "preload/export.h"
#include "torch/hook.h"
#include "torch/pair.h"
#include "torch/scalars.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

/* A C++ function that returns an at::Tensor gets a pointer to room for it before its own arguments, and
 * returns that pointer (x86-64 psABI). */
typedef void *call_with_one(void *ret, const void *self, const struct mesa_scalar *);
typedef void *call_with_two(void *ret, const void *self, const struct mesa_scalar *,
                            const struct mesa_scalar *);
typedef void *call_with_optionals(void *ret, const void *self, const struct mesa_optional_scalar *,
                                  const struct mesa_optional_scalar *);
typedef void *call_with_pair(void *ret, const struct mesa_tensor *self,
                             const struct mesa_tensor *other);
typedef void *inplace_with_one(void *self, const struct mesa_scalar *);
typedef void *inplace_with_two(void *self, const struct mesa_scalar *, const struct mesa_scalar *);
typedef void *inplace_with_optionals(void *self, const struct mesa_optional_scalar *,
                                     const struct mesa_optional_scalar *);

/* X(name, table name, shape, symbol) */
#define SCALAR_OPS(X)                                                                              \
    X(power, "pow", call_with_one,                                                                 \
      "_ZN2at4_ops17pow_Tensor_Scalar4callERKNS_6TensorERKN3c106ScalarE")                          \
    X(hardtanh, "hardtanh", call_with_two,                                                         \
      "_ZN2at4_ops8hardtanh4callERKNS_6TensorERKN3c106ScalarES8_")                                 \
    X(threshold, "threshold", call_with_two,                                                       \
      "_ZN2at4_ops9threshold4callERKNS_6TensorERKN3c106ScalarES8_")                                \
    X(hardshrink, "hardshrink", call_with_one,                                                     \
      "_ZN2at4_ops10hardshrink4callERKNS_6TensorERKN3c106ScalarE")                                 \
    X(softshrink, "softshrink", call_with_one,                                                     \
      "_ZN2at4_ops10softshrink4callERKNS_6TensorERKN3c106ScalarE")                                 \
    X(clamp, "clamp", call_with_optionals,                                                         \
      "_ZN2at4_ops5clamp4callERKNS_6TensorERKSt8optionalIN3c106ScalarEESA_")                       \
    X(clamp_min, "clamp_min", call_with_one,                                                       \
      "_ZN2at4_ops9clamp_min4callERKNS_6TensorERKN3c106ScalarE")                                   \
    X(clamp_max, "clamp_max", call_with_one,                                                       \
      "_ZN2at4_ops9clamp_max4callERKNS_6TensorERKN3c106ScalarE")                                   \
    X(clamp_inplace, "clamp", inplace_with_optionals,                                              \
      "_ZN2at4_ops6clamp_4callERNS_6TensorERKSt8optionalIN3c106ScalarEES9_")                       \
    X(clamp_min_inplace, "clamp_min", inplace_with_one,                                            \
      "_ZN2at4_ops10clamp_min_4callERNS_6TensorERKN3c106ScalarE")                                  \
    X(clamp_max_inplace, "clamp_max", inplace_with_one,                                            \
      "_ZN2at4_ops10clamp_max_4callERNS_6TensorERKN3c106ScalarE")                                  \
    X(hardtanh_inplace, "hardtanh", inplace_with_two,                                              \
      "_ZN2at4_ops9hardtanh_4callERNS_6TensorERKN3c106ScalarES7_")                                 \
    X(threshold_inplace, "threshold", inplace_with_two,                                            \
      "_ZN2at4_ops10threshold_4callERNS_6TensorERKN3c106ScalarES7_")                               \
    X(power_inplace, "pow", inplace_with_one,                                                      \
      "_ZN2at4_ops11pow__Scalar4callERNS_6TensorERKN3c106ScalarE")

#define PAIR_OPS(X)                                                                                \
    X(maximum, "maximum", call_with_pair, "_ZN2at4_ops7maximum4callERKNS_6TensorES4_")             \
    X(minimum, "minimum", call_with_pair, "_ZN2at4_ops7minimum4callERKNS_6TensorES4_")             \
    X(fmax, "fmax", call_with_pair, "_ZN2at4_ops4fmax4callERKNS_6TensorES4_")                      \
    X(fmin, "fmin", call_with_pair, "_ZN2at4_ops4fmin4callERKNS_6TensorES4_")

#define ORIGINAL(name, op, shape, symbol) static shape *_Atomic original_##name;
SCALAR_OPS(ORIGINAL)
PAIR_OPS(ORIGINAL)

static atomic_bool found;

/* The same for whoever comes first. No pthread_once: the constructor of a library that is being loaded
 * may call an operator, and holds the linker's lock that another first caller waits for. */
static void find_originals(void) {
    mesa_loader_begin();
    void *library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    if (library == NULL)
        abort(); /* called from a libtorch that is not there: nothing could be returned */
#define FIND(name, op, shape, symbol)                                                              \
    atomic_store_explicit(&original_##name, (shape *)(uintptr_t)dlsym(library, symbol),            \
                          memory_order_relaxed);
    SCALAR_OPS(FIND)
    PAIR_OPS(FIND)
    mesa_loader_end();
    atomic_store_explicit(&found, true, memory_order_release);
}

static void need_originals(void) {
    if (!atomic_load_explicit(&found, memory_order_acquire))
        find_originals();
}

static struct mesa_scalar_call enter(const char *op, const struct mesa_scalar *first,
                                     const struct mesa_scalar *second) {
    need_originals();
    struct mesa_scalar_call outer = mesa_scalar_call;
    mesa_scalar_call = (struct mesa_scalar_call){op, first, second};
    return outer;
}

static void leave(const struct mesa_scalar_call *outer) {
    mesa_scalar_call = *outer;
}

static struct mesa_pair enter_pair(const char *op, const struct mesa_tensor *self,
                                   const struct mesa_tensor *other) {
    need_originals();
    struct mesa_pair outer = mesa_pair;
    mesa_pair = (struct mesa_pair){op, self, other, NULL};
    return outer;
}

static void leave_pair(const struct mesa_pair *outer) {
    if (mesa_pair.other_hook != NULL)
        mesa_hook_carries_on(mesa_pair.other_hook);
    mesa_pair = *outer;
}

/* Back to the outer call however the op is left. */
#define NOTE(op, first, second)                                                                    \
    const struct mesa_scalar_call outer __attribute__((cleanup(leave))) =                          \
        enter(op, first, second);                                                                  \
    (void)outer

#define ORIGINAL_OF(name) atomic_load_explicit(&original_##name, memory_order_relaxed)

#define DECLARE(name, op, shape, symbol) EXPORT shape mesa_op_##name __asm__(symbol);
SCALAR_OPS(DECLARE)
PAIR_OPS(DECLARE)

#define DEFINE_CALL_WITH_ONE(name, op)                                                             \
    void *mesa_op_##name(void *ret, const void *self, const struct mesa_scalar *a) {               \
        NOTE(op, a, NULL);                                                                         \
        return ORIGINAL_OF(name)(ret, self, a);                                                    \
    }
#define DEFINE_CALL_WITH_TWO(name, op)                                                             \
    void *mesa_op_##name(void *ret, const void *self, const struct mesa_scalar *a,                 \
                         const struct mesa_scalar *b) {                                            \
        NOTE(op, a, b);                                                                            \
        return ORIGINAL_OF(name)(ret, self, a, b);                                                 \
    }
#define DEFINE_CALL_WITH_OPTIONALS(name, op)                                                       \
    void *mesa_op_##name(void *ret, const void *self, const struct mesa_optional_scalar *a,        \
                         const struct mesa_optional_scalar *b) {                                   \
        NOTE(op, mesa_scalar_of_optional(a), mesa_scalar_of_optional(b));                          \
        return ORIGINAL_OF(name)(ret, self, a, b);                                                 \
    }
#define DEFINE_CALL_WITH_PAIR(name, op)                                                            \
    void *mesa_op_##name(void *ret, const struct mesa_tensor *self,                                \
                         const struct mesa_tensor *other) {                                        \
        const struct mesa_pair outer __attribute__((cleanup(leave_pair), unused)) =                \
            enter_pair(op, self, other);                                                           \
        return ORIGINAL_OF(name)(ret, self, other);                                                \
    }
#define DEFINE_INPLACE_WITH_ONE(name, op)                                                          \
    void *mesa_op_##name(void *self, const struct mesa_scalar *a) {                                \
        NOTE(op, a, NULL);                                                                         \
        return ORIGINAL_OF(name)(self, a);                                                         \
    }
#define DEFINE_INPLACE_WITH_TWO(name, op)                                                          \
    void *mesa_op_##name(void *self, const struct mesa_scalar *a, const struct mesa_scalar *b) {   \
        NOTE(op, a, b);                                                                            \
        return ORIGINAL_OF(name)(self, a, b);                                                      \
    }
#define DEFINE_INPLACE_WITH_OPTIONALS(name, op)                                                    \
    void *mesa_op_##name(void *self, const struct mesa_optional_scalar *a,                         \
                         const struct mesa_optional_scalar *b) {                                   \
        NOTE(op, mesa_scalar_of_optional(a), mesa_scalar_of_optional(b));                          \
        return ORIGINAL_OF(name)(self, a, b);                                                      \
    }

DEFINE_CALL_WITH_ONE(power, "pow")
DEFINE_CALL_WITH_TWO(hardtanh, "hardtanh")
DEFINE_CALL_WITH_TWO(threshold, "threshold")
DEFINE_CALL_WITH_ONE(hardshrink, "hardshrink")
DEFINE_CALL_WITH_ONE(softshrink, "softshrink")
DEFINE_CALL_WITH_OPTIONALS(clamp, "clamp")
DEFINE_CALL_WITH_ONE(clamp_min, "clamp_min")
DEFINE_CALL_WITH_ONE(clamp_max, "clamp_max")
DEFINE_INPLACE_WITH_OPTIONALS(clamp_inplace, "clamp")
DEFINE_INPLACE_WITH_ONE(clamp_min_inplace, "clamp_min")
DEFINE_INPLACE_WITH_ONE(clamp_max_inplace, "clamp_max")
DEFINE_INPLACE_WITH_TWO(hardtanh_inplace, "hardtanh")
DEFINE_INPLACE_WITH_TWO(threshold_inplace, "threshold")
DEFINE_INPLACE_WITH_ONE(power_inplace, "pow")
DEFINE_CALL_WITH_PAIR(maximum, "maximum")
DEFINE_CALL_WITH_PAIR(minimum, "minimum")
DEFINE_CALL_WITH_PAIR(fmax, "fmax")
DEFINE_CALL_WITH_PAIR(fmin, "fmin")
