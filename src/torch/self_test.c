/* Proves, on scratch tensors of this very process, every fact about libtorch that libmesa relies on:
 * where the few hidden fields are, how references are counted, that a hook object of ours is called
 * to pack and to unpack. One fact that does not hold, and libmesa steps aside.
 *
 * Offsets are searched for by their meaning and never assumed.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/reference.h"
#include "torch/scalars.h"
#include "torch/torch.h"

#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

#define IMPL_WORDS  24 /* a TensorImpl has no fewer */
#define SAVED_WORDS 64 /* a SavedVariable has about 14 */

/* The fact that failed, for the one line that the user sees. */
#define PROVE(condition, fact)                                                                     \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return fact;                                                                           \
    } while (0)

bool mesa_torch_thread_is_plain(void) {
    void *const *stack = mesa_torch.functorch_stack();
    return stack[0] == stack[1] && !mesa_torch.any_modes_set(false);
}

static struct mesa_tensor *scratch_of(enum mesa_dtype dtype, int64_t rows, int64_t columns) {
    const int64_t sizes[2] = {rows, columns}, strides[2] = {columns, 1};
    struct mesa_tensor tensor;
    mesa_torch.empty_strided_cpu(&tensor, (struct mesa_array_ref){sizes, 2},
                                 (struct mesa_array_ref){strides, 2},
                                 (int8_t)mesa_torch.torch_dtype[dtype], false);
    return mesa_tensor_adopt(tensor);
}

static struct mesa_tensor *scratch(int64_t rows, int64_t columns) {
    return scratch_of(MESA_F32, rows, columns);
}

/* Is this the vtable of that class? Several libraries have a copy of it, and which one is used depends
 * on the order of loading, so it is taken from an object and known by its symbol. */
static bool is_vtable_of(const void *vtable, const char *symbol) {
    Dl_info info;
    return dladdr(vtable, &info) != 0 && info.dli_sname != NULL &&
           strcmp(info.dli_sname, symbol) == 0;
}

static const char *prove_storage(struct mesa_tensor *a) {
    mesa_torch.tensor_impl_vtable = mesa_word_at(a->impl, 0);
    PROVE(is_vtable_of(mesa_torch.tensor_impl_vtable, "_ZTVN3c1010TensorImplE"),
          "a new tensor is not a plain TensorImpl");
    size_t found = 0;
    for (size_t word = 2; word <= 4 && found == 0; word++) {
        void *p = mesa_word_at(a->impl, word * sizeof(void *));
        if (mesa_looks_like_pointer(p) &&
            is_vtable_of(mesa_word_at(p, 0), "_ZTVN3c1011StorageImplE")) {
            mesa_torch.storage_impl_vtable = mesa_word_at(p, 0);
            found = word * sizeof(void *);
        }
    }
    PROVE(found != 0, "a TensorImpl does not show its storage");
    mesa_torch.impl_storage = found;

    void *data = NULL;
    const void *storage = mesa_impl_storage(a->impl);
    PROVE(mesa_reference_is_unique(storage), "the counts of a storage are not where they were");
    PROVE(mesa_torch.get_data_ptr(a, &data) == 0 && data != NULL, "a new tensor has no data");
    found = 0;
    for (size_t word = 2; word <= 4 && found == 0; word++)
        if (mesa_word_at(storage, word * sizeof(void *)) == data)
            found = word * sizeof(void *);
    PROVE(found != 0, "a StorageImpl does not show its data");
    mesa_torch.storage_data = found;
    return NULL;
}

static const char *prove_numel(struct mesa_tensor *a, struct mesa_tensor *b) {
    int64_t elements_a = 0, elements_b = 0;
    PROVE(mesa_torch.get_numel(a, &elements_a) == 0 && mesa_torch.get_numel(b, &elements_b) == 0,
          "numel cannot be asked");
    for (size_t word = 4; word < IMPL_WORDS; word++) {
        mesa_torch.impl_numel = word * sizeof(void *);
        if (mesa_impl_elements(a->impl) == (size_t)elements_a &&
            mesa_impl_elements(b->impl) == (size_t)elements_b)
            return NULL;
    }
    return "a TensorImpl does not show its number of elements";
}

