/* The way of one saved tensor, in order of cost: most are small or parameters and leave after a few
 * loads; the rest get a site, a decision, and if somebody does not hold them already, an encoding.
 *
 * Nothing here may fail the program: whatever goes wrong before the hook is registered leaves the
 * tensor with the framework.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/saved.h"

#include "torch/clock.h"
#include "torch/config.h"
#include "torch/explain.h"
#include "torch/hold.h"
#include "torch/hook.h"
#include "torch/pair.h"
#include "torch/trace.h"
#include "vault/arena.h"
#include "vault/warm.h"

#include <stdlib.h>
#include <string.h>

struct mesa_config mesa_config;
_Thread_local unsigned mesa_paused __attribute__((tls_model("initial-exec")));

/* Head count that the last attention op of this thread showed. */
static _Thread_local struct mesa_head_hint head_hint __attribute__((tls_model("initial-exec")));

/* ---- keeping -------------------------------------------------------------------------------- */

static void uncharge(const struct mesa_charge *charge) {
    mesa_ledger_released(charge->record, charge->bytes, charge->bytes);
}

/* Saves that were looked at since the last step ended: a step has at least one. */
static _Atomic uint64_t saves_in_step;

static void end_step(void) {
    if (atomic_exchange_explicit(&saves_in_step, 0, memory_order_relaxed) == 0)
        return;
    mesa_ledger_step();
    mesa_warm_step();
    mesa_decision_step();
}

void mesa_saved_sweep(void) {
    size_t died;
    size_t kept = mesa_registry_sweep(uncharge, &died);
    /* Where everything is kept (policy `observe`) no hook tells the end of a step: it shows in the
     * next one, when most of what was kept is found dead. */
    if (died > kept && mesa_registry_save_count() == 0)
        end_step();
}

/* The framework keeps the tensor. Charged, unless its storage would be alive anyway. Takes over the
 * reference on t->storage. */
static void keep(struct mesa_taking *t, enum mesa_kept why, bool charged) {
    mesa_ledger_count_kept(why);
    struct mesa_record *record =
        mesa_decision_record(t->decision, MESA_RECORD_KEPT + (unsigned)why);
    mesa_explain(t->decision, &t->view, &t->heads, NULL, MESA_RECORD_KEPT + (unsigned)why, 0);
    if (!charged || record == NULL) {
        mesa_registry_storage_unref(t->storage);
        return;
    }
    uint64_t bytes;
    mesa_registry_keep(t->storage, record, &bytes);
    mesa_ledger_saved(record, t->view.elements, bytes, bytes, bytes == 0,
                      mesa_now_ns() - t->start_ns);
}

/* ---- the hook ------------------------------------------------------------------------------- */

/* What libtorch would find out about an input that is a view, had it kept it, once its base is written
 * to. */
static void note_view(struct mesa_hook *hook, const struct mesa_tensor *tensor) {
    if (hook->is_output || !mesa_torch.tensor_is_view(tensor))
        return;
    const struct mesa_tensor *base = mesa_torch.tensor_base(tensor);
    hook->is_view = hook->node != NULL || mesa_torch.impl_requires_grad(base->impl);
    if (!hook->is_view)
        return;
    hook->view_kind = mesa_view_kind(tensor);
    if (hook->view_kind != MESA_VIEW_PLAIN)
        hook->output_nr = mesa_torch.tensor_output_nr(tensor);
}

