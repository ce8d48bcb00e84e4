/* Layout against a model that enumerates the address of every element: random shapes, permuted,
 * sliced, expanded and windowed as programs do it.
 *
 * SPDX-License-Identifier: MIT */
#include "classify/layout.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ELEMENTS 4096

static uint64_t seed = 0x243f6a8885a308d3u; /* each test runs in a process of its own */

static uint64_t draw(uint64_t below) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (seed >> 11) % below;
}

/* ---- views, made as torch makes them --------------------------------------------------------- */

static const char storage[1 << 16]; /* addresses are compared, never read */

static struct mesa_view view_of(int ndim, const int64_t *sizes) {
    struct mesa_view view = {.data = storage, .dtype = MESA_F32, .ndim = ndim, .elements = 1};
    for (int d = ndim - 1; d >= 0; d--) {
        view.sizes[d] = sizes[d];
        view.strides[d] = (int64_t)view.elements;
        view.elements *= (size_t)sizes[d];
    }
    return view;
}
#define VIEW(...)                                                                                  \
    view_of((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})

static struct mesa_view transpose(struct mesa_view view, int a, int b) {
    int64_t size = view.sizes[a], stride = view.strides[a];
    view.sizes[a] = view.sizes[b];
    view.strides[a] = view.strides[b];
    view.sizes[b] = size;
    view.strides[b] = stride;
    return view;
}

static struct mesa_view slice(struct mesa_view view, int d, int64_t begin, int64_t size,
                              int64_t step) {
    view.data = (const char *)view.data + begin * view.strides[d] * 4;
    view.elements = view.elements / (size_t)view.sizes[d] * (size_t)size;
    view.sizes[d] = size;
    view.strides[d] *= step;
    return view;
}

static struct mesa_view drop(struct mesa_view view, int d) {
    view.elements /= (size_t)view.sizes[d];
    view.ndim--;
    for (int i = d; i < view.ndim; i++) {
        view.sizes[i] = view.sizes[i + 1];
        view.strides[i] = view.strides[i + 1];
    }
    return view;
}

static struct mesa_view insert(struct mesa_view view, int d, int64_t size, int64_t stride) {
    for (int i = view.ndim; i > d; i--) {
        view.sizes[i] = view.sizes[i - 1];
        view.strides[i] = view.strides[i - 1];
    }
    view.ndim++;
    view.sizes[d] = size;
    view.strides[d] = stride;
    view.elements *= (size_t)size;
    return view;
}

/* tensor.unfold(d, size, step): windows along d, their elements as a new last dim */
static struct mesa_view unfold(struct mesa_view view, int d, int64_t size, int64_t step) {
    int64_t stride = view.strides[d];
    view = slice(view, d, 0, (view.sizes[d] - size) / step + 1, step);
    return insert(view, view.ndim, size, stride);
}

/* ---- the model: offsets, in elements, of every index in row-major order ----------------------- */

static size_t offsets_of(int ndim, const int64_t *sizes, const int64_t *strides, size_t elements,
                         int64_t *ret_offsets) {
    for (size_t e = 0; e < elements; e++) {
        size_t rest = e;
        ret_offsets[e] = 0;
        for (int d = ndim - 1; d >= 0; d--) {
            ret_offsets[e] += (int64_t)(rest % (size_t)sizes[d]) * strides[d];
            rest /= (size_t)sizes[d];
        }
    }
    return elements;
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static size_t distinct(int64_t *offsets, size_t n) {
    qsort(offsets, n, sizeof *offsets, by_value);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (kept == 0 || offsets[kept - 1] != offsets[i])
            offsets[kept++] = offsets[i];
    }
    return kept;
}

static const char *show(const struct mesa_view *view) {
    static char text[512];
    mesa_layout_describe(view, NULL, NULL, NULL, text, sizeof text);
    return text;
}

/* The source covers each address once, rising, and nothing else unless it is a span; the restored
 * strides find each index's own element in the dense copy. */
