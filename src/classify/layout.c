/* Geometry of saved tensors. The one idea: sort the dims of a view by falling stride, and what the
 * program calls (B,H,N,D) becomes the order in which the elements lie in memory. That list of `axes`
 * says which elements there are (the source), how to rebuild the view over a dense copy of them
 * (restored strides) and where heads, rows and channels are in the dense order (groups).
 * Must not know torch, ops or policies.
 *
 * SPDX-License-Identifier: MIT */
#include "classify/layout.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* One dim of the dense order. Splitting a dim into (batch, heads) or (heads, head size) makes one
 * more axis than there are dims. */
struct axis {
    int64_t size, stride; /* elements; size > 1 unless split off, stride > 0 */
    int dim;              /* of the view */
    bool is_head;         /* its index is the head */
};

struct axes {
    struct axis at[MESA_MAX_DIMS + 1]; /* outermost first */
    int count;
};

/* ---- source ------------------------------------------------------------------------------------ */

/* Lists the dims of `view` that move the address, by falling stride. False if a size or stride is
 * not one that torch makes. */
static bool list_axes(const struct mesa_view *view, struct axes *ret_axes) {
    if (view->ndim < 0 || view->ndim > MESA_MAX_DIMS)
        return false;
    ret_axes->count = 0;
    for (int d = 0; d < view->ndim; d++) {
        int64_t size = view->sizes[d], stride = view->strides[d];
        if (size <= 0 || stride < 0)
            return false;
        if (size == 1 || stride == 0)
            continue;
        int at = ret_axes->count++;
        for (; at > 0 && ret_axes->at[at - 1].stride < stride; at--)
            ret_axes->at[at] = ret_axes->at[at - 1];
        ret_axes->at[at] = (struct axis){.size = size, .stride = stride, .dim = d};
    }
    return true;
}

/* Distance from the first to the last element, and whether each axis steps over all that lies within
 * the axes inside it. Where one does not, two indices may meet at one address. */
static bool measure_span(const struct axes *axes, int64_t *ret_span, bool *ret_overlaps) {
    int64_t last = 0;
    bool overlaps = false;
    for (int a = axes->count - 1; a >= 0; a--) {
        int64_t reach;
        overlaps |= axes->at[a].stride <= last;
        if (__builtin_mul_overflow(axes->at[a].size - 1, axes->at[a].stride, &reach) ||
            __builtin_add_overflow(last, reach, &last))
            return false;
    }
    if (last == INT64_MAX)
        return false;
    *ret_span = last + 1;
    *ret_overlaps = overlaps;
    return true;
}

static void source_push(struct mesa_source *source, int64_t size, int64_t stride) {
    source->sizes[source->ndim] = size;
    source->strides[source->ndim] = stride;
    source->ndim++;
    source->elements *= (size_t)size;
}

enum mesa_status mesa_layout_source(const struct mesa_view *view, struct mesa_source *ret_source) {
    struct axes axes;
    int64_t span;
    bool overlaps;
    if (mesa_dtype_bytes(view->dtype) == 0 || !list_axes(view, &axes) ||
        !measure_span(&axes, &span, &overlaps))
        return MESA_DECLINED;
    if (overlaps && (size_t)span > view->elements)
        return MESA_DECLINED;

    struct mesa_source source = {.data = view->data, .dtype = view->dtype, .elements = 1};
    if (overlaps || axes.count == 0) {
        source_push(&source, span, 1);
    } else {
        for (int a = 0; a < axes.count; a++) {
            struct axis run = axes.at[a];
            for (; a + 1 < axes.count && run.stride == axes.at[a + 1].size * axes.at[a + 1].stride;
                 a++) {
                run.size *= axes.at[a + 1].size;
                run.stride = axes.at[a + 1].stride;
            }
            source_push(&source, run.size, run.stride);
        }
    }
    *ret_source = source;
    return MESA_OK;
}

void mesa_layout_restored_strides(const struct mesa_view *view, const struct mesa_source *source,
                                  int64_t ret_strides[MESA_MAX_DIMS]) {
    if (source->ndim == 1 && source->strides[0] == 1) {
        for (int d = 0; d < view->ndim; d++)
            ret_strides[d] = view->strides[d];
        return;
    }
    for (int d = 0; d < view->ndim; d++) {
        /* A dim belongs to the first run whose step is not longer than its own; within the run both
         * shrink by the same factor. A dim of size 1 has any stride: it keeps its place among the
         * others, because torch reads the memory format off the order of strides. */
        int64_t stride = view->strides[d], dense = (int64_t)source->elements;
        int run = 0;
        do {
            dense /= source->sizes[run];
        } while (source->strides[run] > stride && ++run < source->ndim);
        if (run == source->ndim) {
            ret_strides[d] = stride == 0 ? 0 : 1;
        } else {
            int64_t steps = stride / source->strides[run];
            ret_strides[d] = dense * (steps < source->sizes[run] ? steps : source->sizes[run]);
        }
    }
}

