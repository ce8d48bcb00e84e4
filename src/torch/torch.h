/* Everything that libmesa knows of libtorch, as one table that binding fills by dlsym and the
 * self-test proves: functions, and the few places inside libtorch's objects that no function shows.
 * Nothing outside src/torch may look into a tensor.
 *
 * Handles: a `struct mesa_tensor *` is an at::Tensor* (AtenTensorHandle), an object of one word that
 * points to a TensorImpl. "Owned" handles are freed with mesa_tensor_free().
 *
 * Threads: the table is written before `mesa_torch_state` becomes ARMED (release) and never after.
 * Calls into libtorch are made without any lock of ours held.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_TORCH_H
#define MESA_TORCH_TORCH_H

#include "classify/layout.h"
#include "dtype.h"
#include "status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mesa_tensor { /* at::Tensor */
    void *impl;      /* c10::TensorImpl */
};

struct mesa_array_ref { /* c10::ArrayRef<int64_t>, passed by value */
    const int64_t *data;
    size_t length;
};

/* libtorch's std::string, as far as reading one that a function returned. */
struct mesa_cxx_string {
    char *text;
    size_t length;
    char local[16];
};

/* How a view came to be (torch::autograd::CreationMeta): decides what is said when its base is written
 * to. */
enum mesa_view_kind {
    MESA_VIEW_PLAIN,
    MESA_VIEW_OF_FUNCTION, /* made inside an autograd.Function */
    MESA_VIEW_OF_MANY,     /* made by an op that returns several: split, unbind */
    MESA_VIEW_NO_GRAD,
    MESA_VIEW_INFERENCE,
    MESA_VIEW_KINDS,
};

struct mesa_torch {
    void *library; /* handle of libtorch_cpu.so */
    char version[32];

    /* torch::autograd::SavedVariable. `saved` is the object, `tensor` an at::Tensor*, `optional` a
     * std::optional<at::Tensor>*. */
    void (*saved_from_tensor)(void *saved, const struct mesa_tensor *tensor, bool is_output,
                              bool is_inplace_on_view);
    void (*saved_from_optional)(void *saved, const void *optional, bool is_output,
                                bool is_inplace_on_view);
    void (*saved_register_hooks)(void *saved, void **unique_hooks);
    void (*saved_reset_data)(void *saved);
    void (*saved_unpack)(struct mesa_tensor *ret, const void *saved, void *const *saved_for);

    /* torch::autograd::impl; never NULL where it is called. */
    void (*set_gradient_edge)(const struct mesa_tensor *, void *const *edge);

    /* at::TensorBase */
    bool (*tensor_is_leaf)(const struct mesa_tensor *);
    bool (*tensor_is_view)(const struct mesa_tensor *);
    const struct mesa_tensor *(*tensor_base)(const struct mesa_tensor *);
    const void *(*tensor_view_meta)(const struct mesa_tensor *); /* DifferentiableViewMeta or NULL */
    int64_t (*tensor_version)(const struct mesa_tensor *);
    int64_t (*tensor_output_nr)(const struct mesa_tensor *);
    void *const *(*tensor_grad_fn)(const struct mesa_tensor *); /* first word: Node* */
    bool (*impl_requires_grad)(const void *impl);
    void (*impl_set_requires_grad)(void *impl, bool);

    /* The C shim. */
    int32_t (*get_sizes)(struct mesa_tensor *, int64_t **);
    int32_t (*get_strides)(struct mesa_tensor *, int64_t **);
    int32_t (*get_dim)(struct mesa_tensor *, int64_t *);
    int32_t (*get_numel)(struct mesa_tensor *, int64_t *);
    int32_t (*get_dtype)(struct mesa_tensor *, int32_t *);
    int32_t (*get_storage_offset)(struct mesa_tensor *, int64_t *);
    int32_t (*get_storage_size)(struct mesa_tensor *, int64_t *); /* bytes */
    int32_t (*get_data_ptr)(struct mesa_tensor *, void **);
    /* at::detail::empty_strided_cpu: no dispatcher, so no mode of the program sees it. Throws. */
    void (*empty_strided_cpu)(struct mesa_tensor *ret, struct mesa_array_ref sizes,
                              struct mesa_array_ref strides, int8_t dtype, bool pin_memory);
    int32_t (*reinterpret_tensor)(struct mesa_tensor *, int64_t, const int64_t *, const int64_t *,
                                  int64_t, struct mesa_tensor **);
    int32_t (*new_handle)(struct mesa_tensor *, struct mesa_tensor **);
    int32_t (*delete_handle)(struct mesa_tensor *);

