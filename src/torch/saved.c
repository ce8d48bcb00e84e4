/* The way of one saved tensor, in order of cost: most are small or parameters and leave after a few
 * loads; the rest get a site, a decision, and if somebody does not hold them already, an encoding.
 *
 * Nothing here may fail the program: whatever goes wrong before the hook is registered leaves the
 * tensor with the framework.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/saved.h"

#include "policy/group.h"
#include "torch/clock.h"
#include "torch/explain.h"
#include "torch/pair.h"
#include "torch/scalars.h"
#include "torch/trace.h"
#include "vault/arena.h"
#include "vault/warm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mesa_config mesa_config;
_Thread_local unsigned mesa_paused __attribute__((tls_model("initial-exec")));

/* Head count that the last attention op of this thread showed. */
static _Thread_local struct mesa_head_hint head_hint __attribute__((tls_model("initial-exec")));

/* Height and width of the last input of a max pooling in this thread. A wrong guess about whose indices
 * come next costs memory, never a bit of them. */
static _Thread_local size_t pooled[2] __attribute__((tls_model("initial-exec")));

/* One save on its way through the functions below. */
struct taking {
    void *saved;
    const struct mesa_tensor *tensor;
    const struct mesa_save *save;
    struct mesa_decision *decision;
    struct mesa_view view;
    struct mesa_heads heads;
    struct mesa_source source;
    uint64_t key;
    uint32_t version;
    bool is_constant; /* no grad_fn and no gradient wanted */
    struct mesa_storage *storage;
    uint64_t start_ns;
    bool carries; /* the hook is to keep the original whole */
};

/* ---- decisions ------------------------------------------------------------------------------ */

/* What a site remembers: decisions by dtype, and which occurrence in this step comes next. */
struct site_memory {
    _Atomic(struct mesa_decision *) decisions[MESA_DTYPE_COUNT];
    _Atomic uint64_t step;
    _Atomic uint32_t occurrence;
};

static _Atomic uint64_t current_step;

/* Conditions seen= of the policy that hold by now. */
static _Atomic uint32_t seen;

static void see(const char *name) {
    uint32_t sights = mesa_policy_sights(mesa_config.policy, name);
    if (sights != 0)
        atomic_fetch_or_explicit(&seen, sights, memory_order_relaxed);
}

static struct site_memory *memory_of(struct mesa_site *site) {
    void *memory = atomic_load_explicit(&site->use, memory_order_acquire);
    if (memory != NULL)
        return memory;
    struct site_memory *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return NULL;
    if (!atomic_compare_exchange_strong(&site->use, &memory, fresh)) {
        free(fresh); /* another thread was first */
        return memory;
    }
    if (site->row != NULL) /* a custom function may be called like an op */
        see(site->op);
    return fresh;
}

static unsigned next_occurrence(struct site_memory *memory) {
    uint64_t step = atomic_load_explicit(&current_step, memory_order_relaxed);
    if (atomic_exchange_explicit(&memory->step, step, memory_order_relaxed) != step)
        atomic_store_explicit(&memory->occurrence, 0, memory_order_relaxed);
    return atomic_fetch_add_explicit(&memory->occurrence, 1, memory_order_relaxed);
}

static bool same_row(const struct mesa_decision *decision, const struct mesa_op_argument *row) {
    const struct mesa_op_argument *own = decision->row;
    return own == row || (own != NULL && row != NULL && own->reads == row->reads &&
                          own->thresholds_known == row->thresholds_known && own->lo == row->lo &&
                          own->hi == row->hi);
}

static bool same_outcome(const struct mesa_decision *decision, const struct mesa_settings *settings,
                         const struct mesa_place *place) {
    const struct mesa_settings *s = &decision->choice.settings;
    const struct mesa_place *p = &decision->choice.place;
    return s->way == settings->way && s->bits == settings->bits && s->by == settings->by &&
           s->group == settings->group && s->rounding == settings->rounding &&
           p->file == place->file && p->line == place->line;
}