/* A detached alias shares the version counter, and zero_() counts one up. */
static const char *prove_counter(struct mesa_tensor *a, struct mesa_tensor *b) {
    struct mesa_tensor by_value;
    mesa_torch.op_detach(&by_value, a);
    struct mesa_tensor *alias = mesa_tensor_adopt(by_value);
    mesa_torch.impl_counter = 0;
    for (size_t word = 3; word < IMPL_WORDS && mesa_torch.impl_counter == 0; word++) {
        size_t offset = word * sizeof(void *);
        void *p = mesa_word_at(a->impl, offset);
        if (offset != mesa_torch.impl_storage && mesa_looks_like_pointer(p) &&
            mesa_word_at(alias->impl, offset) == p && mesa_word_at(b->impl, offset) != p &&
            mesa_reference_strong(p) == 2)
            mesa_torch.impl_counter = offset;
    }
    mesa_tensor_free(alias);
    PROVE(mesa_torch.impl_counter != 0, "a TensorImpl does not show its version counter");

    const char *counter = mesa_word_at(a->impl, mesa_torch.impl_counter);
    PROVE(mesa_reference_is_unique(counter), "the counts of a version counter are not as expected");
    uint32_t before[2]; /* what an object of 24 bytes has behind its counts */
    memcpy(before, counter + 16, sizeof before);
    mesa_torch.op_zero(a);
    PROVE(mesa_torch.tensor_version(a) == 1, "zero_() does not count as a modification");
    for (size_t i = 0; i < 2; i++) {
        mesa_torch.counter_version = 16 + i * sizeof(uint32_t);
        if (before[i] == 0 && mesa_counter_version(counter) == 1) {
            mesa_torch.op_zero(a);
            PROVE(mesa_counter_version(counter) == 2, "a version counter counts oddly");
            return NULL;
        }
    }
    return "a version counter does not show its version";
}

/* A negated view differs from its base in one bit of the dispatch keys. By chance it does in the word of
 * dtype and flags as well, whose spare bits hold whatever was in that memory before; but there integers
 * differ from floats, and in their keys they do not. */
static const char *prove_keys(struct mesa_tensor *a, struct mesa_tensor *b) {
    struct mesa_tensor by_value;
    mesa_torch.op_neg_view(&by_value, a);
    struct mesa_tensor *negated = mesa_tensor_adopt(by_value);
    struct mesa_tensor *integers = scratch_of(MESA_I64, 2, 3);
    size_t found = 0;
    for (size_t word = 4; word < IMPL_WORDS && found == 0; word++) {
        size_t offset = word * sizeof(void *);
        uint64_t keys = (uint64_t)(uintptr_t)mesa_word_at(a->impl, offset);
        uint64_t with = (uint64_t)(uintptr_t)mesa_word_at(negated->impl, offset);
        uint64_t other = (uint64_t)(uintptr_t)mesa_word_at(b->impl, offset);
        uint64_t of_integers = (uint64_t)(uintptr_t)mesa_word_at(integers->impl, offset);
        if (keys == other && keys == of_integers && __builtin_popcountll(keys) >= 2 &&
            __builtin_popcountll(keys ^ with) == 1 && (with & ~keys) != 0)
            found = offset;
    }
    mesa_tensor_free(negated);
    mesa_tensor_free(integers);
    PROVE(found != 0, "a TensorImpl does not show its dispatch keys");
    mesa_torch.impl_keys = found;
    mesa_torch.plain_keys = (uint64_t)(uintptr_t)mesa_word_at(a->impl, found);
    PROVE(mesa_impl_is_plain(a->impl) && mesa_impl_is_plain(b->impl),
          "a new tensor does not look plain");
    return NULL;
}

static void find_node_name(void) {
    const void *name = dlsym(mesa_torch.library, "_ZNK5torch8autograd4Node4nameB5cxx11Ev");
    const char *vtable = dlsym(mesa_torch.library, "_ZTVN5torch8autograd13UndefinedGradE");
    for (size_t slot = 0; name != NULL && vtable != NULL && slot < 8; slot++)
        if (mesa_word_at(vtable, (slot + 2) * sizeof(void *)) == name)
            mesa_torch.node_name_slot = slot;
}

/* A view of a leaf that wants gradients, made with grad mode on or off. Owned. */
static struct mesa_tensor *view_of_leaf(const struct mesa_tensor *leaf, bool grad_mode) {
    struct mesa_tensor by_value;
    mesa_torch.grad_mode_set(grad_mode);
    mesa_torch.op_neg_view(&by_value, leaf);
    mesa_torch.grad_mode_set(false);
    return mesa_tensor_adopt(by_value);
}

/* The only byte that tells views made with grad mode on from those made without, by these very numbers.
 * It is for the text of an error only: not found, every view counts as plain. */