    /* State of the calling thread. */
    bool (*any_modes_set)(bool skip_infra);
    void *const *(*functorch_stack)(void); /* a std::vector: begin, end, ... */
    bool (*saved_hooks_allowed)(void);     /* false in disable_saved_tensors_hooks() */
    bool (*grad_mode_enabled)(void);
    void (*grad_mode_set)(bool);
    int (*thread_count)(void);
    bool (*in_parallel_region)(void);

    /* Optional: NULL in some versions. */
    int32_t (*parallel_for)(int64_t, int64_t, int64_t, void (*)(int64_t, int64_t, void *), void *);
    const bool *anomaly_enabled;
    void (*node_forward_op_name)(struct mesa_cxx_string *ret, const void *node); /* since 2.13 */

    void (*check_fail)(const char *function, const char *file, uint32_t line, const char *message)
        __attribute__((noreturn));
    void *(*cxx_new)(size_t);
    void (*cxx_delete)(void *);

    /* Operators used by the self-test: at::Tensor returned through sret. */
    void (*op_detach)(struct mesa_tensor *ret, const struct mesa_tensor *);
    void (*op_neg_view)(struct mesa_tensor *ret, const struct mesa_tensor *);
    struct mesa_tensor *(*op_zero)(struct mesa_tensor *);

    /* Facts proved by the self-test. */
    const void *tensor_impl_vtable, *storage_impl_vtable; /* what an object's first word must be */
    size_t impl_storage, impl_counter, impl_numel, impl_keys;
    uint64_t plain_keys; /* dispatch keys of a plain dense CPU tensor */
    size_t storage_data;
    size_t saved_hooks, saved_data; /* offsets of SavedVariable::hooks_ and data_ */
    size_t counter_version;
    size_t view_kind;      /* of a DifferentiableViewMeta's CreationMeta; 0 = not found */
    size_t node_name_slot; /* of torch::autograd::Node::name() in a Node's vtable; 0 = not found */
    int8_t dtype_of[64];   /* torch's ScalarType -> enum mesa_dtype, MESA_DTYPE_OTHER elsewhere */
    int32_t torch_dtype[MESA_DTYPE_COUNT];
};
extern struct mesa_torch mesa_torch;

enum mesa_torch_state {
    MESA_TORCH_UNSEEN,  /* no SavedVariable was constructed yet */
    MESA_TORCH_TESTING, /* one thread is binding; the others pass through */
    MESA_TORCH_ARMED,
    MESA_TORCH_ASIDE, /* broken or off: pass through for ever */
};
extern _Atomic int mesa_torch_state;

/* True in this thread while libmesa itself calls into libtorch: what is saved then is not taken. */
extern _Thread_local bool mesa_torch_inside;

/* Sets it for the rest of a block, and back however the block is left (an exception too). */
static inline bool mesa_inside_enter(void) {
    bool outer = mesa_torch_inside;
    mesa_torch_inside = true;
    return outer;
}
static inline void mesa_inside_leave(const bool *outer) {
    mesa_torch_inside = *outer;
}
#define MESA_INSIDE_SCOPE                                                                          \
    const bool mesa_outer __attribute__((cleanup(mesa_inside_leave), unused)) = mesa_inside_enter()

/* Finds libtorch and fills the function half of the table. MESA_BROKEN with one line in ret_why if
 * something is missing. */
enum mesa_status mesa_torch_bind(char *ret_why, size_t why_size);

/* Proves the facts on scratch tensors. The calling thread must be in a plain state
 * (mesa_torch_thread_is_plain). */
enum mesa_status mesa_torch_self_test(char *ret_why, size_t why_size);

/* No dispatch mode and no functorch layer is active in this thread. */
bool mesa_torch_thread_is_plain(void);

/* May a word whose meaning is not proved yet be followed? */
static inline bool mesa_looks_like_pointer(const void *p) {
    return (uintptr_t)p >= 0x10000 && ((uintptr_t)p & 7) == 0 && (uintptr_t)p >> 47 == 0;
}

/* ---- reading tensors ------------------------------------------------------------------------ */

static inline void *mesa_word_at(const void *object, size_t offset) {
    return *(void *const *)((const char *)object + offset);
}

static inline const void *mesa_impl_storage(const void *impl) {
    return mesa_word_at(impl, mesa_torch.impl_storage);
}