static void check_source(const struct mesa_view *view) {
    static int64_t offsets[MOST_ELEMENTS], sorted[MOST_ELEMENTS], of_source[MOST_ELEMENTS],
        restored[MOST_ELEMENTS];
    cr_assert_leq(view->elements, MOST_ELEMENTS);
    offsets_of(view->ndim, view->sizes, view->strides, view->elements, offsets);
    memcpy(sorted, offsets, sizeof sorted);
    size_t addresses = distinct(sorted, view->elements);

    struct mesa_source source;
    enum mesa_status status = mesa_layout_source(view, &source);
    if (view->elements == 0) {
        cr_assert_eq(status, MESA_DECLINED);
        return;
    }
    int64_t span = sorted[addresses - 1] + 1;
    if (status != MESA_OK) {
        cr_assert_eq(status, MESA_DECLINED);
        cr_assert_gt((size_t)span, view->elements, "declined for nothing: %s", show(view));
        return;
    }
    cr_assert_eq(source.data, view->data);
    cr_assert_eq(source.dtype, view->dtype);
    cr_assert_geq(source.ndim, 1);
    cr_assert_leq(source.elements, view->elements);
    size_t product = 1;
    for (int d = 0; d < source.ndim; d++) {
        cr_assert_gt(source.sizes[d], 0);
        cr_assert_gt(source.strides[d], 0);
        cr_assert(d == 0 || source.strides[d - 1] > source.strides[d]);
        cr_assert(d == 0 || source.strides[d - 1] != source.strides[d] * source.sizes[d],
                  "not collapsed: %s", show(view));
        product *= (size_t)source.sizes[d];
    }
    cr_assert_eq(product, source.elements);
    offsets_of(source.ndim, source.sizes, source.strides, source.elements, of_source);
    if (source.elements == addresses) {
        cr_assert_eq(memcmp(of_source, sorted, addresses * sizeof *sorted), 0, "%s", show(view));
    } else {
        cr_assert(source.ndim == 1 && source.strides[0] == 1, "%s", show(view));
        cr_assert_eq(source.elements, (size_t)span, "%s", show(view));
    }

    int64_t strides[MESA_MAX_DIMS];
    mesa_layout_restored_strides(view, &source, strides);
    offsets_of(view->ndim, view->sizes, strides, view->elements, restored);
    for (size_t e = 0; e < view->elements; e++) {
        cr_assert(restored[e] >= 0 && (size_t)restored[e] < source.elements, "%s", show(view));
        cr_assert_eq(of_source[restored[e]], offsets[e], "%s, index %zu", show(view), e);
    }
    for (int d = 0; d < view->ndim; d++)
        cr_assert(view->strides[d] != 0 || strides[d] == 0);
    if (source.ndim == 1 && source.strides[0] == 1)
        cr_assert_eq(memcmp(strides, view->strides, (size_t)view->ndim * sizeof *strides), 0);
}

static struct mesa_view random_view(void) {
    int64_t sizes[MESA_MAX_DIMS];
    int ndim = (int)draw(6);
    for (int d = 0; d < ndim; d++)
        sizes[d] = draw(40) == 0 ? 0 : 1 + (int64_t)draw(ndim > 3 ? 4 : 9);
    struct mesa_view view = view_of(ndim, sizes);
    view.data = (const char *)storage + draw(1000) * 4;
    for (uint64_t steps = draw(6); steps > 0 && view.ndim > 0 && view.elements > 0; steps--) {
        int d = (int)draw((uint64_t)view.ndim);
        int64_t size = view.sizes[d];
        switch (draw(6)) {
        case 0:
        case 1:
            view = transpose(view, d, (int)draw((uint64_t)view.ndim));
            break;
        case 2: {
            int64_t begin = (int64_t)draw((uint64_t)size), step = 1 + (int64_t)draw(3);
            int64_t most = (size - begin + step - 1) / step;
            view = slice(view, d, begin, 1 + (int64_t)draw((uint64_t)most), step);
            break;
        }
        case 3:
            if (view.elements * 3 <= MOST_ELEMENTS)
                view = insert(view, d, 1 + (int64_t)draw(3), 0);
            break;
        case 4:
            view = insert(view, d, 1, (int64_t)draw(5) * 7);
            break;
        default: {
            int64_t window = 1 + (int64_t)draw((uint64_t)size);
            if (view.elements * (size_t)window <= MOST_ELEMENTS)
                view = unfold(view, d, window, 1 + (int64_t)draw(3));
        }
        }
    }
    return view;
}

Test(layout, source_covers_each_address_once) {
    for (int i = 0; i < 20000; i++) {
        struct mesa_view view = random_view();
        check_source(&view);
    }
}

Test(layout, source_of_arbitrary_strides) {
    for (int i = 0; i < 20000; i++) {
        struct mesa_view view = random_view();
        for (int d = 0; d < view.ndim; d++)
            view.strides[d] = (int64_t)draw(12);
        check_source(&view);
    }
}