static void find_view_kind(void) {
    if (mesa_torch.tensor_view_meta == NULL)
        return;
    struct mesa_tensor *leaf = scratch(2, 3), *views[4];
    mesa_torch.impl_set_requires_grad(leaf->impl, true);
    const unsigned char *metas[4];
    size_t end = SIZE_MAX, found = 0, count = 0;
    for (int i = 0; i < 4; i++) {
        views[i] = view_of_leaf(leaf, i % 2 == 0);
        metas[i] = mesa_torch.tensor_view_meta(views[i]);
        size_t size = metas[i] == NULL ? 0 : malloc_usable_size((void *)(uintptr_t)metas[i]);
        end = size < end ? size : end;
    }
    for (size_t at = sizeof(void *); at < end; at++)
        if (metas[0][at] == MESA_VIEW_PLAIN && metas[1][at] == MESA_VIEW_NO_GRAD &&
            metas[2][at] == MESA_VIEW_PLAIN && metas[3][at] == MESA_VIEW_NO_GRAD) {
            found = at;
            count++;
        }
    mesa_torch.view_kind = count == 1 ? found : 0;
    for (int i = 0; i < 4; i++)
        mesa_tensor_free(views[i]);
    mesa_tensor_free(leaf);
}

/* A hook object that only remembers what was done to it. */
struct probe_hook {
    const void *const *vtable;
    const void *storage; /* of the tensor that was packed */
    struct mesa_tensor *answer;
    int packed, unpacked, deleted;
};

static void probe_pack(struct probe_hook *hook, const struct mesa_tensor *tensor) {
    hook->packed++;
    hook->storage = mesa_impl_storage(tensor->impl);
}

static struct mesa_tensor *probe_unpack(struct mesa_tensor *ret, struct probe_hook *hook) {
    hook->unpacked++;
    mesa_tensor_move_out(hook->answer, ret);
    return ret;
}

static void probe_destroy(struct probe_hook *hook) {
    (void)hook;
}

static void probe_delete(struct probe_hook *hook) {
    hook->deleted++;
}

static const char *prove_hooks(struct mesa_tensor *a) {
    static const void *vtable[7];
    vtable[2] = (const void *)(uintptr_t)probe_pack;
    vtable[3] = (const void *)(uintptr_t)probe_unpack;
    vtable[4] = (const void *)(uintptr_t)probe_destroy;
    vtable[5] = (const void *)(uintptr_t)probe_delete;
    struct probe_hook hook = {.vtable = vtable + 2, .answer = scratch(2, 3)};
    const void *answer = hook.answer->impl;

    _Alignas(16) void *saved[SAVED_WORDS] = {NULL};
    mesa_torch.saved_from_tensor(saved, a, false, false);
    size_t data = 0;
    while (data < SAVED_WORDS && saved[data] != a->impl)
        data++;
    PROVE(data < SAVED_WORDS, "a SavedVariable does not show its tensor");
    mesa_torch.saved_data = data * sizeof(void *);
    void *unique = &hook;
    mesa_torch.saved_register_hooks(saved, &unique);
    PROVE(unique == NULL && hook.packed == 1, "a hook object was not asked to pack");
    PROVE(hook.storage == mesa_impl_storage(a->impl), "a hook object got another tensor");
    mesa_torch.saved_hooks = 0;
    for (size_t word = 1; word < SAVED_WORDS; word++)
        if (saved[word] == &hook)
            mesa_torch.saved_hooks = word * sizeof(void *);
    PROVE(mesa_torch.saved_hooks != 0, "a SavedVariable does not show its hooks");
    void *const saved_for[2] = {NULL, NULL};
    struct mesa_tensor unpacked;
    mesa_torch.saved_unpack(&unpacked, saved, saved_for);
    PROVE(hook.unpacked == 1 && mesa_impl_storage(unpacked.impl) == mesa_impl_storage(answer),
          "a hook object's tensor was not the one unpacked");
    mesa_tensor_free(mesa_tensor_adopt(unpacked));
    PROVE(saved[data] != a->impl, "a SavedVariable keeps its tensor beside its hooks");
    mesa_torch.saved_reset_data(saved);
    PROVE(hook.deleted == 1, "a hook object was not deleted with its SavedVariable");
    return NULL;
}

