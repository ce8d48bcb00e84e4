/* The hook object that stands in a SavedVariable for a tensor that libmesa holds: a plain C struct
 * with a hand-written C++ vtable, so that libtorch can call it to unpack and to delete it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_HOOK_H
#define MESA_TORCH_HOOK_H

#include "report/ledger.h"
#include "torch/torch.h"
#include "vault/registry.h"

#include <stdbool.h>
#include <stdint.h>

struct mesa_hook {
    const void *const *vtable;    /* must be first */
    struct mesa_storage *storage; /* shared (ref): of the tensor that was saved */
    struct mesa_held *held;       /* shared (ref); NULL: only the geometry is held */
    void *counter;                /* shared (ref): version counter of the tensor */
    uint32_t version;             /* at the time of the save */
    const void *node; /* borrowed: the SavedVariable or its owner keeps it; for messages */
    int64_t output_nr; /* 0 for an input, whichever it is, unless it is a view of some special kind */
    bool is_output;
    bool is_view;      /* an input that is a view of something with history */
    enum mesa_view_kind view_kind; /* ... and how it was made */
    bool gives_values; /* what is held gives the values back, if rounded */
    bool is_half;      /* of a pair that was compared: means nothing beside the other's original */
    bool is_given_back; /* the program's hooks are about to take its place */
    bool is_constant;  /* no grad_fn and no gradient wanted: input, buffer, frozen weight */
    enum mesa_dtype dtype;
    struct mesa_record *record;     /* shared: the ledger's */
    struct mesa_decision *decision; /* shared: lives for ever */
    struct mesa_tensor *original;   /* owned: only with MESA_VERIFY */
    struct mesa_tensor *carrier;    /* owned: keeps the original's storage alive; NULL: nothing does */
    size_t carried_bytes;           /* of what the carrier keeps, once booked */
    int64_t offset;                 /* of the original in its storage, elements */
    int ndim;
    int64_t dims[]; /* sizes, original strides, restored strides: ndim each */
};

/* A zeroed hook with room for ndim dims; NULL without memory. */
struct mesa_hook *mesa_hook_create(int ndim);

/* Puts the hook (owned by the SavedVariable from here on) into a SavedVariable. */
void mesa_hook_register(struct mesa_hook *hook, void *saved);

/* Makes the hook keep the original whole. False without memory, or if it is dead. */
bool mesa_hook_carry(struct mesa_hook *hook);

/* Books what the carrier keeps: nothing has come to take its place. */
void mesa_hook_carries_on(struct mesa_hook *hook);

/* The comparison with its partner is held: zeros stand for this one from here on. */
void mesa_hook_become_zeros(struct mesa_hook *hook);

/* Lets go of everything the hook refers to, and of the hook. */
void mesa_hook_free(struct mesa_hook *hook);

/* The hook of ours in a SavedVariable, or NULL (none, or the program's). */
struct mesa_hook *mesa_hook_in(const void *saved);

/* A program registers hooks of its own on a SavedVariable that has ours: give the tensor back. */
void mesa_hook_take_out(struct mesa_hook *hook, void *saved);

/* Init only: needs the library handle (type information). */
void mesa_hook_init(void);

static inline int64_t *mesa_hook_sizes(struct mesa_hook *hook) {
    return hook->dims;
}
static inline int64_t *mesa_hook_strides(struct mesa_hook *hook) {
    return hook->dims + hook->ndim;
}
static inline int64_t *mesa_hook_restored_strides(struct mesa_hook *hook) {
    return hook->dims + 2 * hook->ndim;
}

#endif
