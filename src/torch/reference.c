/* References on libtorch's own counted objects (StorageImpl, VersionCounter), by the rules of
 * c10/util/intrusive_ptr.h: one word behind the vtable holds the strong count in its low half and the
 * weak count in its high half; all strong references together own one weak one; bit 63 says that a
 * Python wrapper exists. Seen so in torch 2.8 to 2.14 (before 2.13 as two adjacent 32-bit atomics);
 * the self-test checks it.
 *
 * Why weak references, and not a look at every storage that dies: an object that is weakly held is
 * not freed, so its address cannot come to mean another storage, and the strong count tells whether
 * its bytes are still there. Nothing of libtorch has to be patched for that.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/reference.h"
#include "torch/torch.h"

#define STRONG_ONE    UINT64_C(1)
#define WEAK_ONE      (UINT64_C(1) << 32)
#define HAS_PY_OBJECT (UINT64_C(1) << 63)

static _Atomic uint64_t *counts_of(const void *object) {
    return (_Atomic uint64_t *)((uintptr_t)object + sizeof(void *));
}

static uint32_t strong_count(uint64_t counts) {
    return (uint32_t)counts;
}

static uint32_t weak_count(uint64_t counts) {
    return (uint32_t)((counts & ~HAS_PY_OBJECT) >> 32);
}

/* Virtual functions of an intrusive_ptr_target: complete destructor, deleting destructor, ... */
static void delete_object(void *object) {
    void (*deleting_destructor)(void *);
    *(void **)&deleting_destructor = mesa_word_at(mesa_word_at(object, 0), sizeof(void *));
    deleting_destructor(object);
}

bool mesa_reference_is_unique(const void *object) {
    return atomic_load(counts_of(object)) == (STRONG_ONE | WEAK_ONE);
}

uint32_t mesa_reference_strong(const void *object) {
    return strong_count(atomic_load_explicit(counts_of(object), memory_order_acquire));
}

void mesa_storage_ref_weak(void *storage) {
    atomic_fetch_add_explicit(counts_of(storage), WEAK_ONE, memory_order_relaxed);
}

void mesa_storage_unref_weak(void *storage) {
    uint64_t before = atomic_fetch_sub_explicit(counts_of(storage), WEAK_ONE, memory_order_acq_rel);
    if (weak_count(before) == 1)
        delete_object(storage);
}

bool mesa_storage_is_alive(const void *storage) {
    return mesa_reference_strong(storage) != 0;
}

/* One tensor of one element for each dtype, made at start-up and never freed: carriers are aliases
 * of it whose storage word is then replaced. */
static struct mesa_tensor *seeds[MESA_DTYPE_OTHER];

void mesa_storage_make_seeds(void) {
    for (int dtype = 0; dtype < MESA_DTYPE_OTHER; dtype++) {
        void *data;
        seeds[dtype] = mesa_tensor_create((enum mesa_dtype)dtype, 1, &data);
    }
}

/* Adds a strong reference unless there is none left. A storage that only its Python wrapper keeps
 * would need the GIL for that: taken as dead, which costs a copy and never a wrong value. */
static bool try_ref_strong(void *storage) {
    _Atomic uint64_t *counts = counts_of(storage);
    uint64_t seen = atomic_load_explicit(counts, memory_order_relaxed);
    do {
        if (strong_count(seen) == 0 || (strong_count(seen) == 1 && (seen & HAS_PY_OBJECT)))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(counts, &seen, seen + STRONG_ONE,
                                                    memory_order_acquire, memory_order_relaxed));
    return true;
}

struct mesa_tensor *mesa_storage_lock(void *storage, enum mesa_dtype dtype) {
    const int64_t one = 1;
    struct mesa_tensor *carrier = mesa_tensor_alias(seeds[dtype], 1, &one, &one, 0);
    if (carrier == NULL)
        return NULL;
    if (!try_ref_strong(storage)) {
        mesa_tensor_free(carrier);
        return NULL;
    }
    void **word = (void **)((char *)carrier->impl + mesa_torch.impl_storage);
    atomic_fetch_sub_explicit(counts_of(*word), STRONG_ONE, memory_order_release); /* the seed's:
                                                             never the last, the seed has one */
    *word = storage;
    return carrier;
}

void *mesa_counter_ref(const void *impl) {
    void *counter = mesa_word_at(impl, mesa_torch.impl_counter);
    atomic_fetch_add_explicit(counts_of(counter), STRONG_ONE, memory_order_relaxed);
    return counter;
}

void mesa_counter_unref(void *counter) {
    uint64_t before =
        atomic_fetch_sub_explicit(counts_of(counter), STRONG_ONE, memory_order_acq_rel);
    if (strong_count(before) == 1)
        delete_object(counter); /* nobody takes weak references on counters */
}

void mesa_counter_share(struct mesa_tensor *tensor, void *counter) {
    void **word = (void **)((char *)tensor->impl + mesa_torch.impl_counter);
    void *old = *word;
    if (old == counter)
        return;
    atomic_fetch_add_explicit(counts_of(counter), STRONG_ONE, memory_order_relaxed);
    *word = counter;
    if (old != NULL)
        mesa_counter_unref(old);
}