static struct mesa_hook *hook_for(struct mesa_taking *t, struct mesa_held *held) {
    struct mesa_hook *hook = mesa_hook_create(t->view.ndim);
    if (hook == NULL)
        return NULL;
    size_t dims = (size_t)t->view.ndim * sizeof(int64_t);
    int64_t restored[MESA_MAX_DIMS];
    mesa_layout_restored_strides(&t->view, &t->source, restored);
    memcpy(mesa_hook_sizes(hook), t->view.sizes, dims);
    memcpy(mesa_hook_strides(hook), t->view.strides, dims);
    memcpy(mesa_hook_restored_strides(hook), restored, dims);
    const char *storage_data =
        mesa_word_at(mesa_impl_storage(t->tensor->impl), mesa_torch.storage_data);
    hook->offset =
        ((const char *)t->view.data - storage_data) / (int64_t)mesa_dtype_bytes(t->view.dtype);
    hook->held = held;
    hook->storage = t->storage;
    hook->dtype = t->view.dtype;
    if (t->carries && !mesa_hook_carry(hook)) {
        free(hook);
        return NULL;
    }
    hook->counter = mesa_counter_ref(t->tensor->impl);
    hook->version = t->version;
    hook->node = mesa_tensor_grad_fn(t->tensor);
    hook->output_nr = t->save->is_output ? mesa_torch.tensor_output_nr(t->tensor) : 0;
    hook->is_output = t->save->is_output;
    note_view(hook, t->tensor);
    hook->gives_values = held != NULL && held->has_values;
    hook->is_constant = t->is_constant;
    hook->decision = t->decision;
    if (mesa_config.verify)
        (void)mesa_torch.new_handle((struct mesa_tensor *)(uintptr_t)t->tensor, &hook->original);
    return hook;
}

/* Leaves a hook that stands for the tensor, and books it. Takes over the references on t->storage and
 * `held` (NULL: geometry only). `row` is that of the records; new_bytes what was newly held. Returns the
 * hook, which the SavedVariable owns; NULL if the tensor had to be kept. */
static struct mesa_hook *leave_hook(struct mesa_taking *t, struct mesa_held *held, unsigned row,
                                    size_t new_bytes) {
    struct mesa_record *record = mesa_decision_record(t->decision, row);
    struct mesa_hook *hook = record == NULL ? NULL : hook_for(t, held);
    if (hook == NULL) {
        void *held_record;
        size_t bytes;
        if (held != NULL)
            mesa_held_release(held, &held_record, &bytes);
        keep(t, MESA_KEPT_NO_MEMORY, true);
        return NULL;
    }
    hook->record = record;
    uint64_t charged;
    mesa_registry_save_begin(t->storage, record, &charged);
    mesa_explain(t->decision, &t->view, &t->heads, held, row, new_bytes);
    mesa_hook_register(hook, t->saved);
    mesa_ledger_saved(record, t->source.elements, charged, new_bytes, row == MESA_RECORD_SHARE,
                      mesa_now_ns() - t->start_ns);
    return hook;
}

static void share_or_hold(struct mesa_taking *t) {
    const struct mesa_choice *choice = &t->decision->choice;
    struct mesa_held *held =
        mesa_registry_find(t->storage, &t->source, t->key, t->version, !choice->signs_only,
                           choice->signs_only || choice->keep_signs);
    /* A rounded copy does not serve an op that wants every bit, nor one held for another comparison
     * than with 0. */
    if (held != NULL && choice->exact && !held->plan.codec->exact && !choice->signs_only) {
        void *record;
        size_t bytes;
        mesa_held_release(held, &record, &bytes);
        held = NULL;
    }
    if (held != NULL) {
        (void)leave_hook(t, held, MESA_RECORD_SHARE, 0);
        return;
    }
    unsigned row = 0;
    enum mesa_kept why = MESA_KEPT_VALUES;
    held = mesa_hold(t, &row, &why);
    if (held == NULL) {
        keep(t, why, !t->is_constant);
        return;
    }
    void *superseded;
    size_t superseded_bytes, new_bytes = held->size;
    mesa_registry_publish(held, &superseded, &superseded_bytes);
    if (superseded != NULL)
        mesa_ledger_released(superseded, 0, superseded_bytes);
    (void)leave_hook(t, held, row, new_bytes);
}

/* The second of two inputs that the backward compares: see torch/pair.h. */
static void hold_comparison(struct mesa_taking *t, struct mesa_hook *other,
                            const void *others_elements) {
    unsigned row = 0;
    enum mesa_kept why = MESA_KEPT_VALUES;
    t->source.against = others_elements;
    struct mesa_held *held = mesa_hold(t, &row, &why);
    if (held == NULL) {
        keep(t, why, !t->is_constant);
        return;
    }
    struct mesa_hook *hook = leave_hook(t, held, row, held->size);
    if (hook == NULL)
        return;
    hook->is_half = true;
    mesa_hook_become_zeros(other);
}

static bool is_compared(const struct mesa_choice *choice) {
    return choice->count != 0 && choice->candidates[0] == &mesa_codec_compare;
}

