/* Unpacking: version check, then the cheapest tensor that has the values: the original if it is still
 * alive, a restored copy that is still alive, or a new one from the held bytes.
 *
 * Errors are raised with libtorch's own torchCheckFail, a C++ exception that passes through these
 * frames (-fexceptions): no lock is held and nothing is owned when it leaves.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/hook.h"

#include "report/ledger.h"
#include "torch/caller.h"
#include "torch/clock.h"
#include "torch/decision.h"
#include "torch/message.h"
#include "torch/pair.h"
#include "torch/saved.h"
#include "torch/verify.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* The original, if its storage is alive: exact and free. NULL otherwise. */
static struct mesa_tensor *alias_of_original(struct mesa_hook *hook) {
    void *storage = mesa_registry_storage_impl(hook->storage);
    if (!mesa_storage_is_alive(storage))
        return NULL;
    struct mesa_tensor *carrier = mesa_storage_lock(storage, hook->dtype);
    if (carrier == NULL)
        return NULL;
    struct mesa_tensor *alias = mesa_tensor_alias(carrier, hook->ndim, mesa_hook_sizes(hook),
                                                  mesa_hook_strides(hook), hook->offset);
    mesa_tensor_free(carrier);
    return alias;
}

static struct mesa_tensor *shape_of(struct mesa_hook *hook, struct mesa_tensor *dense) {
    struct mesa_tensor *shaped = mesa_tensor_alias(dense, hook->ndim, mesa_hook_sizes(hook),
                                                   mesa_hook_restored_strides(hook), 0);
    mesa_tensor_free(dense);
    return shaped;
}

/* A copy that an earlier unpack restored, if somebody still has it. */
static struct mesa_tensor *alias_of_restored(struct mesa_hook *hook, struct mesa_held *held) {
    void *storage = mesa_held_restored(held);
    if (storage == NULL)
        return NULL;
    struct mesa_tensor *carrier = mesa_storage_lock(storage, hook->dtype);
    mesa_storage_unref_weak(storage);
    return carrier == NULL ? NULL : shape_of(hook, carrier);
}

static struct mesa_tensor *decode(struct mesa_hook *hook, struct mesa_held *held) {
    void *elements;
    struct mesa_tensor *dense = mesa_tensor_create(hook->dtype, held->plan.elements, &elements);
    mesa_raise_if_damaged(hook, held);
    held->plan.codec->decode(&held->plan, held->bytes, mesa_torch_parallel_for, elements);
    mesa_held_set_restored(held, mesa_word_at(dense->impl, mesa_torch.impl_storage));
    return shape_of(hook, dense);
}

/* Ends the read when the block is left, by return or by an exception. */
static void end_read(struct mesa_held **held) {
    mesa_held_read_end(*held);
}

static struct mesa_tensor *restore(struct mesa_hook *hook) {
    struct mesa_held *held __attribute__((cleanup(end_read))) = mesa_held_read_begin(hook->held);
    struct mesa_tensor *restored = alias_of_restored(hook, held);
    return restored != NULL ? restored : decode(hook, held);
}

/* Only the geometry is held: the backward reads no value, so none is written, or only that it is 0. */
static struct mesa_tensor *tensor_of_shape(struct mesa_hook *hook) {
    int64_t span = 1;
    for (int i = 0; i < hook->ndim; i++)
        span += (mesa_hook_sizes(hook)[i] - 1) * mesa_hook_restored_strides(hook)[i];
    void *elements;
    struct mesa_tensor *tensor = mesa_tensor_create(hook->dtype, (size_t)span, &elements);
    if (hook->is_half)
        memset(elements, 0, (size_t)span * mesa_dtype_bytes(hook->dtype));
    return shape_of(hook, tensor);
}

static bool may_be_original(const struct mesa_hook *hook, bool for_program) {
    if (hook->carrier != NULL)
        return true;
    /* To verify is to decode: the original that is kept to compare with must not be handed out. */
    return hook->original == NULL && (!hook->is_half || for_program);
}

static struct mesa_tensor *tensor_of(struct mesa_hook *hook, bool for_program) {
    if (mesa_counter_version(hook->counter) != hook->version)
        mesa_raise_modified(hook);
    struct mesa_tensor *tensor =
        may_be_original(hook, for_program) ? alias_of_original(hook) : NULL;
    if (tensor != NULL)
        return tensor;
    if (!hook->gives_values && for_program)
        mesa_raise_not_held(hook);
    tensor = hook->held == NULL ? tensor_of_shape(hook) : restore(hook);
    if (tensor == NULL)
        mesa_raise_no_memory();
    if (hook->original != NULL)
        mesa_verify(hook, tensor);
    return tensor;
}

static struct mesa_tensor *unpack(struct mesa_tensor *ret, struct mesa_hook *hook) {
    uint64_t start = mesa_now_ns();
    bool for_program = !hook->gives_values && !hook->is_given_back && mesa_caller_is_program();
    if (for_program)
        atomic_store_explicit(&hook->decision->looked_at, true, memory_order_relaxed);
    MESA_INSIDE_SCOPE;
    struct mesa_tensor *tensor = tensor_of(hook, for_program);
    mesa_counter_share(tensor, hook->counter);
    mesa_tensor_move_out(tensor, ret);
    mesa_ledger_unpacked(hook->record, mesa_now_ns() - start);
    return ret;
}