/* Weak references on storages and strong ones on counters behave as reference.c says. */
static const char *prove_references(void) {
    struct mesa_tensor *tensor = scratch(4, 4);
    void *storage = mesa_word_at(tensor->impl, mesa_torch.impl_storage);
    const void *data = mesa_word_at(storage, mesa_torch.storage_data);
    mesa_storage_ref_weak(storage);
    struct mesa_tensor *locked = mesa_storage_lock(storage, MESA_F32);
    PROVE(locked != NULL && mesa_impl_storage(locked->impl) == storage &&
              mesa_reference_strong(storage) == 2,
          "a storage cannot be locked");
    void *counter = mesa_counter_ref(tensor->impl);
    mesa_tensor_free(tensor);
    PROVE(mesa_storage_is_alive(storage) && mesa_word_at(storage, mesa_torch.storage_data) == data,
          "a locked storage died");
    mesa_tensor_free(locked);
    PROVE(!mesa_storage_is_alive(storage), "a storage outlived its last tensor");
    PROVE(mesa_storage_lock(storage, MESA_F32) == NULL, "a dead storage was locked");
    mesa_storage_unref_weak(storage);
    PROVE(mesa_counter_version(counter) == 0, "a version counter died with its tensor");
    mesa_counter_unref(counter);
    return NULL;
}

/* The only element of a float tensor. */
static float *number_in(const struct mesa_tensor *tensor) {
    return mesa_word_at(mesa_impl_storage(tensor->impl), mesa_torch.storage_data);
}

/* x^2 with the exponent as a double and as an integer: a Scalar is laid out as scalars.h says. */
static const char *prove_scalars(void) {
    void *(*power)(struct mesa_tensor *, const struct mesa_tensor *, const struct mesa_scalar *);
    *(void **)&power = dlsym(mesa_torch.library,
                             "_ZN2at4_ops17pow_Tensor_Scalar4callERKNS_6TensorERKN3c106ScalarE");
    PROVE(power != NULL, "pow is not where it was");
    struct mesa_scalar two[2] = {{.tag = 0, .value = {.real = 2}},
                                 {.tag = 1, .value = {.integer = 2}}};
    for (int i = 0; i < 2; i++) {
        struct mesa_tensor *x = scratch(1, 1), y;
        *number_in(x) = 3;
        power(&y, x, &two[i]);
        float square = *number_in(&y);
        mesa_tensor_free(mesa_tensor_adopt(y));
        mesa_tensor_free(x);
        PROVE(square == 9, "a Scalar is not laid out as expected");
    }
    return NULL;
}

/* clamp(max=2) of 3, with one of the optional bounds absent. */
static const char *prove_optional_scalars(void) {
    void *(*clamp)(struct mesa_tensor *, const struct mesa_tensor *,
                   const struct mesa_optional_scalar *, const struct mesa_optional_scalar *);
    *(void **)&clamp = dlsym(mesa_torch.library,
                             "_ZN2at4_ops5clamp4callERKNS_6TensorERKSt8optionalIN3c106ScalarEESA_");
    PROVE(clamp != NULL, "clamp is not where it was");
    struct mesa_optional_scalar none = {.engaged = false};
    struct mesa_optional_scalar two = {.scalar = {.value = {.real = 2}}, .engaged = true};
    struct mesa_tensor *x = scratch(1, 1), y;
    *number_in(x) = 3;
    clamp(&y, x, &none, &two);
    float clamped = *number_in(&y);
    mesa_tensor_free(mesa_tensor_adopt(y));
    mesa_tensor_free(x);
    PROVE(clamped == 2, "an optional Scalar is not laid out as expected");
    return NULL;
}

static const char *prove_all(struct mesa_tensor *a, struct mesa_tensor *b) {
    const char *broken = prove_storage(a);
    if (broken == NULL)
        broken = prove_numel(a, b);
    if (broken == NULL)
        broken = prove_counter(a, b);
    if (broken == NULL)
        broken = prove_keys(a, b);
    if (broken == NULL)
        broken = prove_hooks(a);
    if (broken == NULL) {
        mesa_storage_make_seeds();
        broken = prove_references();
    }
    if (broken == NULL)
        broken = prove_scalars();
    if (broken == NULL)
        broken = prove_optional_scalars();
    return broken;
}

enum mesa_status mesa_torch_self_test(char *ret_why, size_t why_size) {
    bool grad_mode = mesa_torch.grad_mode_enabled();
    mesa_torch.grad_mode_set(false);
    struct mesa_tensor *a = scratch(2, 3), *b = scratch(5, 7);
    find_node_name();
    const char *broken = prove_all(a, b);
    mesa_tensor_free(a);
    mesa_tensor_free(b);
    if (broken == NULL)
        find_view_kind();
    mesa_torch.grad_mode_set(grad_mode);
    if (broken == NULL)
        return MESA_OK;
    snprintf(ret_why, why_size, "%s", broken);
    return MESA_BROKEN;
}
