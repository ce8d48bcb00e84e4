/* Holding: the plan of one tensor, its groups, and the first codec of its decision that takes the values.
 * Must not know hooks, nor what is done with a tensor that nothing fits.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/hold.h"

#include "policy/group.h"
#include "torch/config.h"
#include "vault/arena.h"
#include "vault/warm.h"

#include <string.h>

/* Height and width of the last input of a max pooling in this thread. A wrong guess about whose indices
 * come next costs memory, never a bit of them. */
static _Thread_local size_t pooled[2] __attribute__((tls_model("initial-exec")));

static bool is_max_pool(const struct mesa_op_argument *row) {
    return strstr(row->op, "max_pool2d") != NULL;
}

void mesa_hold_note_pooled(const struct mesa_taking *t) {
    const struct mesa_op_argument *row = t->decision->row;
    if (row == NULL || row->reads != MESA_READS_GEOMETRY || t->view.ndim < 3 || !is_max_pool(row))
        return;
    pooled[0] = (size_t)t->view.sizes[t->view.ndim - 2];
    pooled[1] = (size_t)t->view.sizes[t->view.ndim - 1];
}

/* Indices of max pooling, plane after plane. */
static void plan_window(const struct mesa_taking *t, struct mesa_plan *plan) {
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
static void plan_groups(const struct mesa_taking *t, bool in_blocks, struct mesa_plan *plan) {
    const struct mesa_settings *settings = &t->decision->choice.settings;
    const struct mesa_op_argument *row = t->decision->row;
    mesa_layout_group(&t->view, &t->source, in_blocks ? NULL : &t->heads,
                      in_blocks ? MESA_BY_BLOCK : settings->by, settings->group,
                      row == NULL ? -1 : row->channel_dim, plan);
}

/* Everything but the codec. */
static void plan_for(const struct mesa_taking *t, bool wants_signs, struct mesa_plan *ret_plan) {
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
static enum mesa_status encode(struct mesa_taking *t, struct mesa_held *held) {
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

static enum mesa_status try_codec(struct mesa_taking *t, const struct mesa_codec *codec,
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

static bool is_of_linear_layer(const struct mesa_site *site) {
    static const char group[] = "linear";
    return site->row != NULL &&
           mesa_op_group_has(mesa_op_group_find(group, sizeof group - 1), site->op);
}

/* The program's data outlives the backward pass in most programs, and what is held of it in the first
 * step is never read. Its 16 bits are for programs that were seen to let go of it. What a linear layer
 * reads without gradient is less often data than what a frozen layer made of it (before LoRA's first
 * one), and that dies. */
static bool is_data_that_dies(const struct mesa_taking *t) {
    return t->is_constant &&
           (atomic_load_explicit(&t->decision->constants_died, memory_order_relaxed) != 0 ||
            is_of_linear_layer(t->decision->site));
}

struct mesa_held *mesa_hold(struct mesa_taking *t, unsigned *ret_row, enum mesa_kept *ret_why) {
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