static struct mesa_source source_of(const struct mesa_view *view) {
    struct mesa_source source;
    cr_assert_eq(mesa_layout_source(view, &source), MESA_OK, "%s", show(view));
    return source;
}

Test(layout, same_elements_same_source) {
    struct mesa_view output = transpose(VIEW(8, 197, 3, 64), 1, 2); /* (B,H,N,D) */
    struct mesa_view rows = VIEW(8 * 197, 3 * 64);
    struct mesa_source a = source_of(&output), b = source_of(&rows);
    cr_assert(mesa_source_equal(&a, &b));
    cr_assert_eq(mesa_source_key(&a), mesa_source_key(&b));
    cr_assert_eq(a.ndim, 1);

    b.dtype = MESA_BF16;
    cr_assert(!mesa_source_equal(&a, &b));
    cr_assert_neq(mesa_source_key(&a), mesa_source_key(&b));
    b = a;
    b.data = (const char *)b.data + 4;
    cr_assert(!mesa_source_equal(&a, &b));
    cr_assert_neq(mesa_source_key(&a), mesa_source_key(&b));
    b = a;
    b.sizes[0]++;
    cr_assert(!mesa_source_equal(&a, &b));
    cr_assert_neq(mesa_source_key(&a), mesa_source_key(&b));
}

Test(layout, equal_means_same_elements) {
    static int64_t a[MOST_ELEMENTS], b[MOST_ELEMENTS];
    int equal = 0;
    for (int i = 0; i < 20000; i++) {
        struct mesa_view one = random_view(), other = random_view();
        struct mesa_source x, y;
        if (mesa_layout_source(&one, &x) != MESA_OK || mesa_layout_source(&other, &y) != MESA_OK)
            continue;
        offsets_of(x.ndim, x.sizes, x.strides, x.elements, a);
        offsets_of(y.ndim, y.sizes, y.strides, y.elements, b);
        y.data = x.data;
        bool same = x.elements == y.elements && memcmp(a, b, x.elements * sizeof *a) == 0;
        cr_assert_eq(same, mesa_source_equal(&x, &y));
        cr_assert_eq(same, mesa_source_key(&x) == mesa_source_key(&y));
        equal += same;
    }
    cr_assert_gt(equal, 10);
}

Test(layout, qkv_slices_hold_their_own_elements) {
    struct mesa_view qkv = VIEW(2, 5, 3, 4, 8); /* (B,N,3,H,D) */
    for (int i = 0; i < 3; i++) {
        struct mesa_view q = transpose(drop(slice(qkv, 2, i, 1, 1), 2), 1, 2);
        struct mesa_source source = source_of(&q);
        cr_assert_eq(source.elements, 2u * 5 * 4 * 8);
        cr_assert_eq(source.ndim, 2); /* runs of H*D, three times as far apart */
        cr_assert_eq(source.sizes[1], 32);
        cr_assert_eq(source.strides[0], 96);
        cr_assert_eq(source.data, (const void *)(storage + i * 32 * 4));
        check_source(&q);
    }
}

Test(layout, odd_views_are_declined) {
    struct mesa_view view = VIEW(3, 4);
    struct mesa_source source;
    view.strides[0] = -4;
    cr_assert_eq(mesa_layout_source(&view, &source), MESA_DECLINED);
    view = VIEW(3, 4);
    view.dtype = MESA_DTYPE_OTHER;
    cr_assert_eq(mesa_layout_source(&view, &source), MESA_DECLINED);
    view = VIEW(3, 4);
    view.ndim = MESA_MAX_DIMS + 1;
    cr_assert_eq(mesa_layout_source(&view, &source), MESA_DECLINED);
    view = VIEW(3, 4);
    view.strides[0] = INT64_MAX / 2;
    view.strides[1] = INT64_MAX / 3;
    cr_assert_eq(mesa_layout_source(&view, &source), MESA_DECLINED);
    view = VIEW(2);
    view.strides[0] = INT64_MAX;
    cr_assert_eq(mesa_layout_source(&view, &source), MESA_DECLINED);
}

/* ---- heads ------------------------------------------------------------------------------------ */

static struct mesa_heads heads_of(struct mesa_view view, enum mesa_head_layout expected,
                                  struct mesa_head_hint hint) {
    return mesa_layout_heads(&view, expected, &hint);
}

