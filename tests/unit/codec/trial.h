/* Random tensors, and a trial that every codec must stand: encode and decode, serially and split in
 * odd ways, between guard bytes. What the values should be is left to the tests.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TESTS_CODEC_TRIAL_H
#define MESA_TESTS_CODEC_TRIAL_H

#include "codec/codec.h"

/* Every test seeds its own, so that it can be repeated alone. */
struct chance {
    uint64_t state;
};

uint64_t chance_next(struct chance *chance);
size_t chance_below(struct chance *chance, size_t n); /* 0..n-1 */
bool chance_in(struct chance *chance, size_t n);      /* true once in n */

enum values {
    VALUES_NORMAL, /* both signs, of one magnitude */
    VALUES_OFFSET, /* far from zero with little spread */
    VALUES_RELU,   /* normal, half of them +0 */
    VALUES_RARE,   /* nearly all +0, the rest of any kind, -0 too */
    VALUES_ZEROS,
    VALUES_CONSTANT,
    VALUES_TWO,       /* two bit patterns, perhaps NaN */
    VALUES_WIDE,      /* all magnitudes that the dtype has */
    VALUES_SUBNORMAL, /* below the normal numbers */
    VALUES_SPECIAL,   /* normal, with a NaN or infinity here and there */
    VALUES_BITS,      /* random bits */
    VALUES_COUNT,
};

/* Writes n elements. Integers and bytes get what corresponds to the name. */
void values_fill(struct chance *chance, enum values values, enum mesa_dtype dtype, size_t n,
                 void *ret_elements);

/* Element i of a real dtype. */
double value_at(enum mesa_dtype dtype, const void *elements, size_t i);

struct tensor {
    struct mesa_source source;
    void *memory; /* owned: what the source lies in */
    void *dense;  /* owned: its elements in dense order */
};

/* About `elements` of them, dense or strided. */
void tensor_init(struct tensor *tensor, struct chance *chance, enum mesa_dtype dtype,
                 enum values values, size_t elements);
/* The same with the given geometry; strides with gaps where `dense` is false. */
void tensor_init_sizes(struct tensor *tensor, struct chance *chance, enum mesa_dtype dtype,
                       enum values values, int ndim, const int64_t *sizes, bool dense);
void tensor_done(struct tensor *tensor);

/* Parallel loops: pieces in an odd order in this thread; pieces in several threads. */
void parallel_odd(size_t count, size_t grain, void (*body)(void *, size_t, size_t), void *context);
void parallel_threads(size_t count, size_t grain, void (*body)(void *, size_t, size_t),
                      void *context);

struct trial {
    enum mesa_status status;
    size_t bound, used;
    uint8_t *held; /* owned, NULL unless MESA_OK */
    void *decoded; /* owned, NULL unless MESA_OK */
};

/* Fails the test if a guard byte is touched, or if anything depends on how the work was split or on
 * what the memory held before. Fills plan->dtype and plan->elements. A bound of 0 gives
 * MESA_DECLINED. */
struct trial trial_run(struct mesa_plan *plan, const struct tensor *tensor);
void trial_done(struct trial *trial);

bool same_bytes(const void *a, const void *b, size_t bytes);

#endif
