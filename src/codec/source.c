/* Reading strided elements in dense order. The one idea: the innermost dims that run on without a gap
 * form a "run", which is copied or handed out whole; only the dims outside of it are counted through.
 * Must not know what a codec does with the elements.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/walk.h"

#include <assert.h>
#include <string.h>

/* The innermost stretch of equally spaced elements of a source, and the number of dims outside. */
struct line {
    size_t elements;
    ptrdiff_t stride;
    int outer;
};

/* Longest stretch without a gap; a single element if the innermost stride is not 1. */
static struct line contiguous_line(const struct mesa_source *source) {
    struct line line = {.elements = 1, .stride = 1, .outer = source->ndim};
    while (line.outer > 0) {
        int d = line.outer - 1;
        if (source->sizes[d] != 1 && source->strides[d] != (int64_t)line.elements)
            break;
        line.elements *= (size_t)source->sizes[d];
        line.outer = d;
    }
    return line;
}

static struct line innermost_line(const struct mesa_source *source) {
    struct line line = contiguous_line(source);
    if (line.elements > 1 || line.outer == 0)
        return line;
    int d = line.outer - 1;
    return (struct line){(size_t)source->sizes[d], (ptrdiff_t)source->strides[d], d};
}

/* Elements from the first of the source to the first of line number `index`. */
static ptrdiff_t line_offset(const struct mesa_source *source, int outer, size_t index) {
    ptrdiff_t offset = 0;
    for (int d = outer - 1; d >= 0; d--) {
        size_t size = (size_t)source->sizes[d];
        offset += (ptrdiff_t)(index % size) * (ptrdiff_t)source->strides[d];
        index /= size;
    }
    return offset;
}

static const char *element_at(const struct mesa_source *source, ptrdiff_t offset) {
    return (const char *)source->data + offset * (ptrdiff_t)mesa_dtype_bytes(source->dtype);
}

/* One loop a size, so that each copy is a single load and store. */
static void copy_strided(char *dst, const char *src, size_t n, ptrdiff_t step, size_t bytes) {
#define COPY_ELEMENTS(size)                                                                        \
    case size:                                                                                     \
        for (size_t i = 0; i < n; i++)                                                             \
            memcpy(dst + i * (size), src + (ptrdiff_t)i * step, size);                             \
        break
    switch (bytes) {
        COPY_ELEMENTS(1);
        COPY_ELEMENTS(2);
        COPY_ELEMENTS(4);
        COPY_ELEMENTS(8);
        COPY_ELEMENTS(16);
    default:
        assert(bytes == 16); /* no dtype has another size */
    }
#undef COPY_ELEMENTS
}

void mesa_source_gather(const struct mesa_source *source, size_t begin, size_t end,
                        void *ret_dense) {
    struct line line = innermost_line(source);
    size_t bytes = mesa_dtype_bytes(source->dtype);
    ptrdiff_t step = line.stride * (ptrdiff_t)bytes;
    size_t skipped = begin % line.elements, number = begin / line.elements;
    char *dst = ret_dense;

    /* Position of the current line in the outer dims, counted up from the innermost of them. */
    size_t at[MESA_MAX_DIMS];
    for (int d = line.outer - 1; d >= 0; d--) {
        at[d] = number % (size_t)source->sizes[d];
        number /= (size_t)source->sizes[d];
    }
    const char *first = element_at(source, line_offset(source, line.outer, begin / line.elements));

    while (begin < end) {
        size_t n = mesa_smaller(line.elements - skipped, end - begin);
        const char *src = first + (ptrdiff_t)skipped * step;
        if (line.stride == 1)
            memcpy(dst, src, n * bytes);
        else
            copy_strided(dst, src, n, step, bytes);
        dst += n * bytes;
        begin += n;
        skipped = 0;
        for (int d = line.outer - 1; d >= 0; d--) {
            ptrdiff_t dim_step = (ptrdiff_t)source->strides[d] * (ptrdiff_t)bytes;
            first += dim_step;
            if (++at[d] < (size_t)source->sizes[d])
                break;
            first -= (ptrdiff_t)at[d] * dim_step;
            at[d] = 0;
        }
    }
}

bool mesa_source_contiguous(const struct mesa_source *source, size_t begin, size_t end,
                            const void **ret_first) {
    struct line line = contiguous_line(source);
    size_t number = begin / line.elements;
    if (begin < end && (end - 1) / line.elements != number)
        return false;
    *ret_first = element_at(source, line_offset(source, line.outer, number) +
                                        (ptrdiff_t)(begin % line.elements));
    return true;
}

const void *mesa_source_window(const struct mesa_source *source, size_t begin, size_t end,
                               void *scratch) {
    const void *first;
    if (mesa_source_contiguous(source, begin, end, &first))
        return first;
    mesa_source_gather(source, begin, end, scratch);
    return scratch;
}

bool mesa_source_rows(const struct mesa_source *source, size_t begin, size_t end, size_t unit,
                      struct mesa_source_rows *ret_rows) {
    struct line line = contiguous_line(source);
    size_t skipped = begin % line.elements, number = begin / line.elements;
    size_t left = line.elements - skipped;
    struct mesa_source_rows block = {.rows = 1,
                                     .row = mesa_smaller(end - begin, left / unit * unit)};
    if (block.row == 0)
        return false;
    block.stride = (ptrdiff_t)block.row;
    if (block.row == line.elements && line.outer > 0) { /* whole runs: take all of the next dim */
        int d = line.outer - 1;
        size_t size = (size_t)source->sizes[d];
        block.rows = mesa_smaller(size - number % size, (end - begin) / block.row);
        block.stride = (ptrdiff_t)source->strides[d];
    }
    block.first = element_at(source, line_offset(source, line.outer, number) + (ptrdiff_t)skipped);
    *ret_rows = block;
    return true;
}