static void expect_heads(struct mesa_heads heads, int64_t count, int64_t head_size) {
    cr_assert_neq(heads.layout, MESA_HEADS_NONE);
    cr_assert_eq(heads.heads, count);
    cr_assert_eq(heads.head_size, head_size);
}

Test(layout, finds_heads) {
    struct mesa_head_hint none = {0}, hint = {.batch = 2, .heads = 3, .head_size = 64};
    expect_heads(heads_of(VIEW(2, 3, 5, 64), MESA_HEADS_BHND, none), 3, 64);
    expect_heads(heads_of(VIEW(2, 3, 5, 7), MESA_HEADS_MAP, none), 3, 7);
    expect_heads(heads_of(VIEW(6, 5, 7), MESA_HEADS_MAP, none), 6, 7);
    expect_heads(heads_of(VIEW(6, 5, 7), MESA_HEADS_MAP, hint), 3, 7);
    expect_heads(heads_of(VIEW(6, 5, 64), MESA_HEADS_FOLDED, hint), 3, 64);
    expect_heads(heads_of(VIEW(6, 64, 5), MESA_HEADS_FOLDED, hint), 3, 64);
    expect_heads(heads_of(VIEW(12, 5, 64), MESA_HEADS_FOLDED, hint), 12, 64); /* another batch */
    expect_heads(heads_of(VIEW(7, 5, 64), MESA_HEADS_FOLDED, hint), 7, 64);
    expect_heads(heads_of(VIEW(10, 192), MESA_HEADS_LINEAR, hint), 3, 64);

    struct mesa_view vector = VIEW(192);
    cr_assert_eq(mesa_layout_heads(&vector, MESA_HEADS_BHND, &hint).layout, MESA_HEADS_NONE);
    cr_assert_eq(mesa_layout_heads(&vector, MESA_HEADS_MAP, NULL).layout, MESA_HEADS_NONE);
    cr_assert_eq(mesa_layout_heads(&vector, MESA_HEADS_LINEAR, NULL).layout, MESA_HEADS_NONE);
    cr_assert_eq(mesa_layout_heads(&vector, MESA_HEADS_LINEAR, &none).layout, MESA_HEADS_NONE);
    cr_assert_eq(mesa_layout_heads(&vector, MESA_HEADS_NONE, &hint).layout, MESA_HEADS_NONE);
    struct mesa_view scalar = view_of(0, NULL);
    cr_assert_eq(mesa_layout_heads(&scalar, MESA_HEADS_LINEAR, &hint).layout, MESA_HEADS_NONE);
    cr_assert_eq(heads_of(VIEW(10, 193), MESA_HEADS_LINEAR, hint).layout, MESA_HEADS_NONE);
}

/* ---- groups ----------------------------------------------------------------------------------- */

/* Group of element e of the dense order, as codec.h defines groupings. */
static size_t group_at(const struct mesa_plan *plan, size_t e) {
    if (plan->grouping == MESA_GROUP_CYCLE) {
        size_t r = e / plan->run;
        return r % plan->cycle + (plan->period == 0 ? 0 : plan->cycle * (r / plan->period));
    }
    size_t groups = mesa_group_count(plan->row, plan->group), j = 0;
    while (e % plan->row >= mesa_group_begin(plan->row, groups, j + 1))
        j++;
    return e / plan->row * groups + j;
}

static void check_plan(const struct mesa_plan *plan, const struct mesa_source *source) {
    if (plan->grouping == MESA_GROUP_BLOCK) {
        cr_assert_gt(plan->row, 0);
        cr_assert_eq(source->elements % plan->row, 0);
        cr_assert((plan->group >= 16 && plan->group <= 1024) || plan->group == plan->row);
    } else {
        cr_assert(plan->run > 0 && plan->cycle > 0);
        cr_assert_eq(source->elements % (plan->run * plan->cycle), 0);
        cr_assert_eq(plan->period % plan->cycle, 0);
        if (plan->period > 0)
            cr_assert_eq(source->elements / plan->run % plan->period, 0);
    }
}

static struct mesa_plan plan_of(const struct mesa_view *view, const struct mesa_heads *heads,
                                enum mesa_group_by by, size_t group, int channel_dim) {
    struct mesa_plan plan = {0};
    struct mesa_source source = source_of(view);
    mesa_layout_group(view, &source, heads, by, group, channel_dim, &plan);
    check_plan(&plan, &source);
    return plan;
}