static void compare_or_hold(struct mesa_taking *t) {
    const struct mesa_op_argument *row = t->decision->row;
    struct mesa_hook *other = mesa_pair.other_hook;
    const void *others_elements;
    mesa_pair.other_hook = NULL;
    if (!mesa_pair_match(row, t->tensor, &t->view, &others_elements)) {
        share_or_hold(t);
    } else if (!mesa_pair_is_self(row)) {
        t->carries = true;
        mesa_pair.other_hook = leave_hook(t, NULL, MESA_RECORD_FIRST, 0);
    } else if (other != NULL) {
        hold_comparison(t, other, others_elements);
    } else {
        share_or_hold(t);
    }
}

/* ---- who is who ----------------------------------------------------------------------------- */

static bool is_parameter(const struct mesa_tensor *tensor) {
    return mesa_torch.tensor_is_leaf(tensor) && mesa_torch.impl_requires_grad(tensor->impl);
}

/* A parameter, or a view of one (the transposed weight of a linear layer). */
static bool is_of_parameter(const struct mesa_tensor *tensor) {
    return is_parameter(tensor) ||
           (mesa_torch.tensor_is_view(tensor) && is_parameter(mesa_torch.tensor_base(tensor)));
}

static uint32_t load(const _Atomic uint32_t *count) {
    return atomic_load_explicit(count, memory_order_relaxed);
}

static void see_frozen_weights(void) {
    static _Atomic bool done;
    if (atomic_load_explicit(&done, memory_order_relaxed))
        return;
    mesa_decision_see(MESA_FROZEN_WEIGHTS);
    atomic_store_explicit(&done, true, memory_order_relaxed);
}

static bool is_matrix_weight(const struct mesa_site *site) {
    return site->row != NULL &&
           (site->row->reads == MESA_READS_WEIGHT ||
            (strcmp(site->row->argument, "mat2") == 0 && strcmp(site->row->op, "bmm") != 0));
}

/* Autocast's copy of a weight: made by ToCopyBackward0 (of its base, where it was transposed). */
static bool is_cast(const struct mesa_tensor *tensor) {
    static _Atomic(const void *) cast_vtable;
    if (mesa_torch.tensor_is_view(tensor))
        tensor = mesa_torch.tensor_base(tensor);
    const void *node = mesa_tensor_grad_fn(tensor);
    if (node == NULL)
        return false;
    const void *vtable = mesa_word_at(node, 0);
    if (vtable == atomic_load_explicit(&cast_vtable, memory_order_relaxed))
        return true;
    char name[64];
    mesa_node_class(node, name, sizeof name);
    if (strcmp(name, "ToCopyBackward0") != 0)
        return false;
    atomic_store_explicit(&cast_vtable, vtable, memory_order_relaxed);
    return true;
}

/* Finds heads in the tensor, and remembers what attention shows of them for its neighbours. */
static void find_heads(struct mesa_taking *t) {
    const struct mesa_op_argument *row = t->decision->row;
    if (row == NULL)
        return;
    t->heads = mesa_layout_heads(&t->view, row->heads, &head_hint);
    if (row->heads == MESA_HEADS_BHND && t->view.ndim == 4)
        head_hint = (struct mesa_head_hint){t->view.sizes[0], t->view.sizes[1], t->view.sizes[3]};
}

