/* A codec is one way to turn a tensor's elements into held bytes and back. Codecs are pure: a source
 * description in, bytes out; no tensors, no locks, no allocation. One file for each codec, one row in
 * `mesa_codecs`.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_CODEC_H
#define MESA_CODEC_CODEC_H

#include "codec/kernels/kernels.h"
#include "dtype.h"
#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MESA_MAX_DIMS 16

/* The elements to hold, each once, in memory order: `ndim` collapsed dims by falling stride (see
 * classify/layout.h). A dense tensor is one dim with stride 1. "Dense order" = row-major over these
 * dims; it is the order in which decode() writes. */
struct mesa_source {
    const void *data; /* borrowed for the call */
    enum mesa_dtype dtype;
    int ndim;                       /* >= 1 */
    int64_t sizes[MESA_MAX_DIMS];   /* > 0 */
    int64_t strides[MESA_MAX_DIMS]; /* elements, > 0, falling; no overlap */
    size_t elements;                /* product of sizes */
    const void *against; /* borrowed for the call: elements of another tensor with the same dtype and
                            geometry, which these are compared with; NULL: none */
};

/* How elements share a scale. */
enum mesa_grouping {
    MESA_GROUP_BLOCK, /* contiguous groups of about `group` elements within rows of `row` */
    MESA_GROUP_CYCLE, /* runs of `run` elements; run r belongs to group r % cycle + cycle * (r / period)
                          where period (in runs) is a multiple of cycle, or 0 for one period */
};

struct mesa_codec;

/* Everything that decode() needs besides the bytes; kept by value beside the held bytes. */
struct mesa_plan {
    const struct mesa_codec *codec;
    enum mesa_dtype dtype;
    size_t elements;
    bool far; /* the caches are written over before anybody decodes: no need to fill them with codes */

    /* affine and sparse-affine */
    unsigned bits; /* 1..12 */
    enum mesa_grouping grouping;
    size_t row;                /* BLOCK: groups never cross a multiple of this; divides elements */
    size_t group;              /* BLOCK: wanted elements in a group, 16..1024, or `row` */
    size_t run, cycle, period; /* CYCLE */
    bool strict_sign;
    enum mesa_rounding rounding;
    uint64_t seed;
    float widest; /* a group whose largest and smallest element are further apart is not coded: one
                     sentinel (-1e9 where a mask is) would cost all others their precision; 0: any */

    /* mask */
    enum mesa_predicate predicate; /* for real dtypes; ignored for bool */
    double lo, hi;

    /* window: the planes of a pooling layer whose indices these are, in pixels; 0: none */
    size_t window_in_width, window_in_height, window_out_width, window_out_height;

    /* Filled by encode(), read by decode(): codec-private facts found in the data (the two values
     * of a two-valued tensor, the minimum of integers, number of raw groups, ...). */
    uint64_t found[4];
};

/* Runs body(context, begin, end) over [0, count) in pieces of at least `grain`, perhaps in several
 * threads, and returns when all are done. Bodies do not throw. NULL in calls below = serial. */
typedef void mesa_parallel_for(size_t count, size_t grain,
                               void (*body)(void *context, size_t begin, size_t end),
                               void *context);

struct mesa_codec {
    const char *name; /* as policies and reports spell it */
    bool exact;       /* decode gives the same bits (mask of a real, interval: see there) */

    /* Most bytes that encode() may need; 0 declines the plan. Checks the plan's fields. */
    size_t (*bound_bytes)(const struct mesa_plan *plan);

    /* Looks at a few elements: false if encode() would surely decline, or might as well, so that
     * nothing is allocated for a way that most tensors do not go. Asked only of a plan that
     * bound_bytes() has not declined. NULL: always. */
    bool (*may_fit)(const struct mesa_plan *plan, const struct mesa_source *source);

    /* Fills `held` (64-byte aligned, bound_bytes long) and sets *ret_bytes to what is used from
     * its start; the caller gives the rest back. plan->found is written. MESA_DECLINED if these
     * values cannot be held this way: `held` is unspecified, the caller keeps the original. */
    enum mesa_status (*encode)(struct mesa_plan *plan, const struct mesa_source *source,
                               mesa_parallel_for *parallel, void *held, size_t *ret_bytes);

    /* Writes plan->elements elements in dense order. Cannot fail. */
    void (*decode)(const struct mesa_plan *plan, const void *held, mesa_parallel_for *parallel,
                   void *ret_elements);
};

extern const struct mesa_codec mesa_codec_affine; /* codes with scale and zero point, 1..12 bits */
extern const struct mesa_codec mesa_codec_mask;   /* bool, or a predicate of a real: 1 bit */
extern const struct mesa_codec
    mesa_codec_interval; /* inside, outside or on an end of an interval: 1 or 2 bits */
extern const struct mesa_codec
    mesa_codec_two; /* any dtype with at most two bit patterns: 1 bit, exact */
extern const struct mesa_codec mesa_codec_sign;   /* sign of a real: 2 bits */
extern const struct mesa_codec mesa_codec_compare; /* less, equal or more than another tensor: 2 bits */
extern const struct mesa_codec mesa_codec_window; /* indices of max pooling as offsets, exact */
extern const struct mesa_codec mesa_codec_narrow; /* integers in fewer bits, exact */
extern const struct mesa_codec
    mesa_codec_sparse; /* a mask of nonzero elements and those elements, exact */
extern const struct mesa_codec
    mesa_codec_exponent; /* floats with their exponents in fewer bits, exact */
extern const struct mesa_codec
    mesa_codec_sparse_affine;                       /* a mask of nonzero elements and their codes */
extern const struct mesa_codec mesa_codec_bfloat16; /* float32 rounded to bfloat16 */
extern const struct mesa_codec mesa_codec_float16;  /* float32 rounded to float16 */
extern const struct mesa_codec mesa_codec_copy; /* the elements as they are, made dense; exact */

/* NULL-terminated. */
extern const struct mesa_codec *const mesa_codecs[];
const struct mesa_codec *mesa_codec_find(const char *name); /* NULL if unknown */

/* Copies elements [begin, end) in dense order of `source` into `ret_dense`. */
void mesa_source_gather(const struct mesa_source *source, size_t begin, size_t end,
                        void *ret_dense);

/* True if elements [begin, end) lie contiguously in memory; then *ret_first points to the first. */
bool mesa_source_contiguous(const struct mesa_source *source, size_t begin, size_t end,
                            const void **ret_first);

#endif
