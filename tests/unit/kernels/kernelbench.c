/* kernelcheck --bench: seconds of one thread for each hot entry, on sources that do not fit the
 * caches. Every pass is paired with a memcpy of the same source right before it, and the ratio of
 * the best of each is printed: absolute figures of a shared machine mean little.
 *
 * SPDX-License-Identifier: MIT */
#include "kernelcheck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PASSES 7
#define GROUP  128

struct bench {
    const struct mesa_kernels *table;
    void *source;  /* what a pass reads, or restores to */
    void *copy;    /* where memcpy puts it */
    uint8_t *held; /* codes, masks, elements */
    uint32_t *words;
    size_t bytes;      /* of source */
    size_t held_count; /* sparse elements */
    struct mesa_affine_rows rows;
};

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- passes -------------------------------------------------------------------------------------- */

#define AFFINE_PASSES(name, dtype)                                                                 \
    static void encode_##name(struct bench *bench) {                                               \
        bench->table->affine_encode[dtype](&bench->rows, bench->source, bench->words,              \
                                           bench->held);                                           \
    }                                                                                              \
    static void decode_##name(struct bench *bench) {                                               \
        bench->table->affine_decode[dtype](&bench->rows, bench->words, bench->held, NULL, 0, true, \
                                           bench->source);                                         \
    }                                                                                              \
    static void decode_plain_##name(struct bench *bench) {                                         \
        bench->table->affine_decode[dtype](&bench->rows, bench->words, bench->held, NULL, 0,       \
                                           false, bench->source);                                  \
    }

AFFINE_PASSES(f32, MESA_F32)
AFFINE_PASSES(bf16, MESA_BF16)

/* Three heads of 64 elements that take turns, each with groups of eight runs. */
#define HEADS 3
static const struct mesa_affine_runs head_runs = {
    .runs = 8, .run = 64, .stride = HEADS * 64, .code_stride = HEADS * 64};
#define PERIOD ((size_t)HEADS * 64 * 8)

static struct mesa_code_bytes held_codes(struct bench *bench, size_t at) {
    return (struct mesa_code_bytes){.upper = bench->held + at};
}

#define RUN_PASSES(name, dtype, type)                                                              \
    static void range_runs_##name(struct bench *bench) {                                           \
        const type *src = bench->source;                                                           \
        for (size_t at = 0; at + PERIOD <= bench->bytes / sizeof *src; at += PERIOD) {             \
            for (size_t head = 0; head < HEADS; head++) {                                          \
                float lo = INFINITY, hi = -INFINITY;                                               \
                if (!bench->table->affine_range[dtype](&head_runs, src + at + 64 * head, &lo,      \
                                                       &hi))                                       \
                    abort();                                                                       \
                bench->words[head] = mesa_affine_word(lo, hi, 8, false, MESA_ROUND_NEAREST);       \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    static void quantize_runs_##name(struct bench *bench) {                                        \
        const type *src = bench->source;                                                           \
        for (size_t at = 0; at + PERIOD <= bench->bytes / sizeof *src; at += PERIOD)               \
            for (size_t head = 0; head < HEADS; head++)                                            \
                bench->table->affine_quantize[dtype](&head_runs, src + at + 64 * head,             \
                                                     bench->words[head], 8, false,                 \
                                                     held_codes(bench, at + 64 * head));           \
    }                                                                                              \
    static void dequantize_runs_##name(struct bench *bench) {                                      \
        type *dst = bench->source;                                                                 \
        for (size_t at = 0; at + PERIOD <= bench->bytes / sizeof *dst; at += PERIOD)               \
            for (size_t head = 0; head < HEADS; head++)                                            \
                bench->table->affine_dequantize[dtype](&head_runs,                                 \
                                                       held_codes(bench, at + 64 * head), 8,       \
                                                       bench->words[head], dst + at + 64 * head);  \
    }

RUN_PASSES(f32, MESA_F32, float)
RUN_PASSES(bf16, MESA_BF16, uint16_t)

static const float zero_float = 0, one_float = 1.25f;

static void mask_above(struct bench *bench) {
    bench->table->mask_pack[MESA_F32](bench->source, bench->bytes / 4, MESA_ABOVE, 0, 0,
                                      bench->held);
}

static void mask_two_pack(struct bench *bench) {
    if (!bench->table->mask_pack_two[1](bench->source, bench->bytes / 4, &zero_float, &one_float,
                                        bench->held))
        abort();
}