/* Finalizer of splitmix64 (Steele, Lea, Flood 2014): every bit of the input reaches every other. */
static uint64_t mix(uint64_t key, uint64_t value) {
    key = (key ^ value) + 0x9e3779b97f4a7c15u;
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
    key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
    return key ^ (key >> 31);
}

uint64_t mesa_source_key(const struct mesa_source *source) {
    uint64_t key = mix((uintptr_t)source->data, (uint64_t)source->dtype);
    for (int d = 0; d < source->ndim; d++)
        key = mix(mix(key, (uint64_t)source->sizes[d]), (uint64_t)source->strides[d]);
    return key;
}

bool mesa_source_equal(const struct mesa_source *a, const struct mesa_source *b) {
    if (a->data != b->data || a->dtype != b->dtype || a->ndim != b->ndim)
        return false;
    size_t bytes = (size_t)a->ndim * sizeof a->sizes[0];
    return memcmp(a->sizes, b->sizes, bytes) == 0 && memcmp(a->strides, b->strides, bytes) == 0;
}

/* ---- heads ------------------------------------------------------------------------------------- */

/* Heads of a (B*H, ...) dim: those of the hint if they fit, else every index is a head of its own. */
static int64_t folded_heads(int64_t size, const struct mesa_head_hint *hint) {
    if (hint == NULL || hint->heads <= 0 || size % hint->heads != 0)
        return size;
    if (hint->batch > 0 && size != hint->batch * hint->heads)
        return size;
    return hint->heads;
}

struct mesa_heads mesa_layout_heads(const struct mesa_view *view, enum mesa_head_layout expected,
                                    const struct mesa_head_hint *hint) {
    const int64_t *sizes = view->sizes;
    int last = view->ndim - 1;
    switch (expected) {
    case MESA_HEADS_BHND:
        if (view->ndim == 4)
            return (struct mesa_heads){expected, sizes[1], sizes[3]};
        break;
    case MESA_HEADS_MAP:
        if (view->ndim == 4)
            return (struct mesa_heads){expected, sizes[1], sizes[3]};
        if (view->ndim == 3)
            return (struct mesa_heads){expected, folded_heads(sizes[0], hint), sizes[2]};
        break;
    case MESA_HEADS_FOLDED:
        if (view->ndim == 3) {
            /* keys come as (B*H,D,N) */
            bool turned = hint != NULL && hint->head_size > 0 && hint->head_size == sizes[1] &&
                          hint->head_size != sizes[2];
            return (struct mesa_heads){expected, folded_heads(sizes[0], hint),
                                       turned ? sizes[1] : sizes[2]};
        }
        break;
    case MESA_HEADS_LINEAR:
        if (last >= 0 && hint != NULL && hint->heads > 0 && hint->head_size > 0 &&
            sizes[last] == hint->heads * hint->head_size)
            return (struct mesa_heads){expected, hint->heads, hint->head_size};
        break;
    case MESA_HEADS_CHANNELS:
        /* A scale for a few elements saves nothing. */
        if (view->ndim > 1 && sizes[1] > 0 && view->elements / (size_t)sizes[1] >= MESA_GROUP_UNIT)
            return (struct mesa_heads){expected, sizes[1], 1};
        break;
    case MESA_HEADS_NONE:
        break;
    }
    return (struct mesa_heads){.layout = MESA_HEADS_NONE};
}

/* ---- groups ------------------------------------------------------------------------------------ */

/* Splits axis `a` into (size / inner, inner). */
static void split_axis(struct axes *axes, int a, int64_t inner) {
    memmove(&axes->at[a + 1], &axes->at[a], (size_t)(axes->count - a) * sizeof axes->at[0]);
    axes->count++;
    axes->at[a].size /= inner;
    axes->at[a].stride *= inner;
    axes->at[a + 1].size = inner;
}