static int64_t head_at(const struct mesa_view *view, const struct mesa_heads *heads, size_t e) {
    int64_t index[MESA_MAX_DIMS];
    for (int d = view->ndim - 1; d >= 0; d--) {
        index[d] = (int64_t)(e % (size_t)view->sizes[d]);
        e /= (size_t)view->sizes[d];
    }
    if (heads->layout == MESA_HEADS_LINEAR)
        return index[view->ndim - 1] / heads->head_size;
    return view->ndim == 4 ? index[1] : index[0] % heads->heads;
}

/* Whatever is asked for (but one group for all), no two heads share a group, and head groups are one
 * for each head. */
static void check_heads_apart(const struct mesa_view *view, enum mesa_head_layout expected,
                              const struct mesa_head_hint *hint) {
    static int64_t restored[MOST_ELEMENTS];
    struct mesa_heads heads = mesa_layout_heads(view, expected, hint);
    struct mesa_source source = source_of(view);
    cr_assert_eq(heads.layout, expected);
    int64_t strides[MESA_MAX_DIMS];
    mesa_layout_restored_strides(view, &source, strides);
    offsets_of(view->ndim, view->sizes, strides, view->elements, restored);
    bool expanded = view->ndim == 4 && view->strides[1] == 0;
    for (enum mesa_group_by by = MESA_BY_BLOCK; by < MESA_BY_TENSOR; by++) {
        int channel_dim = (int)draw((uint64_t)view->ndim) - (draw(2) == 0 ? view->ndim : 0);
        struct mesa_plan plan = plan_of(view, &heads, by, 16u << draw(7), channel_dim);
        static int64_t head_of[MOST_ELEMENTS];
        memset(head_of, 0xff, sizeof head_of);
        for (size_t e = 0; e < view->elements && !expanded; e++) {
            size_t group = group_at(&plan, (size_t)restored[e]);
            cr_assert_lt(group, MOST_ELEMENTS);
            int64_t head = head_at(view, &heads, e);
            cr_assert(head_of[group] == -1 || head_of[group] == head, "by %d: %s", (int)by,
                      show(view));
            head_of[group] = head;
        }
        if (by == MESA_BY_HEAD && heads.heads > 1 && !expanded &&
            source.elements / (size_t)heads.heads >= MESA_GROUP_UNIT) {
            cr_assert_eq(plan.grouping, MESA_GROUP_CYCLE);
            cr_assert_eq(plan.cycle, (size_t)heads.heads, "%s", show(view));
            cr_assert_eq(plan.period, 0);
        }
    }
}

Test(layout, heads_never_share_a_group) {
    for (int i = 0; i < 5000; i++) {
        int64_t batch = 1 + (int64_t)draw(3), heads = 1 + (int64_t)draw(4);
        int64_t tokens = 1 + (int64_t)draw(7);
        int64_t head_size = draw(2) == 0 ? 1 + (int64_t)draw(8) : 16 * (1 + (int64_t)draw(3));
        struct mesa_head_hint hint = {batch, heads, head_size};
        struct mesa_view bhnd = VIEW(batch, heads, tokens, head_size);
        if (draw(2) == 0)
            bhnd = transpose(VIEW(batch, tokens, heads, head_size), 1, 2);
        if (draw(2) == 0)
            bhnd = transpose(bhnd, (int)draw(4), (int)draw(4));
        if (draw(4) == 0)
            bhnd.strides[1] = bhnd.sizes[1] == 1 ? bhnd.strides[1] : 0;
        check_heads_apart(&bhnd, MESA_HEADS_BHND, &hint);
        check_heads_apart(&bhnd, MESA_HEADS_MAP, &hint);

        struct mesa_view packed = VIEW(batch, tokens, 3, heads, head_size);
        struct mesa_view key = transpose(drop(slice(packed, 2, 1, 1, 1), 2), 1, 2);
        check_heads_apart(&key, MESA_HEADS_BHND, &hint);

        struct mesa_view folded = VIEW(batch * heads, tokens, head_size);
        if (draw(2) == 0)
            folded = transpose(folded, 1, 2);
        if (draw(2) == 0)
            folded = transpose(folded, 0, (int)draw(3));
        struct mesa_head_hint other = draw(2) == 0 ? hint : (struct mesa_head_hint){0};
        check_heads_apart(&folded, MESA_HEADS_FOLDED, &other);
        check_heads_apart(&folded, MESA_HEADS_MAP, &other);

        struct mesa_view linear = VIEW(batch * tokens, heads * head_size);
        if (draw(3) == 0)
            linear = transpose(VIEW(heads * head_size, batch * tokens), 0, 1);
        check_heads_apart(&linear, MESA_HEADS_LINEAR, &hint);
    }
}