static void mask_two_unpack(struct bench *bench) {
    bench->table->mask_unpack_two[1](bench->held, bench->bytes / 4, &zero_float, &one_float, true,
                                     bench->source);
}

static void mask_bool_pack(struct bench *bench) {
    bench->table->mask_pack_bool(bench->source, bench->bytes, bench->held);
}

static void mask_bool_unpack(struct bench *bench) {
    bench->table->mask_unpack_bool(bench->held, bench->bytes, bench->source);
}

static void sparse_pack(struct bench *bench) {
    size_t n = bench->bytes / 4;
    bench->held_count = bench->table->sparse_compress[2](bench->source, n, n, bench->held,
                                                         bench->held + n / 8 + 64);
}

static void sparse_unpack(struct bench *bench) {
    size_t n = bench->bytes / 4;
    bench->table->sparse_expand[2](bench->held, n, bench->held + n / 8 + 64, bench->source);
}

static void bf16_pack(struct bench *bench) {
    bench->table->float_to_bf16(bench->source, bench->bytes / 4, (void *)bench->held);
}

static void bf16_unpack(struct bench *bench) {
    bench->table->bf16_to_float((void *)bench->held, bench->bytes / 4, true, bench->source);
}

static void f16_pack(struct bench *bench) {
    bench->table->float_to_f16(bench->source, bench->bytes / 4, (void *)bench->held);
}

static void integers_range(struct bench *bench) {
    int64_t lo, hi;
    bench->table->integer_range[3](bench->source, bench->bytes / 8, &lo, &hi);
}

static void integers_narrow(struct bench *bench) {
    bench->table->integer_narrow[3](bench->source, bench->bytes / 8, 5, 2, bench->held);
}

static void integers_widen(struct bench *bench) {
    bench->table->integer_widen[3](bench->held, bench->bytes / 8, 5, 2, bench->source);
}

static void all_finite(struct bench *bench) {
    if (!bench->table->all_finite[MESA_F32](bench->source, bench->bytes / 4))
        abort();
}

static void fingerprint(struct bench *bench) {
    bench->words[0] = (uint32_t)bench->table->fingerprint(bench->source, bench->bytes);
}

/* ---- sources --------------------------------------------------------------------------------------- */

static void fill_floats(struct bench *bench) {
    float *values = bench->source;
    for (size_t i = 0; i < bench->bytes / 4; i++) {
        uint64_t bits = random_bits();
        values[i] = (float)((int32_t)bits % 65536) * 1e-4f + (float)(bits >> 50) * 1e-4f;
    }
}

/* Every other element is 0, the rest is one value. */
static void fill_two(struct bench *bench) {
    float *values = bench->source;
    for (size_t i = 0; i < bench->bytes / 4; i++)
        values[i] = random_bits() & 1 ? one_float : zero_float;
}

static void fill_halves(struct bench *bench) {
    uint16_t *values = bench->source;
    for (size_t i = 0; i < bench->bytes / 2; i++)
        values[i] = (uint16_t)(0x3f80 + (random_bits() & 0x80ff));
}

