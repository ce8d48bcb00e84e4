/* Storages and held buffers: a hash table of records, each with a list of what was made of it.
 *
 * SPDX-License-Identifier: MIT */
#include "vault/registry.h"

#include "classify/layout.h"
#include "vault/arena.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* An insert that finds no memory must not end the process: uthash is told to leave the element out. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

struct mesa_storage {
    void *impl; /* key; weakly referenced by this record */
    size_t bytes;
    /* Held buffers, callers, and one for lingering. Whoever has one may add one without the lock. */
    _Atomic uint32_t references;
    uint32_t saves; /* hooks that stand for a tensor in it */
    struct mesa_charge charge;
    /* Written under the lock, read without: who comes too early for a change might as well have come
     * before it. */
    atomic_bool kept, outlived;
    _Atomic(struct mesa_held *) held;     /* those that can be found */
    struct mesa_storage *previous, *next; /* in the list of kept and outlived ones */
    UT_hash_handle hh;
};

static struct mesa_storage_calls calls;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mesa_storage *storages;  /* under lock */
static struct mesa_storage *lingering; /* kept or outlived: looked at by the sweep; under lock */
static _Atomic size_t save_count;

void mesa_registry_init(const struct mesa_storage_calls *given) {
    calls = *given;
}

void mesa_registry_storage_ref(struct mesa_storage *storage) {
    atomic_fetch_add_explicit(&storage->references, 1, memory_order_relaxed);
}

static bool is_set(const atomic_bool *flag) {
    return atomic_load_explicit(flag, memory_order_relaxed);
}

static bool has_held(const struct mesa_storage *storage) {
    return atomic_load_explicit(&storage->held, memory_order_relaxed) != NULL;
}

struct mesa_storage *mesa_registry_storage(void *impl, size_t bytes) {
    pthread_mutex_lock(&lock);
    struct mesa_storage *storage = NULL;
    HASH_FIND_PTR(storages, &impl, storage);
    if (storage == NULL) {
        storage = calloc(1, sizeof *storage);
        if (storage != NULL) {
            storage->impl = impl;
            storage->bytes = bytes;
            HASH_ADD_PTR(storages, impl, storage);
            if (storage->hh.tbl == NULL) { /* uthash found no memory */
                free(storage);
                storage = NULL;
            } else {
                calls.ref_weak(impl);
            }
        }
    }
    if (storage != NULL)
        storage->references++;
    pthread_mutex_unlock(&lock);
    return storage;
}

/* Returns the storage object to let go of after the lock, or NULL. Lock held. */
static void *unref_locked(struct mesa_storage *storage) {
    if (--storage->references != 0)
        return NULL;
    void *impl = storage->impl;
    HASH_DEL(storages, storage);
    free(storage);
    return impl;
}

static void let_go(void *impl) {
    if (impl != NULL)
        calls.unref_weak(impl);
}

void mesa_registry_storage_unref(struct mesa_storage *storage) {
    pthread_mutex_lock(&lock);
    void *impl = unref_locked(storage);
    pthread_mutex_unlock(&lock);
    let_go(impl);
}

void *mesa_registry_storage_impl(const struct mesa_storage *storage) {
    return storage->impl;
}

bool mesa_registry_is_kept(const struct mesa_storage *storage) {
    return is_set(&storage->kept) || is_set(&storage->outlived);
}

void mesa_registry_save_begin(struct mesa_storage *storage, void *record, uint64_t *ret_bytes) {
    uint64_t bytes = 0;
    pthread_mutex_lock(&lock);
    if (storage->saves++ == 0 && storage->charge.record == NULL) {
        storage->charge = (struct mesa_charge){record, storage->bytes};
        bytes = storage->bytes;
    }
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&save_count, 1);
    *ret_bytes = bytes;
}

static void linger_locked(struct mesa_storage *storage) {
    if (storage->previous != NULL || storage == lingering)
        return;
    storage->references++;
    storage->next = lingering;
    if (lingering != NULL)
        lingering->previous = storage;
    lingering = storage;
}

