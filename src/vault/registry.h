/* The registry: which storages have saved tensors in them, and which held buffers were made of them.
 * Sharing needs to know that an address still means the same tensor: a record holds a weak reference
 * on its storage, so the storage's address cannot come to mean another one while the record lives.
 *
 * Storages are opaque here; what can be asked of one comes in through mesa_registry_init().
 *
 * Threads: any thread, one lock inside, held for look-ups and counts only, never while elements are
 * encoded or libtorch is called (`is_alive` and `ref_weak` are single atomic loads and adds; objects
 * are let go after the lock).
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_VAULT_REGISTRY_H
#define MESA_VAULT_REGISTRY_H

#include "codec/codec.h"
#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mesa_storage_calls {
    void (*ref_weak)(void *storage);
    void (*unref_weak)(void *storage); /* may free the object: called without the lock */
    bool (*is_alive)(const void *storage);
};
void mesa_registry_init(const struct mesa_storage_calls *calls); /* init only */

struct mesa_held;

/* A storage that has, or had, saved tensors. */
struct mesa_storage;

/* A buffer that holds the elements of one source at one version. Fields are const after
 * mesa_registry_publish() unless said. */
struct mesa_held {
    struct mesa_storage *storage;
    struct mesa_source source; /* address and geometry at the time of the save */
    uint64_t key;              /* mesa_source_key(source) */
    uint32_t version;
    struct mesa_plan plan; /* plan.codec NULL: geometry only */
    bool has_values;       /* decode gives the values (perhaps rounded), not just a mask */
    bool has_signs;        /* zeros and signs come back exactly */
    void *bytes;           /* owned; in the arena; under the lock after a supersede */
    size_t size;
    uint64_t checksum; /* of bytes, where checksums are on */
    void *record;      /* the ledger's, for the caller */

    /* Under the registry's lock. */
    uint32_t references; /* hooks, and held buffers that were superseded by this one */
    uint32_t readers;
    struct mesa_held *next, *superseded_by;
    void *restored; /* storage of the last restored copy, weakly referenced; NULL = none */
};

/* How a save came to be charged: bytes that plain PyTorch holds because of saved tensors are counted
 * once for each storage, to the first save in it. */
struct mesa_charge {
    void *record; /* the ledger's; NULL = not charged */
    uint64_t bytes;
};

/* The record of a storage, made if needed, with a reference. NULL without memory. */
struct mesa_storage *mesa_registry_storage(void *impl, size_t bytes);
void mesa_registry_storage_ref(struct mesa_storage *storage);
void mesa_registry_storage_unref(struct mesa_storage *storage);
void *mesa_registry_storage_impl(const struct mesa_storage *storage);

/* True if holding a copy would be waste: the framework keeps this storage for another saved tensor,
 * or the storage was seen to outlive its saved tensors. */
bool mesa_registry_is_kept(const struct mesa_storage *storage);

/* A hook now stands for a tensor in the storage; the first one is charged: then *ret_bytes is the
 * storage's size, else 0. */
void mesa_registry_save_begin(struct mesa_storage *storage, void *record, uint64_t *ret_bytes);
/* ... and no longer does. If it was the last, *ret_charge is what is to be uncharged (else zeros) and
 * *ret_outlived tells whether the storage is still alive. */
void mesa_registry_save_end(struct mesa_storage *storage, struct mesa_charge *ret_charge,
                            bool *ret_outlived);

/* The framework keeps a tensor in this storage: charged until the storage dies. *ret_bytes as above
 * (0 if charged already). Takes over the caller's reference. */
void mesa_registry_keep(struct mesa_storage *storage, void *record, uint64_t *ret_bytes);

/* Has the storage that was kept last died? Then most of an earlier step's have, and a sweep is due. */
bool mesa_registry_sweep_is_due(void);

/* Looks which kept storages have died and gives their charges to `uncharge`, without the lock. Returns
 * how many are still kept; *ret_died is how many were charged and died. */
size_t mesa_registry_sweep(void (*uncharge)(const struct mesa_charge *charge), size_t *ret_died);

/* Finds a held buffer of the same elements at the same version that can serve: with values if
 * need_values, with exact zeros and signs if need_signs. A reference is added. NULL if none. */
struct mesa_held *mesa_registry_find(struct mesa_storage *storage, const struct mesa_source *source,
                                     uint64_t key, uint32_t version, bool need_values,
                                     bool need_signs);
/* True if a held buffer of the same elements and version has signs only: the values that are about to
 * be held should keep signs, to take its place. */
bool mesa_registry_wants_signs(struct mesa_storage *storage, const struct mesa_source *source,
                               uint64_t key, uint32_t version);

/* A zeroed held buffer (references = 1) of something in `storage`, on which it takes a reference;
 * fill it, then publish it or release it. NULL without memory. */
struct mesa_held *mesa_held_create(struct mesa_storage *storage);

/* Makes it findable. If it has values and signs, a held buffer of the same elements with signs only is
 * superseded: its bytes are freed; *ret_record and *ret_bytes tell whose and how many. */
void mesa_registry_publish(struct mesa_held *held, void **ret_record, size_t *ret_bytes);

/* Lets go of a reference; with the last one the bytes are freed, and *ret_record, *ret_bytes tell whose
 * and how many (else NULL and 0). */
void mesa_held_release(struct mesa_held *held, void **ret_record, size_t *ret_bytes);

/* The buffer to decode in `held`'s place (itself, or what superseded it), pinned until
 * mesa_held_read_end. */
struct mesa_held *mesa_held_read_begin(struct mesa_held *held);
void mesa_held_read_end(struct mesa_held *reading);

/* The storage of a restored copy that may still be alive, with a weak reference for the caller; NULL =
 * none. And remembers one. */
void *mesa_held_restored(struct mesa_held *held);
void mesa_held_set_restored(struct mesa_held *held, void *storage);

size_t mesa_registry_save_count(void); /* hooks that exist at this moment */

void mesa_registry_prefork(void);
void mesa_registry_postfork_parent(void);
void mesa_registry_postfork_child(void);

#endif