static bool covers(const struct mesa_decision *decision, size_t bytes) {
    return decision->least_bytes <= bytes && bytes < decision->end_bytes;
}

static struct mesa_decision *decide(struct mesa_site *site, const struct mesa_op_argument *row,
                                    const struct mesa_subject *subject,
                                    _Atomic(struct mesa_decision *) *list) {
    struct mesa_settings settings;
    struct mesa_place place;
    mesa_policy_match(mesa_config.policy, subject, &settings, &place);
    struct mesa_decision *first = atomic_load_explicit(list, memory_order_acquire);
    for (struct mesa_decision *d = first; d != NULL; d = d->next)
        if (covers(d, subject->bytes) && same_outcome(d, &settings, &place) && same_row(d, row)) {
            atomic_store_explicit(&d->seen, subject->seen, memory_order_relaxed);
            return d;
        }
    struct mesa_decision *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return NULL;
    fresh->site = site;
    fresh->dtype = subject->dtype;
    fresh->row = row;
    atomic_init(&fresh->seen, subject->seen);
    if (row != NULL && row != site->row) {
        fresh->refined = *row;
        fresh->row = &fresh->refined;
    }
    mesa_policy_span(mesa_config.policy, subject, &fresh->least_bytes, &fresh->end_bytes);
    mesa_policy_choose(&settings, &place, row, subject->dtype, &fresh->choice);
    do
        fresh->next = first;
    while (!atomic_compare_exchange_weak(list, &first, fresh));
    return fresh; /* a twin made by another thread at the same time does no harm */
}

static struct mesa_decision *decision_of(struct mesa_site *site, enum mesa_dtype dtype,
                                         size_t bytes) {
    struct site_memory *memory = memory_of(site);
    if (memory == NULL)
        return NULL;
    struct mesa_op_argument refined;
    const struct mesa_op_argument *row = site->row;
    if (row != NULL && mesa_scalar_call.op != NULL && mesa_scalars_refine(row, dtype, &refined))
        row = &refined;
    _Atomic(struct mesa_decision *) *list = &memory->decisions[dtype];
    struct mesa_subject subject = {
        .op = site->op,
        .argument = site->argument,
        .dtype = dtype,
        .bytes = bytes,
        .seen = atomic_load_explicit(&seen, memory_order_relaxed),
    };
    if (mesa_policy_uses_layers(mesa_config.policy)) {
        subject.layer = next_occurrence(memory);
        return decide(site, row, &subject, list);
    }
    struct mesa_decision *known = atomic_load_explicit(list, memory_order_acquire);
    for (; known != NULL; known = known->next)
        if (covers(known, bytes) && same_row(known, row) &&
            atomic_load_explicit(&known->seen, memory_order_relaxed) == subject.seen)
            return known;
    return decide(site, row, &subject, list);
}

static const char *way_text(const struct mesa_decision *decision, unsigned row, char *buffer,
                            size_t size) {
    if (row == MESA_RECORD_SHARE)
        return "share";
    if (row == MESA_RECORD_SHAPE)
        return "shape";
    if (row >= MESA_RECORD_KEPT)
        return "keep";
    const struct mesa_codec *codec = decision->choice.candidates[row - MESA_RECORD_FIRST];
    if (codec != &mesa_codec_affine && codec != &mesa_codec_sparse_affine)
        return codec->name;
    snprintf(buffer, size, "%s %u", codec->name, decision->choice.settings.bits);
    return buffer;
}