static void stop_lingering_locked(struct mesa_storage *storage) {
    if (storage->previous != NULL)
        storage->previous->next = storage->next;
    else
        lingering = storage->next;
    if (storage->next != NULL)
        storage->next->previous = storage->previous;
    storage->previous = storage->next = NULL;
}

void mesa_registry_save_end(struct mesa_storage *storage, struct mesa_charge *ret_charge,
                            bool *ret_outlived) {
    struct mesa_charge charge = {NULL, 0};
    bool outlived = false;
    pthread_mutex_lock(&lock);
    if (--storage->saves == 0) {
        outlived = calls.is_alive(storage->impl);
        if (outlived) {
            storage->outlived = true;
            linger_locked(storage);
        }
        if (!storage->kept) {
            charge = storage->charge;
            storage->charge = (struct mesa_charge){NULL, 0};
        }
    }
    pthread_mutex_unlock(&lock);
    atomic_fetch_sub(&save_count, 1);
    *ret_charge = charge;
    *ret_outlived = outlived;
}

void mesa_registry_keep(struct mesa_storage *storage, void *record, uint64_t *ret_bytes) {
    uint64_t bytes = 0;
    pthread_mutex_lock(&lock);
    storage->kept = true;
    if (storage->charge.record == NULL && record != NULL) {
        storage->charge = (struct mesa_charge){record, storage->bytes};
        bytes = storage->bytes;
    }
    linger_locked(storage);
    void *impl = unref_locked(storage);
    pthread_mutex_unlock(&lock);
    let_go(impl);
    *ret_bytes = bytes;
}

bool mesa_registry_sweep_is_due(void) {
    pthread_mutex_lock(&lock);
    bool due = lingering != NULL && !calls.is_alive(lingering->impl);
    pthread_mutex_unlock(&lock);
    return due;
}

#define SWEEP_BATCH 64

/* Up to SWEEP_BATCH dead ones are taken off the list. Returns how many. Lock held. */
static size_t sweep_locked(struct mesa_charge *charges, void **impls, size_t *kept) {
    size_t found = 0;
    *kept = 0;
    for (struct mesa_storage *storage = lingering, *next; storage != NULL; storage = next) {
        next = storage->next;
        if (calls.is_alive(storage->impl)) {
            *kept += storage->kept;
            continue;
        }
        if (found == SWEEP_BATCH)
            break;
        stop_lingering_locked(storage);
        charges[found] = storage->saves == 0 ? storage->charge : (struct mesa_charge){NULL, 0};
        if (storage->saves == 0)
            storage->charge = (struct mesa_charge){NULL, 0};
        storage->kept = storage->outlived = false;
        impls[found++] = unref_locked(storage);
    }
    return found;
}

size_t mesa_registry_sweep(void (*uncharge)(const struct mesa_charge *charge), size_t *ret_died) {
    struct mesa_charge charges[SWEEP_BATCH];
    void *impls[SWEEP_BATCH];
    size_t found, kept, died = 0;
    do {
        pthread_mutex_lock(&lock);
        found = sweep_locked(charges, impls, &kept);
        pthread_mutex_unlock(&lock);
        for (size_t i = 0; i < found; i++) {
            if (charges[i].record != NULL) {
                uncharge(&charges[i]);
                died++;
            }
            let_go(impls[i]);
        }
    } while (found == SWEEP_BATCH);
    *ret_died = died;
    return kept;
}

static bool same_elements(const struct mesa_held *held, const struct mesa_source *source,
                          uint64_t key, uint32_t version) {
    return held->key == key && held->version == version && mesa_source_equal(&held->source, source);
}

struct mesa_held *mesa_registry_find(struct mesa_storage *storage, const struct mesa_source *source,
                                     uint64_t key, uint32_t version, bool need_values,
                                     bool need_signs) {
    struct mesa_held *found = NULL;
    if (!has_held(storage))
        return NULL;
    pthread_mutex_lock(&lock);
    for (struct mesa_held *held = storage->held; held != NULL && found == NULL; held = held->next)
        if (same_elements(held, source, key, version) && (held->has_values || !need_values) &&
            (held->has_signs || !need_signs))
            found = held;
    if (found != NULL)
        found->references++;
    pthread_mutex_unlock(&lock);
    return found;
}

