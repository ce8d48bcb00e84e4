/* Indices of max pooling. Each names an input pixel that lies near its output pixel times the step of
 * the window: what is left after taking that away is one of a few offsets (nine for a window of 3x3),
 * and the number of an offset takes a few bits where the index takes 64. Exact: an index is its base
 * plus an entry of a table, so whatever does not fit the table is noticed and declined. What the plan
 * says about the shape, and how the offsets are cut into rows and columns, decides about size only.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/walk.h"

#include "codec/kernels/element.h"

#include <stdatomic.h>
#include <string.h>

/* What plan->found holds: steps in 1/2^16 pixels, and the offsets that have codes. */
enum { FOUND_STEPS, FOUND_FIRST, FOUND_SPAN, FOUND_BITS };

#define STEP_ONE (1u << 16)

/* Offsets reach so many rows and columns to either side at most: all codes fit a byte. */
#define REACH 8

/* Of the input and output planes. Keeps the products below in range. */
#define MOST_PIXELS_ASIDE (1u << 14)

/* Codes pass through a buffer of this many bytes. */
#define CODES_AT_ONCE 4096

/* The elements that are looked at to choose the step and to guess the offsets: more than a row. */
#define SAMPLE_ELEMENTS 4096

/* Bounds the rows of offsets times the width of the input: what finds codes stays in the nearest
 * cache. */
#define MOST_PLACES (16u << 10)

#define NO_CODE UINT8_MAX

struct steps {
    uint32_t y, x;
};

/* Rectangle of offsets. Rows and columns are counted from the lowest that could be told, see
 * `origin` below. */
struct offsets {
    uint32_t first_row, first_column;
    uint32_t rows, columns; /* 0: none yet */
};

struct window {
    size_t element_bytes;
    size_t in_width, out_width, out_height;
    struct steps steps;
    uint64_t origin; /* added to an offset so that it is row * in_width + column, both >= 0 */
    struct offsets offsets;
    unsigned bits;
};

static bool is_side(size_t pixels) {
    return pixels >= 1 && pixels <= MOST_PIXELS_ASIDE;
}

static size_t window_bound_bytes(const struct mesa_plan *plan) {
    if (plan->dtype != MESA_I32 && plan->dtype != MESA_I64)
        return 0;
    if (!is_side(plan->window_in_width) || !is_side(plan->window_in_height) ||
        !is_side(plan->window_out_width) || !is_side(plan->window_out_height) ||
        plan->elements % (plan->window_out_width * plan->window_out_height) != 0)
        return 0;
    return mesa_code_row_bytes(plan->elements, 8);
}

static struct window window_of(const struct mesa_plan *plan, struct steps steps) {
    size_t width = plan->window_in_width;
    return (struct window){
        .element_bytes = mesa_dtype_bytes(plan->dtype),
        .in_width = width,
        .out_width = plan->window_out_width,
        .out_height = plan->window_out_height,
        .steps = steps,
        .origin = REACH * width + mesa_smaller(REACH, width / 2),
    };
}

/* ---- where the elements are -------------------------------------------------------------------- */

/* A stretch of elements in one row of an output plane. */
struct stretch {
    size_t n;
    uint64_t base; /* index of the input pixel at the left end of the row */
    uint64_t x;    /* place of the first element in the row, in 1/2^16 input pixels */
};

/* Counts through the rows of the planes from element number `at` on. */
struct position {
    size_t column, row;
};

static struct position position_of(const struct window *window, size_t at) {
    size_t rows = at / window->out_width;
    return (struct position){at % window->out_width, rows % window->out_height};
}

static struct stretch next_stretch(const struct window *window, struct position *position,
                                   size_t most) {
    struct stretch stretch = {
        .n = mesa_smaller(window->out_width - position->column, most),
        .base = ((uint64_t)position->row * window->steps.y / STEP_ONE) * window->in_width,
        .x = (uint64_t)position->column * window->steps.x,
    };
    position->column += stretch.n;
    if (position->column == window->out_width) {
        position->column = 0;
        position->row = position->row + 1 == window->out_height ? 0 : position->row + 1;
    }
    return stretch;
}

/* ---- encoding ---------------------------------------------------------------------------------- */