Test(layout, blocks_stay_within_rows) {
    static int64_t restored[MOST_ELEMENTS], row_of[MOST_ELEMENTS];
    for (int i = 0; i < 5000; i++) {
        struct mesa_view view = random_view();
        struct mesa_source source;
        if (mesa_layout_source(&view, &source) != MESA_OK)
            continue;
        struct mesa_plan plan = plan_of(&view, NULL, draw(2) ? MESA_BY_BLOCK : MESA_BY_ROW, 128, 1);
        cr_assert_eq(plan.grouping, MESA_GROUP_BLOCK);
        int inner = -1;
        for (int d = 0; d < view.ndim; d++) {
            if (view.sizes[d] > 1 && view.strides[d] > 0 &&
                (inner < 0 || view.strides[d] < view.strides[inner]))
                inner = d;
        }
        if (inner < 0 || view.sizes[inner] < MESA_GROUP_UNIT)
            continue;
        int64_t strides[MESA_MAX_DIMS];
        mesa_layout_restored_strides(&view, &source, strides);
        offsets_of(view.ndim, view.sizes, strides, view.elements, restored);
        memset(row_of, 0xff, sizeof row_of);
        for (size_t e = 0; e < view.elements; e++) {
            size_t group = group_at(&plan, (size_t)restored[e]);
            int64_t row = restored[e] / view.sizes[inner];
            cr_assert(row_of[group] == -1 || row_of[group] == row, "%s", show(&view));
            row_of[group] = row;
        }
    }
}

static void expect_block(struct mesa_plan plan, size_t row, size_t group) {
    cr_assert_eq(plan.grouping, MESA_GROUP_BLOCK);
    cr_assert_eq(plan.row, row, "row %zu, not %zu", plan.row, row);
    cr_assert_eq(plan.group, group, "group %zu, not %zu", plan.group, group);
}

static void expect_cycle(struct mesa_plan plan, size_t run, size_t cycle, size_t period) {
    cr_assert_eq(plan.grouping, MESA_GROUP_CYCLE);
    cr_assert_eq(plan.run, run, "run %zu, not %zu", plan.run, run);
    cr_assert_eq(plan.cycle, cycle, "cycle %zu, not %zu", plan.cycle, cycle);
    cr_assert_eq(plan.period, period, "period %zu, not %zu", plan.period, period);
}

Test(layout, groups_of_usual_tensors) {
    struct mesa_view tokens = VIEW(8, 197, 192);
    struct mesa_plan plan = plan_of(&tokens, NULL, MESA_BY_BLOCK, 128, -1);
    expect_block(plan, 192, 128);
    cr_assert_eq(mesa_group_count(plan.row, plan.group), 1); /* one group of 192, not 128 + 64 */
    expect_block(plan_of(&tokens, NULL, MESA_BY_ROW, 128, -1), 192, 192);
    expect_cycle(plan_of(&tokens, NULL, MESA_BY_CHANNEL, 128, -1), 1, 192, 0);
    expect_cycle(plan_of(&tokens, NULL, MESA_BY_TENSOR, 128, -1), 8 * 197 * 192, 1, 0);
    expect_block(plan_of(&tokens, NULL, MESA_BY_HEAD, 128, -1), 192, 128); /* no heads */

    struct mesa_view image = VIEW(4, 64, 56, 56);
    expect_block(plan_of(&image, NULL, MESA_BY_BLOCK, 128, 1), 56 * 56, 128); /* a plane */
    expect_cycle(plan_of(&image, NULL, MESA_BY_CHANNEL, 128, 1), 56 * 56, 64, 0);
    struct mesa_view last = transpose(transpose(VIEW(4, 56, 56, 64), 2, 3), 1, 2);
    cr_assert_eq(last.sizes[1], 64);
    expect_block(plan_of(&last, NULL, MESA_BY_BLOCK, 128, 1), 64, 128);
    expect_cycle(plan_of(&last, NULL, MESA_BY_CHANNEL, 128, 1), 1, 64, 0);
    struct mesa_view small = VIEW(4, 64, 7, 7);
    expect_block(plan_of(&small, NULL, MESA_BY_BLOCK, 128, 1), 49, 128);
    expect_block(plan_of(&small, NULL, MESA_BY_ROW, 128, 1), 49, MESA_GROUP_UNIT);

    struct mesa_view vector = VIEW(1000);
    expect_block(plan_of(&vector, NULL, MESA_BY_CHANNEL, 64, 0), 1000, 64);
    struct mesa_view scalar = view_of(0, NULL);
    expect_block(plan_of(&scalar, NULL, MESA_BY_CHANNEL, 64, -1), 1, 64);
    struct mesa_view few = VIEW(4, 512); /* a scale for four elements saves nothing */
    expect_block(plan_of(&few, NULL, MESA_BY_CHANNEL, 64, -1), 512, 64);

    struct mesa_view windows = unfold(VIEW(64, 100), 1, 3, 1); /* held as its span */
    expect_block(plan_of(&windows, NULL, MESA_BY_CHANNEL, 64, 1), 6400, 64);
}

