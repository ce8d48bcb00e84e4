/* Splitting work over threads and sources over windows; see walk.h. Must not know codecs.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/walk.h"

#include <stdatomic.h>

typedef void walk_body(void *context, size_t begin, size_t end);

struct items {
    walk_body *body;
    void *context;
};

/* Worker threads have a floating point state of their own. */
static void run_items(void *context, size_t begin, size_t end) {
    const struct items *items = context;
    mesa_float_state state = mesa_float_state_enter();
    items->body(items->context, begin, end);
    mesa_float_state_leave(state);
}

void mesa_walk_items(size_t count, size_t item_bytes, mesa_parallel_for *parallel, walk_body *body,
                     void *context) {
    struct items items = {body, context};
    if (parallel == NULL || count * item_bytes < 2 * MESA_SHARE_BYTES)
        run_items(&items, 0, count);
    else
        parallel(count, mesa_divide_up(MESA_SHARE_BYTES, item_bytes), run_items, &items);
}

struct result {
    size_t elements;
    walk_body *body;
    void *context;
};

static void run_units(void *context, size_t begin, size_t end) {
    const struct result *result = context;
    result->body(result->context, begin * MESA_WALK_UNIT,
                 mesa_smaller(end * MESA_WALK_UNIT, result->elements));
}

void mesa_walk_result(size_t elements, size_t element_bytes, mesa_parallel_for *parallel,
                      walk_body *body, void *context) {
    struct result result = {elements, body, context};
    mesa_walk_items(mesa_divide_up(elements, MESA_WALK_UNIT), MESA_WALK_UNIT * element_bytes,
                    parallel, run_units, &result);
}

struct source_walk {
    const struct mesa_source *source;
    size_t most; /* elements that fit the scratch */
    mesa_visit *visit;
    void *context;
    atomic_bool stopped;
};

/* End of the window that begins at `at`: what is contiguous, if that is no less than half of what
 * could be gathered, else as much as can be gathered. */
static size_t window_end(const struct source_walk *walk, size_t at, size_t end,
                         const void **ret_first) {
    struct mesa_source_rows rows;
    if (mesa_source_contiguous(walk->source, at, end, ret_first))
        return end;
    *ret_first = NULL;
    size_t most = (end - at) / MESA_WALK_UNIT * MESA_WALK_UNIT;
    if (most > 0 && mesa_source_rows(walk->source, at, at + most, MESA_WALK_UNIT, &rows) &&
        rows.row >= walk->most / 2) {
        *ret_first = rows.first;
        return at + rows.row;
    }
    return mesa_smaller(end, at + walk->most);
}

static void visit_windows(void *context, size_t begin, size_t end) {
    struct source_walk *walk = context;
    _Alignas(64) unsigned char scratch[MESA_SCRATCH_BYTES];
    while (begin < end && !atomic_load_explicit(&walk->stopped, memory_order_relaxed)) {
        const void *first;
        size_t next = window_end(walk, begin, end, &first);
        if (first == NULL) {
            mesa_source_gather(walk->source, begin, next, scratch);
            first = scratch;
        }
        if (!walk->visit(walk->context, first, begin, next - begin))
            atomic_store_explicit(&walk->stopped, true, memory_order_relaxed);
        begin = next;
    }
}

bool mesa_walk_source(const struct mesa_source *source, mesa_parallel_for *parallel,
                      mesa_visit *visit, void *context) {
    size_t bytes = mesa_dtype_bytes(source->dtype);
    struct source_walk walk = {
        .source = source,
        .most = MESA_SCRATCH_BYTES / bytes / MESA_WALK_UNIT * MESA_WALK_UNIT,
        .visit = visit,
        .context = context,
    };
    mesa_walk_result(source->elements, bytes, parallel, visit_windows, &walk);
    return !atomic_load_explicit(&walk.stopped, memory_order_relaxed);
}