bool mesa_registry_wants_signs(struct mesa_storage *storage, const struct mesa_source *source,
                               uint64_t key, uint32_t version) {
    bool wants = false;
    if (!has_held(storage))
        return false;
    pthread_mutex_lock(&lock);
    for (struct mesa_held *held = storage->held; held != NULL && !wants; held = held->next)
        wants = held->has_signs && !held->has_values && same_elements(held, source, key, version);
    pthread_mutex_unlock(&lock);
    return wants;
}

struct mesa_held *mesa_held_create(struct mesa_storage *storage) {
    struct mesa_held *held = calloc(1, sizeof *held);
    if (held == NULL)
        return NULL;
    held->references = 1;
    held->storage = storage;
    mesa_registry_storage_ref(storage);
    return held;
}

static void unlink_locked(struct mesa_held *held) {
    struct mesa_held *before = held->storage->held;
    if (before == held) {
        held->storage->held = held->next;
        return;
    }
    while (before != NULL && before->next != held)
        before = before->next;
    if (before != NULL)
        before->next = held->next;
}

void mesa_registry_publish(struct mesa_held *held, void **ret_record, size_t *ret_bytes) {
    void *freed = NULL;
    *ret_record = NULL;
    *ret_bytes = 0;
    pthread_mutex_lock(&lock);
    if (held->has_values && held->has_signs)
        for (struct mesa_held *old = held->storage->held; old != NULL; old = old->next)
            if (!old->has_values && old->has_signs && old->readers == 0 &&
                same_elements(old, &held->source, held->key, held->version)) {
                unlink_locked(old);
                old->superseded_by = held;
                held->references++;
                freed = old->bytes;
                *ret_record = old->record;
                *ret_bytes = old->size;
                old->bytes = NULL;
                old->size = 0;
                break;
            }
    held->next = held->storage->held;
    held->storage->held = held;
    pthread_mutex_unlock(&lock);
    mesa_arena_free(freed);
}

void mesa_held_release(struct mesa_held *held, void **ret_record, size_t *ret_bytes) {
    *ret_record = NULL;
    *ret_bytes = 0;
    pthread_mutex_lock(&lock);
    if (--held->references != 0) {
        pthread_mutex_unlock(&lock);
        return;
    }
    unlink_locked(held);
    struct mesa_held *by = held->superseded_by;
    void *restored = held->restored;
    void *impl = unref_locked(held->storage);
    pthread_mutex_unlock(&lock);
    let_go(impl);
    let_go(restored);
    if (by != NULL) {
        mesa_held_release(by, ret_record, ret_bytes);
    } else {
        *ret_record = held->record;
        *ret_bytes = held->size;
    }
    mesa_arena_free(held->bytes);
    free(held);
}

struct mesa_held *mesa_held_read_begin(struct mesa_held *held) {
    pthread_mutex_lock(&lock);
    while (held->superseded_by != NULL)
        held = held->superseded_by;
    held->readers++;
    pthread_mutex_unlock(&lock);
    return held;
}

void mesa_held_read_end(struct mesa_held *reading) {
    pthread_mutex_lock(&lock);
    reading->readers--;
    pthread_mutex_unlock(&lock);
}

void *mesa_held_restored(struct mesa_held *held) {
    pthread_mutex_lock(&lock);
    void *storage = held->restored;
    if (storage != NULL)
        calls.ref_weak(storage);
    pthread_mutex_unlock(&lock);
    return storage;
}

void mesa_held_set_restored(struct mesa_held *held, void *storage) {
    calls.ref_weak(storage);
    pthread_mutex_lock(&lock);
    void *old = held->restored;
    held->restored = storage;
    pthread_mutex_unlock(&lock);
    let_go(old);
}

size_t mesa_registry_save_count(void) {
    return atomic_load_explicit(&save_count, memory_order_relaxed);
}

void mesa_registry_prefork(void) {
    pthread_mutex_lock(&lock);
}

void mesa_registry_postfork_parent(void) {
    pthread_mutex_unlock(&lock);
}

void mesa_registry_postfork_child(void) {
    pthread_mutex_unlock(&lock);
}