MESA_ALWAYS_INLINE uint64_t load_index(size_t bytes, const char *src) {
    int32_t narrow;
    int64_t wide;
    if (bytes == 4) {
        memcpy(&narrow, src, 4);
        return (uint64_t)(int64_t)narrow;
    }
    memcpy(&wide, src, 8);
    return (uint64_t)wide;
}

struct extent {
    uint32_t top, bottom, left, right;
    bool outside;
};

MESA_ALWAYS_INLINE void widen_extent(size_t bytes, const struct window *window,
                                     const struct stretch *stretch, const char *src,
                                     struct extent *extent) {
    const uint32_t width = (uint32_t)window->in_width, limit = 2 * REACH * width;
    /* The product with the reciprocal is at most limit * width / 2^32 above the quotient, which is
     * below 1 for every width that is taken, and whole numbers are never missed: no division. */
    const uint64_t reciprocal = ((uint64_t)1 << 32) / width + 1;
    struct extent all = *extent;
    for (size_t i = 0; i < stretch->n; i++) {
        uint64_t x = (stretch->x + i * window->steps.x) / STEP_ONE;
        uint64_t offset = load_index(bytes, src + i * bytes) - stretch->base - x + window->origin;
        uint32_t place = offset < limit ? (uint32_t)offset : limit;
        uint32_t row = (uint32_t)(place * reciprocal >> 32), column = place - row * width;
        all.outside |= place == limit;
        all.top = row < all.top ? row : all.top;
        all.bottom = row > all.bottom ? row : all.bottom;
        all.left = column < all.left ? column : all.left;
        all.right = column > all.right ? column : all.right;
    }
    *extent = all;
}

struct extents {
    const struct window *window;
    _Atomic uint32_t top, bottom, left, right;
};

static void lower(_Atomic uint32_t *least, uint32_t value) {
    uint32_t seen = atomic_load_explicit(least, memory_order_relaxed);
    while (value < seen && !atomic_compare_exchange_weak(least, &seen, value))
        ;
}

static void raise(_Atomic uint32_t *most, uint32_t value) {
    uint32_t seen = atomic_load_explicit(most, memory_order_relaxed);
    while (value > seen && !atomic_compare_exchange_weak(most, &seen, value))
        ;
}

static bool widen_extents(void *context, const void *elements, size_t first, size_t n) {
    struct extents *all = context;
    const struct window *window = all->window;
    struct extent extent = {.top = UINT32_MAX, .left = UINT32_MAX};
    struct position position = position_of(window, first);
    const char *src = elements;
    while (n > 0) {
        struct stretch stretch = next_stretch(window, &position, n);
        if (window->element_bytes == 4)
            widen_extent(4, window, &stretch, src, &extent);
        else
            widen_extent(8, window, &stretch, src, &extent);
        src += stretch.n * window->element_bytes;
        n -= stretch.n;
    }
    lower(&all->top, extent.top);
    lower(&all->left, extent.left);
    raise(&all->bottom, extent.bottom);
    raise(&all->right, extent.right);
    return !extent.outside;
}

/* The rectangle that all offsets lie in. No rows if one is out of reach. */
static struct offsets find_offsets(const struct window *window, const struct mesa_source *source,
                                   mesa_parallel_for *parallel) {
    struct extents all = {.window = window, .top = UINT32_MAX, .left = UINT32_MAX};
    if (!mesa_walk_source(source, parallel, widen_extents, &all))
        return (struct offsets){0};
    struct offsets offsets = {.first_row = all.top,
                              .first_column = all.left,
                              .rows = all.bottom - all.top + 1,
                              .columns = all.right - all.left + 1};
    return offsets.columns <= 2 * REACH && offsets.rows * window->in_width < MOST_PLACES
               ? offsets
               : (struct offsets){0};
}

/* 1..8; 9 if there is no rectangle or if it takes more, NO_CODE included. */
static unsigned bits_of(const struct offsets *offsets) {
    uint32_t codes = offsets->rows * offsets->columns;
    return codes == 0 || codes > NO_CODE ? 9
           : codes == 1                  ? 1
                                         : 32 - (unsigned)__builtin_clz(codes - 1);
}

/* The step that leaves the least offsets in the first elements. Ceiling and padding move the quotient
 * of the sizes off the step of a pooling layer to either side; adaptive pooling has the quotient. */