static void pack(struct mesa_hook *hook, const struct mesa_tensor *tensor) {
    (void)hook;
    (void)tensor; /* everything was held before the hook was registered */
}

bool mesa_hook_carry(struct mesa_hook *hook) {
    hook->carrier = mesa_storage_lock(mesa_registry_storage_impl(hook->storage), hook->dtype);
    return hook->carrier != NULL;
}

void mesa_hook_carries_on(struct mesa_hook *hook) {
    size_t elements = 1;
    for (int i = 0; i < hook->ndim; i++)
        elements *= (size_t)mesa_hook_sizes(hook)[i];
    hook->carried_bytes = elements * mesa_dtype_bytes(hook->dtype);
    mesa_ledger_held(hook->record, hook->carried_bytes);
}

static void drop_carrier(struct mesa_hook *hook) {
    if (hook->carrier == NULL)
        return;
    mesa_tensor_free(hook->carrier);
    hook->carrier = NULL;
    mesa_ledger_released(hook->record, 0, hook->carried_bytes);
}

void mesa_hook_become_zeros(struct mesa_hook *hook) {
    hook->is_half = true;
    drop_carrier(hook);
}

void mesa_hook_free(struct mesa_hook *hook) {
    struct mesa_charge charge;
    bool outlived;
    void *record = NULL;
    size_t bytes = 0;
    mesa_pair_forget(hook);
    drop_carrier(hook);
    mesa_registry_save_end(hook->storage, &charge, &outlived);
    if (hook->held != NULL)
        mesa_held_release(hook->held, &record, &bytes);
    if (record != NULL)
        mesa_ledger_released(record, 0, bytes);
    if (charge.record != NULL)
        mesa_ledger_released(charge.record, charge.bytes, 0);
    if (hook->is_constant && hook->decision != NULL)
        atomic_fetch_add_explicit(outlived ? &hook->decision->constants_outlived
                                           : &hook->decision->constants_died,
                                  1, memory_order_relaxed);
    mesa_registry_storage_unref(hook->storage);
    mesa_counter_unref(hook->counter);
    mesa_tensor_free(hook->original);
    free(hook);
    mesa_saved_ended();
}

static void destroy(struct mesa_hook *hook) {
    (void)hook; /* complete-object destructor: libtorch only uses the deleting one */
}

/* For compiled autograd: an empty std::optional<std::pair<SafePyObject, SafePyObject>> says that
 * there are no Python hooks, and the tensor is unpacked as usual. */
static void *no_python_hooks(void *ret_optional, const struct mesa_hook *hook) {
    (void)hook;
    memset(ret_optional, 0, 2 * 2 * sizeof(void *) + 1);
    return ret_optional;
}

static const void *vtable[8]; /* offset to top, type information, then the virtual functions */

void mesa_hook_init(void) {
    vtable[1] = dlsym(mesa_torch.library, "_ZTIN5torch8autograd18SavedVariableHooksE");
    vtable[2] = (const void *)(uintptr_t)pack;
    vtable[3] = (const void *)(uintptr_t)unpack;
    vtable[4] = (const void *)(uintptr_t)destroy;
    vtable[5] = (const void *)(uintptr_t)mesa_hook_free;
    vtable[6] = (const void *)(uintptr_t)no_python_hooks;
}

struct mesa_hook *mesa_hook_create(int ndim) {
    struct mesa_hook *hook = calloc(1, sizeof *hook + 3 * (size_t)ndim * sizeof(int64_t));
    if (hook == NULL)
        return NULL;
    hook->vtable = vtable + 2;
    hook->ndim = ndim;
    return hook;
}

void mesa_hook_register(struct mesa_hook *hook, void *saved) {
    void *unique = hook;
    mesa_torch.saved_register_hooks(saved, &unique);
}

struct mesa_hook *mesa_hook_in(const void *saved) {
    struct mesa_hook *hook = mesa_word_at(saved, mesa_torch.saved_hooks);
    return hook != NULL && hook->vtable == vtable + 2 ? hook : NULL;
}

void mesa_hook_take_out(struct mesa_hook *hook, void *saved) {
    struct mesa_tensor tensor;
    /* The engine will not see the partner's original, so the program gets what compares with it as the
     * original did. */
    hook->is_given_back = hook->is_half;
    /* An input goes back as the variable that unpack makes of it, with its grad_fn: registering asks
     * for that again. An output's grad_fn is the node itself and was noted when it was saved. */
    if (hook->is_output) {
        MESA_INSIDE_SCOPE;
        struct mesa_tensor *handle = tensor_of(hook, true);
        mesa_counter_share(handle, hook->counter);
        mesa_tensor_move_out(handle, &tensor);
    } else {
        void *const saved_for[2] = {NULL, NULL};
        mesa_torch.saved_unpack(&tensor, saved, saved_for);
    }
    *(void **)((char *)saved + mesa_torch.saved_hooks) = NULL;
    *(void **)((char *)saved + mesa_torch.saved_data) = tensor.impl;
    mesa_hook_free(hook);
}
