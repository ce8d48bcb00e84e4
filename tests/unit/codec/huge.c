/* Tensors of more than 2^31 elements, through every codec that takes their dtype. Needs 12 GiB, so it
 * is built and run by hand only: ninja tests/unit/codec/huge
 *
 * SPDX-License-Identifier: MIT */
#include "codec/codec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Not a round number, and rows of 32 * 43 + 1 elements as well as of 1. */
#define ROW      ((size_t)1377)
#define ELEMENTS (ROW * 1560000)

_Static_assert(ELEMENTS > (size_t)1 << 31, "int would do");

static void *map(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at != MAP_FAILED)
        return at;
    (void)fprintf(stderr, "huge: no memory for %zu bytes\n", bytes);
    exit(77); /* meson: skipped */
}

/* Encodes, decodes into fresh memory and hands that to `check`. */
static int try_codec(const char *what, struct mesa_plan plan, const void *data,
                     int (*check)(const void *before, const void *after)) {
    struct mesa_source source = {.data = data,
                                 .dtype = plan.dtype,
                                 .ndim = 1,
                                 .sizes = {(int64_t)ELEMENTS},
                                 .strides = {1},
                                 .elements = ELEMENTS};
    size_t bytes = ELEMENTS * mesa_dtype_bytes(plan.dtype), used = 0;
    plan.elements = ELEMENTS;
    size_t bound = plan.codec->bound_bytes(&plan);
    void *held = map(bound);
    enum mesa_status status = plan.codec->encode(&plan, &source, NULL, held, &used);
    int failed = 1;
    if (status == MESA_OK) {
        void *decoded = map(bytes);
        plan.codec->decode(&plan, held, NULL, decoded);
        failed = check(data, decoded);
        munmap(decoded, bytes);
    }
    munmap(held, bound);
    (void)printf("%-24s %s, %zu of %zu bytes\n", what, failed ? "FAILED" : "ok", used, bytes);
    return failed;
}

static int check_bytes(const void *before, const void *after) {
    return memcmp(before, after, ELEMENTS) != 0;
}

static int check_words(const void *before, const void *after) {
    return memcmp(before, after, 2 * ELEMENTS) != 0;
}

/* The values are 0..127: with 8 bits a step is at most 1/2 of one. */
static int check_values(const void *before, const void *after) {
    enum { AT_ONCE = 4096 };
    static float from[AT_ONCE], back[AT_ONCE];
    for (size_t at = 0; at < ELEMENTS; at += AT_ONCE) {
        size_t n = ELEMENTS - at < AT_ONCE ? ELEMENTS - at : AT_ONCE;
        mesa_kernels.bf16_to_float((const uint16_t *)before + at, n, false, from);
        mesa_kernels.bf16_to_float((const uint16_t *)after + at, n, false, back);
        for (size_t i = 0; i < n; i++)
            if (from[i] - back[i] > 0.6f || back[i] - from[i] > 0.6f ||
                (from[i] == 0) != (back[i] == 0))
                return 1;
    }
    return 0;
}

static int try_bytes(void) {
    uint8_t *bytes = map(ELEMENTS);
    for (size_t i = 0; i < ELEMENTS; i++)
        bytes[i] = i * 0x9e3779b97f4a7c15u >> 63 != 0;
    int failed = 0;
    struct mesa_plan plan = {.codec = &mesa_codec_two, .dtype = MESA_U8};
    failed |= try_codec("two, uint8", plan, bytes, check_bytes);
    plan.codec = &mesa_codec_sparse;
    failed |= try_codec("sparse, uint8", plan, bytes, check_bytes);
    plan.codec = &mesa_codec_copy;
    failed |= try_codec("copy, uint8", plan, bytes, check_bytes);
    plan = (struct mesa_plan){.codec = &mesa_codec_mask, .dtype = MESA_BOOL};
    failed |= try_codec("mask, bool", plan, bytes, check_bytes);
    plan = (struct mesa_plan){.codec = &mesa_codec_narrow, .dtype = MESA_I8};
    failed |= try_codec("narrow, int8", plan, bytes, check_bytes);
    munmap(bytes, ELEMENTS);
    return failed;
}

static int try_reals(void) {
    uint16_t *words = map(2 * ELEMENTS), values[256];
    for (unsigned i = 0; i < 256; i++) {
        float value = i < 128 ? (float)i : 0;
        mesa_kernels.float_to_bf16(&value, 1, &values[i]);
    }
    for (size_t i = 0; i < ELEMENTS; i++)
        words[i] = values[i * 0x9e3779b97f4a7c15u >> 56];
    int failed = 0;
    struct mesa_plan plan = {
        .codec = &mesa_codec_affine, .dtype = MESA_BF16, .bits = 8, .row = ROW, .group = 64};
    failed |= try_codec("affine, odd rows", plan, words, check_values);
    plan.row = ELEMENTS;
    failed |= try_codec("affine, one row", plan, words, check_values);
    plan.codec = &mesa_codec_sparse_affine;
    failed |= try_codec("sparse affine", plan, words, check_values);
    plan.codec = &mesa_codec_sparse;
    failed |= try_codec("sparse", plan, words, check_words);
    plan = (struct mesa_plan){.codec = &mesa_codec_affine,
                              .dtype = MESA_BF16,
                              .bits = 8,
                              .grouping = MESA_GROUP_CYCLE,
                              .run = 1,
                              .cycle = ROW};
    failed |= try_codec("affine, columns", plan, words, check_values);
    plan.run = ROW;
    plan.cycle = 4;
    failed |= try_codec("affine, runs", plan, words, check_values);
    munmap(words, 2 * ELEMENTS);
    return failed;
}

int main(void) {
    mesa_kernels_init(mesa_isa_best());
    int failed = try_bytes();
    failed |= try_reals();
    return failed;
}