static void take(struct mesa_taking *t) {
    const struct mesa_choice *choice = &t->decision->choice;
    if (mesa_registry_sweep_is_due())
        mesa_saved_sweep();
    atomic_fetch_add_explicit(&saves_in_step, 1, memory_order_relaxed);
    size_t storage_bytes = mesa_tensor_storage_bytes(t->tensor);
    t->storage = mesa_registry_storage(mesa_word_at(t->tensor->impl, mesa_torch.impl_storage),
                                       storage_bytes);
    if (t->storage == NULL) {
        mesa_ledger_count_kept(MESA_KEPT_NO_MEMORY);
        return;
    }
    find_heads(t);
    mesa_hold_note_pooled(t);
    if (mesa_registry_is_kept(t->storage)) {
        keep(t, MESA_KEPT_ALIVE, false);
    } else if (is_matrix_weight(t->decision->site) && (t->is_constant || is_cast(t->tensor))) {
        if (t->is_constant)
            see_frozen_weights();
        keep(t, MESA_KEPT_FROZEN, !t->is_constant);
    } else if (t->is_constant &&
               load(&t->decision->constants_outlived) > load(&t->decision->constants_died)) {
        keep(t, MESA_KEPT_ALIVE, false);
    } else if (!choice->geometry && choice->count == 0) {
        keep(t, choice->kept, !t->is_constant);
    } else if (atomic_load_explicit(&t->decision->looked_at, memory_order_relaxed)) {
        keep(t, MESA_KEPT_LOOKED_AT, !t->is_constant);
    } else if (!mesa_torch.saved_hooks_allowed()) {
        keep(t, MESA_KEPT_HOOKED, !t->is_constant);
    } else if (mesa_layout_source(&t->view, &t->source) != MESA_OK) {
        keep(t, MESA_KEPT_LAYOUT, !t->is_constant);
    } else if (t->source.elements * mesa_dtype_bytes(t->view.dtype) < mesa_config.min_bytes) {
        mesa_registry_storage_unref(t->storage); /* a small tensor, broadcast */
    } else {
        t->version = (uint32_t)mesa_torch.tensor_version(t->tensor);
        t->key = mesa_source_key(&t->source);
        if (choice->geometry)
            (void)leave_hook(t, NULL, MESA_RECORD_SHAPE, 0);
        else if (is_compared(choice))
            compare_or_hold(t);
        else
            share_or_hold(t);
    }
}

/* 16 bytes is the largest element: most small tensors are told without asking for the dtype. */
static size_t impl_bytes(const struct mesa_tensor *tensor) {
    size_t elements = mesa_impl_elements(tensor->impl);
    if (elements * 16 < mesa_config.min_bytes)
        return 0;
    return elements * mesa_dtype_bytes(mesa_tensor_dtype(tensor));
}

/* A tensor on another device or with another layout. Those of tracing and of functorch have no memory. */
static void count_kind(const struct mesa_tensor *tensor) {
    if (impl_bytes(tensor) >= mesa_config.min_bytes && mesa_torch_thread_is_plain())
        mesa_ledger_count_kept(MESA_KEPT_KIND);
}

/* What can be told at next to no cost; false: leave it alone. */
static bool may_take(const void *saved, const struct mesa_tensor *tensor,
                     const struct mesa_save *save) {
    if (tensor == NULL || mesa_torch_inside || mesa_paused != 0)
        return false;
    const void *impl = tensor->impl;
    if (!mesa_impl_is_plain(impl)) {
        count_kind(tensor);
        return false;
    }
    if (mesa_impl_elements(impl) == 0 || impl_bytes(tensor) < mesa_config.min_bytes ||
        save->is_inplace_on_view)
        return false;
    if (mesa_word_at(saved, mesa_torch.saved_hooks) != NULL) {
        mesa_ledger_count_kept(MESA_KEPT_HOOKED);
        return false;
    }
    return true;
}

void mesa_saved_constructed(void *saved, const struct mesa_tensor *tensor,
                            const struct mesa_save *save) {
    bool possible = may_take(saved, tensor, save);
    if (!possible && !mesa_trace_is_on()) {
        mesa_site_note(save);
        return;
    }
    struct mesa_site *site = mesa_site_of(save);
    mesa_trace_save(site, tensor, save);
    if (site == NULL || !possible || is_of_parameter(tensor) || !mesa_torch_thread_is_plain())
        return;
    struct mesa_taking t = {.saved = saved, .tensor = tensor, .save = save};
    if (mesa_tensor_view(tensor, &t.view) != MESA_OK || t.view.ndim == 0)
        return;
    t.decision =
        mesa_decision_of(site, t.view.dtype, t.view.elements * mesa_dtype_bytes(t.view.dtype));
    if (t.decision == NULL || t.decision->choice.off)
        return;
    t.start_ns = mesa_now_ns();
    t.is_constant = mesa_tensor_grad_fn(tensor) == NULL;
    MESA_INSIDE_SCOPE;
    take(&t);
}

void mesa_saved_ended(void) {
    if (mesa_registry_save_count() != 0)
        return;
    size_t died;
    (void)mesa_registry_sweep(uncharge, &died);
    end_step();
    mesa_arena_trim();
}