/* A plain dense CPU tensor with memory: the only kind that is ever taken. A few loads. */
static inline bool mesa_impl_is_plain(const void *impl) {
    if (mesa_word_at(impl, 0) != mesa_torch.tensor_impl_vtable)
        return false;
    if ((uint64_t)(uintptr_t)mesa_word_at(impl, mesa_torch.impl_keys) != mesa_torch.plain_keys)
        return false;
    const void *storage = mesa_impl_storage(impl);
    return storage != NULL && mesa_word_at(storage, 0) == mesa_torch.storage_impl_vtable &&
           mesa_word_at(storage, mesa_torch.storage_data) != NULL &&
           mesa_word_at(impl, mesa_torch.impl_counter) != NULL;
}

static inline size_t mesa_impl_elements(const void *impl) {
    return (size_t)(uintptr_t)mesa_word_at(impl, mesa_torch.impl_numel);
}

enum mesa_dtype mesa_tensor_dtype(const struct mesa_tensor *tensor);

/* Geometry of a plain tensor. MESA_DECLINED for more than MESA_MAX_DIMS dims. */
enum mesa_status mesa_tensor_view(const struct mesa_tensor *tensor, struct mesa_view *ret_view);

/* Bytes of the whole storage behind a plain tensor. */
size_t mesa_tensor_storage_bytes(const struct mesa_tensor *tensor);

/* Node that made the tensor, borrowed; NULL for leaves. */
static inline const void *mesa_tensor_grad_fn(const struct mesa_tensor *tensor) {
    return *mesa_torch.tensor_grad_fn(tensor);
}

/* Of a tensor that is a view (tensor_is_view); PLAIN if it cannot be told. */
enum mesa_view_kind mesa_view_kind(const struct mesa_tensor *view);

/* Class name of a node from its vtable symbol ("ExpBackward0"), "" if it has none. Any thread, no
 * GIL; at most `size` bytes with the NUL. Slow (dladdr). */
void mesa_node_class(const void *node, char *ret_name, size_t size);

/* node->name(): for a Python function its type's, which takes the GIL; "" if it cannot be asked. */
void mesa_node_own_name(const void *node, char *ret_name, size_t size);

/* What libtorch calls a node in messages: the forward op's name where it knows that, else node->name()
 * (which may take the GIL for Python functions). */
void mesa_node_name(const void *node, char *ret_name, size_t size);

/* ---- making tensors ------------------------------------------------------------------------- */

/* Puts an at::Tensor that a function returned by value into an owned handle. */
struct mesa_tensor *mesa_tensor_adopt(struct mesa_tensor by_value);

/* A fresh dense 1-D CPU tensor from torch's allocator. Owned. Throws the program's own out-of-memory
 * error. */
struct mesa_tensor *mesa_tensor_create(enum mesa_dtype dtype, size_t elements, void **ret_data);

/* A tensor of the given geometry over the storage of `base`. NULL if there is no memory. Owned. */
struct mesa_tensor *mesa_tensor_alias(struct mesa_tensor *base, int ndim, const int64_t *sizes,
                                      const int64_t *strides, int64_t offset);

void mesa_tensor_free(struct mesa_tensor *tensor); /* takes NULL */

/* Moves an owned handle's reference into *ret_tensor (an uninitialised at::Tensor) and frees the
 * handle's shell: how an at::Tensor is returned by value. */
void mesa_tensor_move_out(struct mesa_tensor *tensor, struct mesa_tensor *ret_tensor);

/* ---- storages: weak references -----------------------------------------------------------------
 * A weak reference keeps the StorageImpl object (not its bytes) from being freed, so its address
 * cannot come to mean another storage. */

void mesa_storage_ref_weak(void *storage);
void mesa_storage_unref_weak(void *storage);
bool mesa_storage_is_alive(const void *storage);

/* An owned tensor of one element over a storage that is only weakly held, or NULL if the storage is
 * dead, or if only its Python wrapper keeps it, or without memory. Alias it to give it a shape. */
struct mesa_tensor *mesa_storage_lock(void *storage, enum mesa_dtype dtype);

/* ---- version counters --------------------------------------------------------------------------
 * A counter outlives its tensors while referenced here, so a modification in place is noticed even
 * when the tensor itself is gone. */

void *mesa_counter_ref(const void *impl); /* the tensor's counter, with a reference of ours */
void mesa_counter_unref(void *counter);
static inline uint32_t mesa_counter_version(const void *counter) {
    return atomic_load_explicit(
        (_Atomic uint32_t *)(uintptr_t)((const char *)counter + mesa_torch.counter_version),
        memory_order_acquire);
}
/* Makes `tensor` count its versions on `counter` (a reference is added). */
void mesa_counter_share(struct mesa_tensor *tensor, void *counter);

/* Runs bodies in torch's own threads where that is possible, else in this one. */
void mesa_torch_parallel_for(size_t count, size_t grain,
                             void (*body)(void *context, size_t begin, size_t end), void *context);

#endif