/* Marks the axis whose index is the head; none if heads lie at one address (expanded) or are one. */
static void mark_heads(const struct mesa_view *view, const struct mesa_heads *heads,
                       struct axes *axes) {
    if (heads->layout == MESA_HEADS_NONE || heads->heads <= 1)
        return;
    bool is_linear = heads->layout == MESA_HEADS_LINEAR;
    bool is_second = heads->layout == MESA_HEADS_CHANNELS || view->ndim == 4;
    int dim = is_linear ? view->ndim - 1 : is_second ? 1 : 0;
    for (int a = 0; a < axes->count; a++) {
        if (axes->at[a].dim != dim)
            continue;
        if (is_linear && axes->at[a].size == heads->heads * heads->head_size)
            split_axis(axes, a, heads->head_size);
        else if (!is_linear && axes->at[a].size % heads->heads == 0)
            split_axis(axes, a++, heads->heads);
        else
            return;
        axes->at[a].is_head = true;
        return;
    }
}

/* Elements in dense order within one index of axis `a`. */
static size_t inside(const struct axes *axes, int a) {
    size_t elements = 1;
    for (int i = a + 1; i < axes->count; i++)
        elements *= (size_t)axes->at[i].size;
    return elements;
}

static int head_axis(const struct axes *axes) {
    for (int a = 0; a < axes->count; a++) {
        if (axes->at[a].is_head)
            return a;
    }
    return -1;
}

static void plan_block(struct mesa_plan *plan, size_t row, size_t group) {
    plan->grouping = MESA_GROUP_BLOCK;
    plan->row = row;
    plan->group = group;
    plan->run = plan->cycle = plan->period = 0;
}

static void plan_cycle(struct mesa_plan *plan, size_t run, size_t cycle, size_t period) {
    plan->grouping = MESA_GROUP_CYCLE;
    plan->row = plan->group = 0;
    plan->run = run;
    plan->cycle = cycle;
    plan->period = period;
}

/* Groups of about `wanted` elements of one head where a head's runs are much shorter: the fewest turns
 * of the cycle that reach `wanted` and divide all the turns, so that every period is whole. */
static void plan_short_heads(struct mesa_plan *plan, size_t elements, size_t run, size_t heads,
                             size_t wanted) {
    size_t turns = elements / (run * heads);
    size_t each = (wanted + run - 1) / run;
    while (each < turns && turns % each != 0)
        each++;
    plan_cycle(plan, run, heads, each < turns ? each * heads : 0);
}

/* The axis that channels lie on, -1 if there is none. */
static int channel_axis(const struct axes *axes, int dim) {
    int last = -1;
    for (int a = 0; a < axes->count; a++)
        if (axes->at[a].dim == dim)
            last = a;
    return last;
}

/* Rows end where the innermost axis ends, or, with channels outside of it, where a channel's plane
 * does: the lines of an image are too short for groups and alike enough to share one. So are the
 * tokens of a head: they fill groups of the wanted size, but never with elements of two heads. */
static void group_rows(const struct axes *axes, size_t elements, enum mesa_group_by by,
                       size_t group, int channel_dim, struct mesa_plan *plan) {
    int head = head_axis(axes);
    int channels = by == MESA_BY_BLOCK ? channel_axis(axes, channel_dim) : -1;
    size_t wanted =
        head >= 0 && by != MESA_BY_ROW && group > MESA_GROUP_UNIT ? group : MESA_GROUP_UNIT;
    int a = axes->count - 1;
    bool merged = false;
    size_t row = 1;
    for (; a > head && (row < wanted || (channels >= 0 && a > channels)); a--) {
        merged |= row > 1;
        row *= (size_t)axes->at[a].size;
    }
    if (by == MESA_BY_ROW) /* a merged row is many short ones: the smallest groups come closest */
        group = merged ? MESA_GROUP_UNIT : row;
    if (head >= 0 && (row < MESA_GROUP_UNIT || 2 * row <= wanted))
        plan_short_heads(plan, elements, row, (size_t)axes->at[head].size, wanted);
    else
        plan_block(plan, row, group);
}

/* One group for each head over the whole batch, as in the Mesa paper. */
static bool group_heads(const struct axes *axes, size_t elements, struct mesa_plan *plan) {
    int head = head_axis(axes);
    if (head < 0)
        return false;
    size_t heads = (size_t)axes->at[head].size;
    if (elements / heads < MESA_GROUP_UNIT)
        return false;
    plan_cycle(plan, inside(axes, head), heads, 0);
    return true;
}