Test(layout, groups_of_heads) {
    struct mesa_head_hint hint = {.batch = 8, .heads = 3, .head_size = 64};
    struct mesa_view query = VIEW(8, 3, 197, 64), output = transpose(VIEW(8, 197, 3, 64), 1, 2);
    struct mesa_heads heads = mesa_layout_heads(&query, MESA_HEADS_BHND, &hint);
    expect_cycle(plan_of(&query, &heads, MESA_BY_HEAD, 128, -1), 197 * 64, 3, 0);
    expect_cycle(plan_of(&output, &heads, MESA_BY_HEAD, 128, -1), 64, 3, 0);
    /* a scale for two tokens of a head, or for a few more where that comes out even */
    expect_cycle(plan_of(&output, &heads, MESA_BY_BLOCK, 128, -1), 64, 3, 2 * 3);
    expect_cycle(plan_of(&output, &heads, MESA_BY_BLOCK, 192, -1), 64, 3, 4 * 3);
    expect_block(plan_of(&output, &heads, MESA_BY_BLOCK, 96, -1), 64, 96);
    expect_block(plan_of(&output, &heads, MESA_BY_ROW, 128, -1), 64, 64);
    expect_block(plan_of(&query, &heads, MESA_BY_BLOCK, 128, -1), 197 * 64, 128);
    /* channels of a head, heads next to them in memory or not */
    expect_cycle(plan_of(&output, &heads, MESA_BY_CHANNEL, 128, -1), 1, 3 * 64, 0);
    expect_cycle(plan_of(&query, &heads, MESA_BY_CHANNEL, 128, -1), 1, 64, 197 * 64);

    struct mesa_view linear = VIEW(8 * 197, 192);
    heads = mesa_layout_heads(&linear, MESA_HEADS_LINEAR, &hint);
    expect_cycle(plan_of(&linear, &heads, MESA_BY_HEAD, 128, -1), 64, 3, 0);
    expect_block(plan_of(&linear, &heads, MESA_BY_ROW, 128, -1), 64, 64);
    expect_block(plan_of(&linear, &heads, MESA_BY_BLOCK, 32, -1), 64, 32);

    struct mesa_view map = VIEW(24, 197, 197);
    heads = mesa_layout_heads(&map, MESA_HEADS_MAP, &hint);
    expect_cycle(plan_of(&map, &heads, MESA_BY_HEAD, 128, -1), 197 * 197, 3, 0);
    expect_block(plan_of(&map, &heads, MESA_BY_ROW, 128, -1), 197, 197);

    /* heads of 16: rows of 32 would mix two heads, so groups gather one head of several tokens */
    struct mesa_view tiny = transpose(VIEW(4, 10, 6, 16), 1, 2);
    heads = mesa_layout_heads(&tiny, MESA_HEADS_BHND, NULL);
    expect_cycle(plan_of(&tiny, &heads, MESA_BY_BLOCK, 128, -1), 16, 6, 8 * 6);
    struct mesa_view major = VIEW(4, 6, 10, 16);
    expect_block(plan_of(&major, &heads, MESA_BY_BLOCK, 128, -1), 160, 128);
}

static struct mesa_plan channels_of(struct mesa_view view, enum mesa_group_by by, size_t group) {
    struct mesa_heads heads = mesa_layout_heads(&view, MESA_HEADS_CHANNELS, NULL);
    return plan_of(&view, &heads, by, group, 1);
}

