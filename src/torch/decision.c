/* Decisions are made once for a site and dtype, by the policy, and found again by a few comparisons: the
 * way of every later save. Must not look at elements.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/decision.h"

#include "codec/codec.h"
#include "torch/config.h"
#include "torch/scalars.h"

#include <stdio.h>
#include <stdlib.h>

/* What a site remembers: decisions by dtype, and which occurrence in this step comes next. */
struct site_memory {
    _Atomic(struct mesa_decision *) decisions[MESA_DTYPE_COUNT];
    _Atomic uint64_t step;
    _Atomic uint32_t occurrence;
};

static _Atomic uint64_t current_step;

/* Conditions seen= of the policy that hold by now. */
static _Atomic uint32_t seen;

void mesa_decision_see(const char *name) {
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
        mesa_decision_see(site->op);
    return fresh;
}

void mesa_decision_step(void) {
    atomic_fetch_add_explicit(&current_step, 1, memory_order_relaxed);
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

struct mesa_decision *mesa_decision_of(struct mesa_site *site, enum mesa_dtype dtype,
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