/* One group for each channel; where heads lie outside of the channels, for each channel of a head. */
static bool group_channels(const struct axes *axes, size_t elements, int dim,
                           struct mesa_plan *plan) {
    int first = -1, last = -1; /* two axes if the heads were split off the channels */
    for (int a = 0; a < axes->count; a++) {
        if (axes->at[a].dim == dim) {
            first = first < 0 ? a : first;
            last = a;
        }
    }
    if (first < 0)
        return false;
    int head = head_axis(axes);
    if (head > last)
        return false;
    size_t run = inside(axes, last);
    size_t cycle = inside(axes, first - 1) / run;
    size_t period = 0;
    if (head >= 0 && head < first) {
        if (head == first - 1)
            cycle *= (size_t)axes->at[head].size;
        else
            period = inside(axes, head) / run;
    }
    size_t turns = (period == 0 ? elements / run : period) / cycle;
    if (turns * run < MESA_GROUP_UNIT)
        return false;
    plan_cycle(plan, run, cycle, period);
    return true;
}

/* The axes of the dense order of `source`, heads marked. The dense order of a span has no dims. */
static void find_axes(const struct mesa_view *view, const struct mesa_source *source,
                      const struct mesa_heads *heads, struct axes *ret_axes) {
    int64_t span;
    bool overlaps;
    if (!list_axes(view, ret_axes) || !measure_span(ret_axes, &span, &overlaps) || overlaps) {
        ret_axes->at[0] = (struct axis){.size = (int64_t)source->elements, .stride = 1, .dim = -1};
        ret_axes->count = 1;
    } else if (heads != NULL) {
        mark_heads(view, heads, ret_axes);
    }
}

void mesa_layout_group(const struct mesa_view *view, const struct mesa_source *source,
                       const struct mesa_heads *heads, enum mesa_group_by by, size_t group,
                       int channel_dim, struct mesa_plan *plan) {
    assert(group > 0);
    struct axes axes;
    find_axes(view, source, heads, &axes);
    if (by == MESA_BY_TENSOR) {
        plan_cycle(plan, source->elements, 1, 0);
        return;
    }
    if (by == MESA_BY_HEAD && group_heads(&axes, source->elements, plan))
        return;
    int dim = channel_dim < 0 ? channel_dim + view->ndim : channel_dim;
    if (by == MESA_BY_CHANNEL && view->ndim > 1 &&
        group_channels(&axes, source->elements, dim, plan))
        return;
    group_rows(&axes, source->elements, by, group, dim, plan);
}

/* ---- describe ---------------------------------------------------------------------------------- */

struct line {
    char *text;
    size_t size, used;
};

__attribute__((format(printf, 2, 3))) static void line_add(struct line *line, const char *format,
                                                           ...) {
    if (line->used >= line->size)
        return;
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line->text + line->used, line->size - line->used, format, arguments);
    va_end(arguments);
    line->used = n < 0 ? line->size : line->used + (size_t)n;
}

static void line_add_dims(struct line *line, const int64_t *dims, int ndim) {
    line_add(line, "(");
    for (int d = 0; d < ndim; d++)
        line_add(line, d == 0 ? "%" PRId64 : ",%" PRId64, dims[d]);
    line_add(line, ")");
}

void mesa_layout_describe(const struct mesa_view *view, const struct mesa_source *source,
                          const struct mesa_heads *heads, const struct mesa_plan *plan, char *ret,
                          size_t size) {
    struct line line = {.text = ret, .size = size};
    if (size > 0)
        ret[0] = '\0';
    line_add_dims(&line, view->sizes, view->ndim);
    line_add(&line, " strides ");
    line_add_dims(&line, view->strides, view->ndim);
    line_add(&line, " of %s", mesa_dtype_name(view->dtype));
    if (source != NULL) {
        size_t run =
            source->strides[source->ndim - 1] == 1 ? (size_t)source->sizes[source->ndim - 1] : 1;
        size_t runs = source->elements / run;
        line_add(&line, ", %zu run%s of %zu", runs, runs == 1 ? "" : "s", run);
    }
    if (heads != NULL && heads->layout == MESA_HEADS_CHANNELS)
        line_add(&line, ", %" PRId64 " channels", heads->heads);
    else if (heads != NULL && heads->layout != MESA_HEADS_NONE)
        line_add(&line, ", %" PRId64 " heads of %" PRId64, heads->heads, heads->head_size);
    if (plan == NULL)
        return;
    if (plan->grouping == MESA_GROUP_BLOCK)
        line_add(&line, ", groups of %zu in rows of %zu", plan->group, plan->row);
    else if (plan->cycle == 1 && plan->period == 0)
        line_add(&line, ", one group");
    else
        line_add(&line, ", groups of every %zuth run of %zu%s", plan->cycle, plan->run,
                 plan->period == 0 ? "" : ", piecewise");
}