struct mesa_record *mesa_decision_record(struct mesa_decision *decision, unsigned row) {
    struct mesa_record *record =
        atomic_load_explicit(&decision->records[row], memory_order_acquire);
    if (record != NULL)
        return record;
    char buffer[32];
    const char *way = way_text(decision, row, buffer, sizeof buffer);
    enum mesa_kept kept =
        row >= MESA_RECORD_KEPT ? (enum mesa_kept)(row - MESA_RECORD_KEPT) : MESA_KEPT_NOT;
    record = mesa_ledger_record(decision->site->op, decision->site->argument, decision->dtype, way,
                                kept);
    atomic_store_explicit(&decision->records[row], record, memory_order_release);
    return record;
}

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
    atomic_fetch_add_explicit(&current_step, 1, memory_order_relaxed);
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
static void keep(struct taking *t, enum mesa_kept why, bool charged) {
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

/* ---- holding -------------------------------------------------------------------------------- */

static bool is_max_pool(const struct mesa_op_argument *row) {
    return strstr(row->op, "max_pool2d") != NULL;
}

/* Indices of max pooling, plane after plane. */
static void plan_window(const struct taking *t, struct mesa_plan *plan) {
    const struct mesa_op_argument *row = t->decision->row;
    const struct mesa_view *view = &t->view;
    int y = view->ndim - 2, x = view->ndim - 1;
    if (row == NULL || !row->is_result || y < 0 || !is_max_pool(row) ||
        (view->sizes[x] > 1 && view->strides[x] != 1) ||
        (view->sizes[y] > 1 && view->strides[y] != view->sizes[x]))
        return;
    plan->window_in_height = pooled[0];
    plan->window_in_width = pooled[1];
    plan->window_out_height = (size_t)view->sizes[y];
    plan->window_out_width = (size_t)view->sizes[x];
}

/* `in_blocks`: in short stretches of what lies next to each other, whatever the policy says. */
static void plan_groups(const struct taking *t, bool in_blocks, struct mesa_plan *plan) {
    const struct mesa_settings *settings = &t->decision->choice.settings;
    const struct mesa_op_argument *row = t->decision->row;
    mesa_layout_group(&t->view, &t->source, in_blocks ? NULL : &t->heads,
                      in_blocks ? MESA_BY_BLOCK : settings->by, settings->group,
                      row == NULL ? -1 : row->channel_dim, plan);
}

/* Everything but the codec. */
static void plan_for(const struct taking *t, bool wants_signs, struct mesa_plan *ret_plan) {
    const struct mesa_choice *choice = &t->decision->choice;
    /* Another stream for each tensor, the same ones in another run of the same program. */
    static _Atomic uint64_t serial;
    *ret_plan = (struct mesa_plan){
        .dtype = t->view.dtype,
        .elements = t->source.elements,
        .far = mesa_warm_high() > 2 * mesa_cache_bytes(),
        .bits = choice->settings.bits,
        .rounding = choice->settings.rounding,
        .seed = mesa_config.seed + atomic_fetch_add_explicit(&serial, 1, memory_order_relaxed) *
                                       UINT64_C(0x9e3779b97f4a7c15),
        .strict_sign = choice->keep_signs || wants_signs,
        .widest = choice->widest,
        .predicate = choice->predicate,
        .lo = choice->lo,
        .hi = choice->hi,
    };
    plan_groups(t, false, ret_plan);
}

/* Encodes with one codec into held->bytes. MESA_DECLINED if these values do not fit it, or if it would
 * not save at least a tenth. */
static enum mesa_status encode(struct taking *t, struct mesa_held *held) {
    const struct mesa_codec *codec = held->plan.codec;
    size_t bound = codec->bound_bytes(&held->plan);
    if (bound == 0 || (codec->may_fit != NULL && !codec->may_fit(&held->plan, &t->source)))
        return MESA_DECLINED;
    held->bytes = mesa_arena_alloc(bound);
    if (held->bytes == NULL)
        return MESA_NO_MEMORY;
    size_t used = 0;
    enum mesa_status status =
        codec->encode(&held->plan, &t->source, mesa_torch_parallel_for, held->bytes, &used);
    if (status == MESA_OK && used > t->source.elements * mesa_dtype_bytes(t->view.dtype) / 10 * 9)
        status = MESA_DECLINED;
    if (status == MESA_OK) {
        mesa_arena_shrink(held->bytes, used);
        held->size = used;
    } else {
        mesa_arena_free(held->bytes);
        held->bytes = NULL;
    }
    return status;
}

static bool gives_signs(const struct mesa_plan *plan, const struct mesa_choice *choice) {
    const struct mesa_codec *codec = plan->codec;
    if (codec == &mesa_codec_affine)
        return plan->strict_sign;
    if (codec == &mesa_codec_interval)
        return false;
    if (codec == &mesa_codec_mask)
        return plan->dtype == MESA_BOOL || choice->signs_only;
    return codec->exact || codec == &mesa_codec_sparse_affine || codec == &mesa_codec_sign ||
           codec == &mesa_codec_bfloat16;
}

static bool gives_values(const struct mesa_plan *plan) {
    return plan->codec != &mesa_codec_sign && plan->codec != &mesa_codec_interval &&
           plan->codec != &mesa_codec_compare &&
           (plan->codec != &mesa_codec_mask || plan->dtype == MESA_BOOL);
}

static void checksum(struct mesa_held *held) {
    if (!mesa_config.checksums)
        return;
    mesa_float_state state = mesa_float_state_enter();
    held->checksum = mesa_kernels.fingerprint(held->bytes, held->size);
    mesa_float_state_leave(state);
}

static enum mesa_status try_codec(struct taking *t, const struct mesa_codec *codec,
                                  const struct mesa_plan *plan, struct mesa_held *held) {
    held->plan = *plan;
    held->plan.codec = codec;
    if (codec == &mesa_codec_window)
        plan_window(t, &held->plan);
    enum mesa_status status = encode(t, held);
    bool uses_groups = codec == &mesa_codec_affine || codec == &mesa_codec_sparse_affine;
    if (status == MESA_DECLINED && uses_groups && plan->grouping == MESA_GROUP_CYCLE) {
        /* One NaN or sentinel spoils the scales of the whole tensor, but only one block. */
        plan_groups(t, true, &held->plan);
        status = encode(t, held);
    }
    return status;
}

static uint32_t load(const _Atomic uint32_t *count) {
    return atomic_load_explicit(count, memory_order_relaxed);
}

static bool is_of_linear_layer(const struct mesa_site *site) {
    static const char group[] = "linear";
    return site->row != NULL &&
           mesa_op_group_has(mesa_op_group_find(group, sizeof group - 1), site->op);
}

/* The program's data outlives the backward pass in most programs, and what is held of it in the first
 * step is never read. Its 16 bits are for programs that were seen to let go of it. What a linear layer
 * reads without gradient is less often data than what a frozen layer made of it (before LoRA's first
 * one), and that dies. */
static bool is_data_that_dies(const struct taking *t) {
    return t->is_constant &&
           (load(&t->decision->constants_died) != 0 || is_of_linear_layer(t->decision->site));
}

/* A new held buffer by the first candidate that takes the values; *ret_row is its row of records.
 * NULL with *ret_why if none does. */
static struct mesa_held *hold(struct taking *t, unsigned *ret_row, enum mesa_kept *ret_why) {
    const struct mesa_choice *choice = &t->decision->choice;
    struct mesa_held *held = mesa_held_create(t->storage);
    *ret_why = MESA_KEPT_NO_MEMORY;
    if (held == NULL)
        return NULL;
    held->source = t->source;
    held->key = t->key;
    held->version = t->version;
    bool wants_signs = !choice->signs_only &&
                       mesa_registry_wants_signs(t->storage, &t->source, t->key, t->version);
    struct mesa_plan plan;
    plan_for(t, wants_signs, &plan);
    enum mesa_status status = MESA_DECLINED;
    unsigned i;
    for (i = 0; i < choice->count && status == MESA_DECLINED; i++) {
        bool compares = t->source.against != NULL;
        if (compares != (choice->candidates[i] == &mesa_codec_compare))
            continue;
        /* A compact copy of a strided tensor may take another path in BLAS or another loop of an
         * elementwise op, with other roundings. */
        if (choice->exact && !compares && (t->source.ndim > 1 || t->source.strides[0] != 1))
            break;
        if (choice->candidates[i] == choice->data_only && (!is_data_that_dies(t) || wants_signs))
            continue;
        status = try_codec(t, choice->candidates[i], &plan, held);
    }
    if (status != MESA_OK) {
        void *record;
        size_t bytes;
        *ret_why = status == MESA_NO_MEMORY                             ? MESA_KEPT_NO_MEMORY
                   : choice->exact                                      ? MESA_KEPT_EXACT
                   : choice->kept != MESA_KEPT_NOT && choice->count < 2 ? choice->kept
                                                                        : MESA_KEPT_VALUES;
        mesa_held_release(held, &record, &bytes);
        return NULL;
    }
    *ret_row = MESA_RECORD_FIRST + i - 1;
    held->has_signs = gives_signs(&held->plan, choice);
    held->has_values = gives_values(&held->plan);
    held->record = mesa_decision_record(t->decision, *ret_row);
    checksum(held);
    return held;
}

/* ---- the hook ------------------------------------------------------------------------------- */

/* What libtorch would find out about an input that is a view, had it kept it, once its base is written
 * to. */
static void note_view(struct mesa_hook *hook, const struct mesa_tensor *tensor) {
    if (hook->is_output || !mesa_torch.tensor_is_view(tensor))
        return;
    const struct mesa_tensor *base = mesa_torch.tensor_base(tensor);
    hook->is_view = hook->node != NULL || mesa_torch.impl_requires_grad(base->impl);
    if (hook->is_view)
        hook->view_kind = mesa_tensor_view_kind(tensor);
}

static struct mesa_hook *hook_for(struct taking *t, struct mesa_held *held) {
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
    hook->output_nr = mesa_torch.tensor_output_nr(t->tensor);
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
static struct mesa_hook *leave_hook(struct taking *t, struct mesa_held *held, unsigned row,
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

static void share_or_hold(struct taking *t) {
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
    held = hold(t, &row, &why);
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
static void hold_comparison(struct taking *t, struct mesa_hook *other,
                            const void *others_elements) {
    unsigned row = 0;
    enum mesa_kept why = MESA_KEPT_VALUES;
    t->source.against = others_elements;
    struct mesa_held *held = hold(t, &row, &why);
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

static void compare_or_hold(struct taking *t) {
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

static void see_frozen_weights(void) {
    static _Atomic bool done;
    if (atomic_load_explicit(&done, memory_order_relaxed))
        return;
    see(MESA_FROZEN_WEIGHTS);
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
static void find_heads(struct taking *t) {
    const struct mesa_op_argument *row = t->decision->row;
    if (row == NULL)
        return;
    t->heads = mesa_layout_heads(&t->view, row->heads, &head_hint);
    if (row->heads == MESA_HEADS_BHND && t->view.ndim == 4)
        head_hint = (struct mesa_head_hint){t->view.sizes[0], t->view.sizes[1], t->view.sizes[3]};
}

static void note_pooled(const struct taking *t) {
    const struct mesa_op_argument *row = t->decision->row;
    if (row == NULL || row->reads != MESA_READS_GEOMETRY || t->view.ndim < 3 || !is_max_pool(row))
        return;
    pooled[0] = (size_t)t->view.sizes[t->view.ndim - 2];
    pooled[1] = (size_t)t->view.sizes[t->view.ndim - 1];
}

static void take(struct taking *t) {
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
    note_pooled(t);
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
    struct taking t = {.saved = saved, .tensor = tensor, .save = save};
    if (mesa_tensor_view(tensor, &t.view) != MESA_OK || t.view.ndim == 0)
        return;
    t.decision = decision_of(site, t.view.dtype, t.view.elements * mesa_dtype_bytes(t.view.dtype));
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