static struct window choose_window(const struct mesa_plan *plan, const struct mesa_source *source) {
    size_t in[2] = {plan->window_in_height, plan->window_in_width};
    size_t out[2] = {plan->window_out_height, plan->window_out_width};
    uint32_t candidates[3][2];
    for (int axis = 0; axis < 2; axis++) {
        size_t below = in[axis] < out[axis] ? 1 : in[axis] / out[axis];
        candidates[0][axis] = (uint32_t)below * STEP_ONE;
        candidates[1][axis] = (uint32_t)mesa_divide_up(in[axis], out[axis]) * STEP_ONE;
        candidates[2][axis] = (uint32_t)(in[axis] * STEP_ONE / out[axis]);
    }
    struct mesa_source sample = *source;
    sample.elements = mesa_smaller(source->elements, SAMPLE_ELEMENTS);
    sample.sizes[0] = (int64_t)sample.elements;
    struct window best = {.bits = UINT32_MAX};
    for (int i = 0; i < 3; i++) {
        struct window window = window_of(plan, (struct steps){candidates[i][0], candidates[i][1]});
        window.offsets = find_offsets(&window, &sample, NULL);
        window.bits = bits_of(&window.offsets);
        if (window.bits < best.bits)
            best = window;
    }
    return best;
}

struct encoding {
    const struct window *window;
    uint64_t origin; /* the window's, less the rows before the first that has codes */
    uint8_t *held;
    uint32_t places;
    uint8_t
        codes[MOST_PLACES + 1]; /* of the offset, as row * in_width + column; the last: NO_CODE */
};

static void fill_codes(struct encoding *encoding) {
    const struct window *window = encoding->window;
    const struct offsets *offsets = &window->offsets;
    encoding->origin = window->origin - offsets->first_row * window->in_width;
    encoding->places = offsets->rows * (uint32_t)window->in_width;
    memset(encoding->codes, NO_CODE, sizeof encoding->codes);
    for (uint32_t row = 0; row < offsets->rows; row++)
        for (uint32_t column = 0; column < offsets->columns; column++)
            encoding->codes[row * window->in_width + offsets->first_column + column] =
                (uint8_t)(row * offsets->columns + column);
}

/* False if an offset has no code. */
MESA_ALWAYS_INLINE bool encode_stretch(size_t bytes, const struct encoding *encoding,
                                       const struct stretch *stretch, const char *src,
                                       uint8_t *ret_codes) {
    const uint64_t shift = encoding->origin - stretch->base, step = encoding->window->steps.x;
    const uint32_t places = encoding->places;
    uint32_t seen = 0; /* bit 8 after NO_CODE */
    for (size_t i = 0; i < stretch->n; i++) {
        uint64_t offset =
            load_index(bytes, src + i * bytes) + shift - (stretch->x + i * step) / STEP_ONE;
        uint8_t code = encoding->codes[offset < places ? (uint32_t)offset : places];
        seen |= code + 1u;
        ret_codes[i] = code;
    }
    return seen <= NO_CODE;
}

static bool encode_window(void *context, const void *elements, size_t first, size_t n) {
    const struct encoding *encoding = context;
    const struct window *window = encoding->window;
    struct position position = position_of(window, first);
    const char *src = elements;
    uint8_t codes[CODES_AT_ONCE];
    bool fits = true;
    for (size_t at = 0; at < n && fits; at += CODES_AT_ONCE) {
        size_t count = mesa_smaller(n - at, CODES_AT_ONCE);
        for (size_t done = 0; done < count;) {
            struct stretch stretch = next_stretch(window, &position, count - done);
            fits &= window->element_bytes == 4
                        ? encode_stretch(4, encoding, &stretch, src, codes + done)
                        : encode_stretch(8, encoding, &stretch, src, codes + done);
            src += stretch.n * window->element_bytes;
            done += stretch.n;
        }
        mesa_kernels.pack_bits(codes, count, window->bits,
                               encoding->held + (first + at) / 8 * window->bits);
    }
    return fits;
}

/* Not if the plane has no more pixels than there are codes, either. */
static bool encode_all(const struct mesa_plan *plan, const struct window *window,
                       const struct mesa_source *source, mesa_parallel_for *parallel, void *held) {
    if (window->bits > 8 || plan->window_in_width * plan->window_in_height <= 1u << window->bits)
        return false;
    struct encoding encoding = {.window = window, .held = held};
    fill_codes(&encoding);
    return mesa_walk_source(source, parallel, encode_window, &encoding);
}