Test(layout, groups_of_channels_apart) {
    expect_block(channels_of(VIEW(8, 64, 56, 56), MESA_BY_BLOCK, 64), 56 * 56, 64);
    expect_block(channels_of(VIEW(8, 64, 8, 8), MESA_BY_BLOCK, 64), 64, 64);
    expect_cycle(channels_of(VIEW(8, 64, 8, 8), MESA_BY_BLOCK, 128), 64, 64, 2 * 64);
    expect_cycle(channels_of(VIEW(32, 64, 2, 2), MESA_BY_BLOCK, 64), 4, 64, 16 * 64);
    expect_cycle(channels_of(VIEW(8, 64, 2, 2), MESA_BY_BLOCK, 64), 4, 64, 0);
    expect_cycle(channels_of(VIEW(8, 64, 2, 2), MESA_BY_CHANNEL, 64), 4, 64, 0);
    expect_block(channels_of(VIEW(7, 64, 2, 2), MESA_BY_BLOCK, 64), 256, 64); /* too few */
    expect_block(channels_of(VIEW(8, 64), MESA_BY_BLOCK, 64), 64, 64);
    expect_cycle(channels_of(VIEW(256, 64), MESA_BY_BLOCK, 64), 1, 64, 64 * 64);
    /* channels_last */
    struct mesa_view last = transpose(transpose(VIEW(8, 14, 14, 64), 2, 3), 1, 2);
    expect_cycle(channels_of(last, MESA_BY_BLOCK, 64), 1, 64, 98 * 64);
}

/* What is planned must be something that the codec takes, or tensors would be kept for nothing. */
Test(layout, codec_takes_plans) {
    static const enum mesa_head_layout kinds[] = {MESA_HEADS_NONE, MESA_HEADS_BHND,
                                                  MESA_HEADS_CHANNELS};
    int checked = 0;
    for (int i = 0; i < 20000; i++) {
        int64_t sizes[4];
        for (int d = 0; d < 4; d++)
            sizes[d] = 1 + (int64_t)draw(draw(3) == 0 ? 70 : 12);
        struct mesa_view view = view_of(4, sizes);
        view = transpose(view, (int)draw(4), (int)draw(4));
        struct mesa_heads heads = mesa_layout_heads(&view, kinds[draw(3)], NULL);
        enum mesa_group_by by = (enum mesa_group_by)draw(MESA_BY_TENSOR + 1);
        struct mesa_plan plan = plan_of(&view, &heads, by, 16u << draw(7), (int)draw(4));
        size_t heads_count = heads.layout == MESA_HEADS_NONE ? 1 : (size_t)heads.heads;
        if (view.elements / heads_count < 256)
            continue;
        plan.codec = &mesa_codec_affine;
        plan.dtype = MESA_F32;
        plan.elements = view.elements;
        for (plan.bits = 1; plan.bits <= 8; plan.bits++)
            cr_assert_gt(plan.codec->bound_bytes(&plan), 0, "by %d, %u bits: %s", (int)by,
                         plan.bits, show(&view));
        checked++;
    }
    cr_assert_gt(checked, 1000);
}

/* ---- describe ---------------------------------------------------------------------------------- */

Test(layout, describes_in_a_line) {
    struct mesa_head_hint hint = {.batch = 2, .heads = 3, .head_size = 64};
    struct mesa_view view = slice(transpose(VIEW(2, 5, 3, 64), 1, 2), 2, 0, 4, 1);
    struct mesa_source source = source_of(&view);
    struct mesa_heads heads = mesa_layout_heads(&view, MESA_HEADS_BHND, &hint);
    struct mesa_plan plan = plan_of(&view, &heads, MESA_BY_BLOCK, 64, -1);
    static const char expected[] = "(2,3,4,64) strides (960,64,192,1) of float32, 2 runs of 768, "
                                   "3 heads of 64, groups of 64 in rows of 64";
    char text[256];
    mesa_layout_describe(&view, &source, &heads, &plan, text, sizeof text);
    cr_assert_str_eq(text, expected);
    for (size_t size = 1; size < sizeof expected; size++) {
        char cut[256];
        memset(cut, '#', sizeof cut);
        mesa_layout_describe(&view, &source, &heads, &plan, cut, size);
        cr_assert_eq(strlen(cut), size - 1);
        cr_assert_eq(cut[size], '#');
        cr_assert_eq(memcmp(cut, expected, size - 1), 0);
    }
    mesa_layout_describe(&view, &source, &heads, &plan, text, 0);
    cr_assert_str_eq(text, expected);
}