static const struct {
    const char *name;
    void (*fill)(struct bench *bench);
    void (*pass)(struct bench *bench);
    enum mesa_dtype dtype;
    unsigned bits;
} cases[] = {
    {"affine_encode f32 8 bits", fill_floats, encode_f32, MESA_F32, 8},
    {"affine_decode f32 8 bits, stream", NULL, decode_f32, MESA_F32, 8},
    {"affine_decode f32 8 bits", NULL, decode_plain_f32, MESA_F32, 8},
    {"affine_encode f32 4 bits", fill_floats, encode_f32, MESA_F32, 4},
    {"affine_decode f32 4 bits, stream", NULL, decode_f32, MESA_F32, 4},
    {"affine_encode f32 3 bits", fill_floats, encode_f32, MESA_F32, 3},
    {"affine_decode f32 3 bits, stream", NULL, decode_f32, MESA_F32, 3},
    {"affine_encode bf16 8 bits", fill_halves, encode_bf16, MESA_BF16, 8},
    {"affine_decode bf16 8 bits, stream", NULL, decode_bf16, MESA_BF16, 8},
    {"affine_decode bf16 8 bits", NULL, decode_plain_bf16, MESA_BF16, 8},
    {"affine_encode bf16 4 bits", fill_halves, encode_bf16, MESA_BF16, 4},
    {"affine_decode bf16 4 bits, stream", NULL, decode_bf16, MESA_BF16, 4},
    {"affine_range f32, runs", fill_floats, range_runs_f32, MESA_F32, 8},
    {"affine_quantize f32, runs", NULL, quantize_runs_f32, MESA_F32, 8},
    {"affine_dequantize f32, runs", NULL, dequantize_runs_f32, MESA_F32, 8},
    {"affine_range bf16, runs", fill_halves, range_runs_bf16, MESA_BF16, 8},
    {"affine_quantize bf16, runs", NULL, quantize_runs_bf16, MESA_BF16, 8},
    {"affine_dequantize bf16, runs", NULL, dequantize_runs_bf16, MESA_BF16, 8},
    {"mask_pack f32 above 0", fill_floats, mask_above, MESA_F32, 1},
    {"mask_pack_two 4 bytes", fill_two, mask_two_pack, MESA_F32, 1},
    {"mask_unpack_two 4 bytes, stream", NULL, mask_two_unpack, MESA_F32, 1},
    {"sparse_compress 4 bytes, half", fill_two, sparse_pack, MESA_F32, 1},
    {"sparse_expand 4 bytes, half", NULL, sparse_unpack, MESA_F32, 1},
    {"mask_pack_bool", fill_two, mask_bool_pack, MESA_F32, 1},
    {"mask_unpack_bool", NULL, mask_bool_unpack, MESA_F32, 1},
    {"float_to_bf16", fill_floats, bf16_pack, MESA_F32, 1},
    {"bf16_to_float, stream", NULL, bf16_unpack, MESA_F32, 1},
    {"float_to_f16", fill_floats, f16_pack, MESA_F32, 1},
    {"integer_range int64", NULL, integers_range, MESA_F32, 1},
    {"integer_narrow int64 to 2 bytes", NULL, integers_narrow, MESA_F32, 1},
    {"integer_widen 2 bytes to int64", NULL, integers_widen, MESA_F32, 1},
    {"all_finite f32", fill_floats, all_finite, MESA_F32, 1},
    {"fingerprint", NULL, fingerprint, MESA_F32, 1},
};

static double time_pass(struct bench *bench, void (*pass)(struct bench *bench)) {
    double start = seconds();
    pass(bench);
    return seconds() - start;
}

static void copy_source(struct bench *bench) {
    memcpy(bench->copy, bench->source, bench->bytes);
}

/* A case that is not wanted runs once: the next may need what it makes. */
static void run_case(struct bench *bench, size_t index, bool wanted) {
    size_t elements = bench->bytes / mesa_dtype_bytes(cases[index].dtype);
    bench->rows = (struct mesa_affine_rows){
        .rows = elements / 1024,
        .row = 1024,
        .row_stride = 1024,
        .groups = mesa_group_count(1024, GROUP),
        .bits = cases[index].bits,
        .stream = true,
    };
    if (cases[index].fill != NULL) /* else the pass goes on with what the one before it made */
        cases[index].fill(bench);
    if (!wanted) {
        cases[index].pass(bench);
        return;
    }
    double best = INFINITY, best_copy = INFINITY;
    for (int i = 0; i < PASSES; i++) {
        best_copy = fmin(best_copy, time_pass(bench, copy_source));
        best = fmin(best, time_pass(bench, cases[index].pass));
    }
    printf("%-36s %5.2f of memcpy   %6.1f GB/s (memcpy %.1f)\n", cases[index].name,
           best / best_copy, (double)bench->bytes / best * 1e-9,
           (double)bench->bytes / best_copy * 1e-9);
    fflush(stdout);
}

int kernelbench(const struct mesa_kernels *table, size_t mib, const char *only) {
    struct bench bench = {.table = table, .bytes = mib << 20};
    size_t held_bytes = bench.bytes + bench.bytes / 16 + 4096;
    bench.source = aligned_alloc(64, bench.bytes);
    bench.copy = aligned_alloc(64, bench.bytes);
    bench.held = aligned_alloc(64, held_bytes);
    bench.words = aligned_alloc(64, bench.bytes / 32);
    int status = 1;
    if (bench.source != NULL && bench.copy != NULL && bench.held != NULL && bench.words != NULL) {
        memset(bench.copy, 1, bench.bytes); /* page faults are not what is measured */
        memset(bench.held, 1, held_bytes);
        memset(bench.words, 0, bench.bytes / 32);
        printf("%s, %zu MiB, best of %d, times relative to memcpy of the source\n", table->name,
               mib, PASSES);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            run_case(&bench, i, strstr(cases[i].name, only) != NULL);
        status = 0;
    }
    free(bench.source);
    free(bench.copy);
    free(bench.held);
    free(bench.words);
    return status;
}