static enum mesa_status window_encode(struct mesa_plan *plan, const struct mesa_source *source,
                                      mesa_parallel_for *parallel, void *held, size_t *ret_bytes) {
    if (window_bound_bytes(plan) == 0 || source->ndim != 1 || source->strides[0] != 1)
        return MESA_DECLINED;
    struct window window = choose_window(plan, source);
    if (window.bits > 8)
        return MESA_DECLINED;
    if (!encode_all(plan, &window, source, parallel,
                    held)) { /* the first elements do not tell all */
        window.offsets = find_offsets(&window, source, parallel);
        window.bits = bits_of(&window.offsets);
        if (!encode_all(plan, &window, source, parallel, held))
            return MESA_DECLINED;
    }
    const struct offsets *offsets = &window.offsets;
    plan->found[FOUND_STEPS] = (uint64_t)window.steps.y << 32 | window.steps.x;
    plan->found[FOUND_FIRST] = (uint64_t)offsets->first_row << 32 | offsets->first_column;
    plan->found[FOUND_SPAN] = (uint64_t)offsets->rows << 32 | offsets->columns;
    plan->found[FOUND_BITS] = window.bits;
    *ret_bytes = mesa_code_row_bytes(plan->elements, window.bits);
    return MESA_OK;
}

/* ---- decoding ---------------------------------------------------------------------------------- */

struct decoding {
    const struct window *window;
    const uint8_t *held;
    char *elements;
    uint64_t offsets[256]; /* of each code */
};

MESA_ALWAYS_INLINE void decode_stretch(size_t bytes, const struct decoding *decoding,
                                       const struct stretch *stretch, const uint8_t *codes,
                                       char *dst) {
    for (size_t i = 0; i < stretch->n; i++) {
        uint64_t index = stretch->base + (stretch->x + i * decoding->window->steps.x) / STEP_ONE +
                         decoding->offsets[codes[i]];
        uint32_t narrow = (uint32_t)index;
        if (bytes == 4)
            memcpy(dst + i * 4, &narrow, 4);
        else
            memcpy(dst + i * 8, &index, 8);
    }
}

static void decode_elements(void *context, size_t begin, size_t end) {
    const struct decoding *decoding = context;
    const struct window *window = decoding->window;
    struct position position = position_of(window, begin);
    char *dst = decoding->elements + begin * window->element_bytes;
    uint8_t codes[CODES_AT_ONCE];
    for (size_t at = begin; at < end; at += CODES_AT_ONCE) {
        size_t count = mesa_smaller(end - at, CODES_AT_ONCE);
        mesa_kernels.unpack_bits(decoding->held + at / 8 * window->bits, count, window->bits,
                                 codes);
        for (size_t done = 0; done < count;) {
            struct stretch stretch = next_stretch(window, &position, count - done);
            if (window->element_bytes == 4)
                decode_stretch(4, decoding, &stretch, codes + done, dst);
            else
                decode_stretch(8, decoding, &stretch, codes + done, dst);
            dst += stretch.n * window->element_bytes;
            done += stretch.n;
        }
    }
}

static void window_decode(const struct mesa_plan *plan, const void *held,
                          mesa_parallel_for *parallel, void *ret_elements) {
    struct steps steps = {(uint32_t)(plan->found[FOUND_STEPS] >> 32),
                          (uint32_t)plan->found[FOUND_STEPS]};
    struct window window = window_of(plan, steps);
    window.bits = (unsigned)plan->found[FOUND_BITS];
    struct decoding decoding = {.window = &window, .held = held, .elements = ret_elements};
    uint64_t first_row = plan->found[FOUND_FIRST] >> 32;
    uint32_t first_column = (uint32_t)plan->found[FOUND_FIRST];
    uint32_t columns = (uint32_t)plan->found[FOUND_SPAN];
    for (uint32_t code = 0; code < 1u << window.bits; code++)
        decoding.offsets[code] = (first_row + code / columns) * window.in_width + first_column +
                                 code % columns - window.origin;
    mesa_walk_result(plan->elements, window.element_bytes, parallel, decode_elements, &decoding);
}

const struct mesa_codec mesa_codec_window = {
    .name = "window",
    .exact = true,
    .bound_bytes = window_bound_bytes,
    .encode = window_encode,
    .decode = window_decode,
};
