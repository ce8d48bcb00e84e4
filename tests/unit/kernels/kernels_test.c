/* What must hold for the scalar kernels, which define the bytes: exact zeros, kept signs, bounded
 * errors, exact marks, round trips against straightforward definitions. That other kernels equal
 * them is kernelcheck's matter.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/element.h"
#include "codec/kernels/kernels.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static struct mesa_kernels kernels;

static void fill_kernels(void) {
    mesa_kernels_fill(&kernels, MESA_ISA_SCALAR);
    srand(1);
}

TestSuite(kernels, .init = fill_kernels);

static double random_unit(void) {
    return rand() / (double)RAND_MAX;
}

static uint32_t random_word(void) {
    return (uint32_t)rand() << 16 ^ (uint32_t)rand();
}

/* ---- affine: helpers ------------------------------------------------------------------------------- */

#define MAX_GROUP  300
#define MAX_SPREAD 1000 /* elements from the first to the last of a group in runs */

struct held {
    uint32_t word;
    uint8_t codes[MAX_GROUP * 8 + 8];
    size_t raw;
};

static struct mesa_affine_rows one_group(size_t n, unsigned bits, bool strict,
                                         enum mesa_rounding rounding) {
    return (struct mesa_affine_rows){
        .rows = 1,
        .row = n,
        .row_stride = (ptrdiff_t)n,
        .groups = 1,
        .bits = bits,
        .strict_sign = strict,
        .rounding = rounding,
        .seed = 42,
    };
}

/* Encodes and decodes one group of float32; a raw one comes back from `x` as the codec would. */
static struct held round_trip(const struct mesa_affine_rows *rows, const float *x, float *ret_y) {
    struct held held;
    memset(&held, 0x5a, sizeof held);
    held.raw = kernels.affine_encode[MESA_F32](rows, x, &held.word, held.codes);
    kernels.affine_decode[MESA_F32](rows, &held.word, held.codes, (const uint8_t *)x,
                                    rows->row * sizeof *x, false, ret_y);
    return held;
}

static float scale_of(uint32_t word) {
    return float_of_bits(word & 0xffff0000u);
}

/* Distributions: which is which does not matter, all must hold. */
static float random_float(int kind, size_t i) {
    float u = (float)(random_unit() * 2 - 1);
    switch (kind) {
    case 0:
        return u;
    case 1: /* relu-like: many zeros */
        return u > 0 ? u : 0;
    case 2:
        return u < 0 ? u : 0;
    case 3: /* far from zero */
        return 1e4f + u;
    case 4:
        return -1e6f + u;
    case 5: /* one outlier */
        return i == 5 ? 300 : u * 0.01f;
    case 6: /* of any size */
        return ldexpf(u, rand() % 200 - 90);
    case 7: /* large */
        return u * 0x1p124f;
    case 8: /* integers: ties */
        return (float)(rand() % 300 - 100) * 0.5f;
    case 9: /* barely below zero, mostly above */
        return i % 7 == 0 ? -1e-6f : u + 1;
    case 10:
        return i % 7 == 0 ? 1e-6f : u - 1;
    default: /* small, with subnormals among them */
        return i % 3 == 0 ? u * FLT_MIN : u * 1e-20f;
    }
}

#define KINDS 12

static int sign_of(float x) {
    return (x > 0) - (x < 0);
}

/* ---- affine: properties --------------------------------------------------------------------------- */

/* Zero exact, no sign flipped, with strict signs none lost, the error bounded by half a step (a step
 * if stochastic or strict), codes within their width. */
static void check_group(const float *x, size_t n, unsigned bits, bool strict,
                        enum mesa_rounding rounding) {
    struct mesa_affine_rows rows = one_group(n, bits, strict, rounding);
    float y[MAX_GROUP];
    struct held held = round_trip(&rows, x, y);
    if (held.word == MESA_GROUP_RAW || held.word == MESA_GROUP_CONSTANT) {
        cr_assert(eq(sz, held.raw, held.word == MESA_GROUP_RAW));
        if (held.word == MESA_GROUP_CONSTANT)
            cr_assert(eq(int, memcmp(x, y, n * sizeof *x), 0));
        return;
    }
    double s = scale_of(held.word);
    double bound = strict || rounding == MESA_ROUND_STOCHASTIC ? s : s / 2;
    for (size_t i = 0; i < n; i++) {
        if (x[i] == 0)
            cr_assert(eq(u32, float_bits(y[i]), 0), "zero came back as %a", (double)y[i]);
        cr_assert(sign_of(x[i]) * sign_of(y[i]) >= 0, "%a became %a", (double)x[i], (double)y[i]);
        if (strict)
            cr_assert(sign_of(x[i]) == sign_of(y[i]), "%a became %a", (double)x[i], (double)y[i]);
        double error = fabs((double)y[i] - (double)x[i]);
        cr_assert(error <= bound + fabs((double)x[i]) * 0x1p-22, "%u bits: %a became %a, scale %a",
                  bits, (double)x[i], (double)y[i], s);
    }
}

Test(kernels, affine_keeps_zeros_signs_and_bounds) {
    for (int round = 0; round < 6000; round++) {
        float x[MAX_GROUP];
        size_t n = 32 + (size_t)rand() % (MAX_GROUP - 32);
        int kind = round % KINDS;
        for (size_t i = 0; i < n; i++)
            x[i] = rand() % 10 == 0 && kind != 3 && kind != 4 ? 0 : random_float(kind, i);
        unsigned bits = 1 + (unsigned)rand() % MESA_MOST_CODE_BITS;
        check_group(x, n, bits, rand() % 2,
                    rand() % 2 ? MESA_ROUND_NEAREST : MESA_ROUND_STOCHASTIC);
    }
}

Test(kernels, affine_scale_is_no_larger_than_the_range_needs) {
    for (int round = 0; round < 2000; round++) {
        float lo = (float)(random_unit() * 4 - 2), hi = lo + (float)random_unit() + 1e-3f;
        unsigned bits = 1 + (unsigned)rand() % MESA_MOST_CODE_BITS;
        float steps = (float)((1 << bits) - 1);
        uint32_t word = mesa_affine_word(lo, hi, bits, false, MESA_ROUND_NEAREST);
        float needed = fmaxf((hi - lo) / steps, fmaxf(-lo, hi) / 32000);
        cr_assert(scale_of(word) >= needed * (1 - 0x1p-20f));
        cr_assert(scale_of(word) <= needed * (1 + 0x1p-7f));
    }
}

/* Ranges that are whole numbers of steps, where the roundings of lo * (1 / s) can go past the last
 * code: 0 and, with strict signs, +1 and -1 must have codes all the same. */
Test(kernels, affine_window_reaches_zero_and_both_signs) {
    for (uint32_t mantissa = 0; mantissa < 128; mantissa++) {
        float s = float_of_bits(0x3f800000u | mantissa << 16);
        for (unsigned bits = 2; bits <= MESA_MOST_CODE_BITS; bits++) {
            int last = (1 << bits) - 1;
            uint32_t word =
                mesa_affine_word(-(float)last * s, 0, bits, false, MESA_ROUND_STOCHASTIC);
            cr_assert(last >= -(int16_t)word, "%u bits, scale %a: no code for 0", bits, (double)s);
            for (int rounding = 0; rounding < 2; rounding++) {
                enum mesa_rounding how = (enum mesa_rounding)rounding;
                word = mesa_affine_word(-(float)(last - 1) * s, 1e-30f, bits, true, how);
                cr_assert(1 - last <= (int16_t)word, "%u bits, scale %a: no +1", bits, (double)s);
                word = mesa_affine_word(-1e-30f, (float)(last - 1) * s, bits, true, how);
                cr_assert(0 > (int16_t)word, "%u bits, scale %a: no -1", bits, (double)s);
            }
        }
    }
}

Test(kernels, affine_marks_a_repeated_element_as_constant) {
    const uint32_t patterns[] = {0x3f8ccccd, 0xff800000, 0x7fc00001, 0x00000001, 0x7f7fffff};
    for (unsigned bits = 1; bits <= MESA_MOST_CODE_BITS; bits++) {
        for (size_t k = 0; k < sizeof patterns / sizeof *patterns; k++) {
            float x[64], y[64];
            for (size_t i = 0; i < 64; i++)
                x[i] = float_of_bits(patterns[k]);
            struct mesa_affine_rows rows = one_group(64, bits, false, MESA_ROUND_NEAREST);
            struct held held = round_trip(&rows, x, y);
            cr_assert(eq(u32, held.word, MESA_GROUP_CONSTANT));
            cr_assert(eq(int, memcmp(x, y, sizeof x), 0));
        }
    }
}

/* 32 codes of 1 bit are 4 bytes: no room for a float64. */
Test(kernels, affine_does_not_mark_what_has_no_room) {
    double x[32], y[32];
    for (size_t i = 0; i < 32; i++)
        x[i] = 0.7;
    struct mesa_affine_rows rows = one_group(32, 1, false, MESA_ROUND_NEAREST);
    uint32_t word;
    uint8_t codes[4];
    kernels.affine_encode[MESA_F64](&rows, x, &word, codes);
    cr_assert(ne(u32, word, MESA_GROUP_CONSTANT));
    kernels.affine_decode[MESA_F64](&rows, &word, codes, NULL, 0, false, y);
    cr_assert(fabs(y[0] - 0.7) < 0.7 / 30000);
}

Test(kernels, affine_holds_zeros_as_nothing) {
    float x[64], y[64];
    for (size_t i = 0; i < 64; i++)
        x[i] = i % 2 ? -0.0f : 0.0f;
    struct mesa_affine_rows rows = one_group(64, 8, true, MESA_ROUND_NEAREST);
    cr_assert(eq(u32, round_trip(&rows, x, y).word, 0));
    for (size_t i = 0; i < 64; i++)
        cr_assert(eq(u32, float_bits(y[i]), 0));
}

Test(kernels, affine_leaves_hard_groups_raw) {
    const float hard[] = {NAN, INFINITY, -INFINITY, FLT_MAX, -0x1p125f};
    for (size_t k = 0; k < sizeof hard / sizeof *hard; k++) {
        float x[96], y[96];
        for (size_t i = 0; i < 96; i++)
            x[i] = i == 77 ? hard[k] : (float)i;
        struct mesa_affine_rows rows = one_group(96, 4, false, MESA_ROUND_NEAREST);
        struct held held;
        held.raw = kernels.affine_encode[MESA_F32](&rows, x, &held.word, held.codes);
        cr_assert(eq(sz, held.raw, 1));
        cr_assert(eq(u32, held.word, MESA_GROUP_RAW));
        const uint8_t second[4] = {1, 0, 0, 0};
        float raw[2][96] = {{0}};
        memcpy(raw[1], x, sizeof x);
        kernels.affine_decode[MESA_F32](&rows, &held.word, second, (const uint8_t *)raw, sizeof x,
                                        false, y);
        cr_assert(eq(int, memcmp(x, y, sizeof x), 0));
    }
    float tiny[2] = {FLT_TRUE_MIN, -0x1p-101f};
    cr_assert(
        eq(u32, mesa_affine_word(tiny[1], tiny[0], 1, false, MESA_ROUND_NEAREST), MESA_GROUP_RAW));
    cr_assert(eq(u32, mesa_affine_word(-1, 1, 1, true, MESA_ROUND_NEAREST), MESA_GROUP_RAW),
              "three signs in two codes");
}

Test(kernels, affine_float64_beyond_float32_is_raw_and_tiny_keeps_its_sign) {
    double x[64];
    for (size_t i = 0; i < 64; i++)
        x[i] = i == 3 ? 1e300 : 1;
    struct mesa_affine_rows rows = one_group(64, 8, true, MESA_ROUND_NEAREST);
    uint32_t word;
    uint8_t codes[64];
    cr_assert(eq(sz, kernels.affine_encode[MESA_F64](&rows, x, &word, codes), 1));
    x[3] = -1e-300;
    double y[64];
    cr_assert(eq(sz, kernels.affine_encode[MESA_F64](&rows, x, &word, codes), 0));
    kernels.affine_decode[MESA_F64](&rows, &word, codes, NULL, 0, false, y);
    cr_assert(y[3] < 0);
}

Test(kernels, affine_float16_stays_finite) {
    uint16_t x[64], y[64];
    for (size_t i = 0; i < 64; i++)
        x[i] = f16_round(i % 2 ? 65504 : -65504 + (float)i * 500);
    for (unsigned bits = 1; bits <= MESA_MOST_CODE_BITS; bits++) {
        struct mesa_affine_rows rows = one_group(64, bits, false, MESA_ROUND_STOCHASTIC);
        uint32_t word;
        uint8_t codes[64 * 2];
        kernels.affine_encode[MESA_F16](&rows, x, &word, codes);
        kernels.affine_decode[MESA_F16](&rows, &word, codes, NULL, 0, false, y);
        for (size_t i = 0; i < 64; i++)
            cr_assert(isfinite(f16_widen(y[i])));
    }
}

/* The mean over many seeds is the element, and each element draws on its own. */
Test(kernels, affine_stochastic_rounding_is_unbiased) {
    enum { SEEDS = 4000 };
    float x[64], y[64];
    double sum[64] = {0}, sum_neighbours = 0;
    for (size_t i = 0; i < 64; i++)
        x[i] = (float)i * 0.37f - 9;
    struct mesa_affine_rows rows = one_group(64, 4, false, MESA_ROUND_STOCHASTIC);
    double s = 0;
    for (rows.seed = 0; rows.seed < SEEDS; rows.seed++) {
        s = scale_of(round_trip(&rows, x, y).word);
        for (size_t i = 0; i < 64; i++)
            sum[i] += (double)y[i] - (double)x[i];
        for (size_t i = 0; i + 1 < 64; i++)
            sum_neighbours += ((double)y[i] - (double)x[i]) * ((double)y[i + 1] - (double)x[i + 1]);
    }
    for (size_t i = 0; i < 64; i++) /* deviation of a mean <= s / 2 / sqrt(SEEDS) */
        cr_assert(fabs(sum[i] / SEEDS) < 5 * s / 2 / sqrt(SEEDS), "element %zu is off by %g s", i,
                  sum[i] / SEEDS / s);
    cr_assert(fabs(sum_neighbours / 63 / SEEDS) < s * s / 100);
}

/* Cutting a tensor elsewhere gives the same codes: uniforms belong to elements. */
Test(kernels, affine_stochastic_rounding_does_not_depend_on_the_cut) {
    float x[512];
    uint8_t whole[512], half[512];
    uint32_t words[8];
    for (size_t i = 0; i < 512; i++)
        x[i] = (float)random_unit();
    struct mesa_affine_rows rows = {.rows = 8, .row = 64, .row_stride = 64, .groups = 1, .bits = 8};
    rows.rounding = MESA_ROUND_STOCHASTIC;
    rows.first_element = UINT32_MAX - 100; /* also where the upper half of the index changes */
    kernels.affine_encode[MESA_F32](&rows, x, words, whole);
    rows.rows = 5;
    kernels.affine_encode[MESA_F32](&rows, x, words, half);
    rows.rows = 3;
    rows.first_element += 5 * 64;
    kernels.affine_encode[MESA_F32](&rows, x + 5 * 64, words, half + 5 * 64);
    cr_assert(eq(int, memcmp(whole, half, sizeof whole), 0));
}

/* Rows with a stride, uneven groups, an uneven tail: each group as if alone. */
Test(kernels, affine_rows_are_groups_side_by_side) {
    for (int round = 0; round < 300; round++) {
        size_t row = 1 + (size_t)rand() % 700, rows_count = 1 + (size_t)rand() % 3;
        size_t stride = row + (size_t)rand() % 9;
        struct mesa_affine_rows rows = {
            .rows = rows_count,
            .row = row,
            .row_stride = (ptrdiff_t)stride,
            .groups = mesa_group_count(row, 32 + (size_t)rand() % 200),
            .bits = 1 + (unsigned)rand() % MESA_MOST_CODE_BITS,
        };
        float *x = malloc(sizeof *x * stride * rows_count), *y = malloc(sizeof *y * row * 3);
        uint32_t words[64 * 3];
        uint8_t codes[700 * 3 * 2];
        for (size_t i = 0; i < stride * rows_count; i++)
            x[i] = random_float(round % 6, i);
        size_t raw = kernels.affine_encode[MESA_F32](&rows, x, words, codes);
        cr_assert(eq(sz, raw, 0));
        kernels.affine_decode[MESA_F32](&rows, words, codes, NULL, 0, false, y);
        for (size_t r = 0; r < rows_count; r++) {
            for (size_t j = 0; j < rows.groups; j++) {
                size_t begin = mesa_group_begin(row, rows.groups, j);
                size_t n = mesa_group_begin(row, rows.groups, j + 1) - begin;
                float alone[700];
                struct mesa_affine_rows one = one_group(n, rows.bits, false, MESA_ROUND_NEAREST);
                uint32_t word;
                uint8_t group_codes[700 * 2];
                kernels.affine_encode[MESA_F32](&one, x + r * stride + begin, &word, group_codes);
                kernels.affine_decode[MESA_F32](&one, &word, group_codes, NULL, 0, false, alone);
                cr_assert(eq(u32, word, words[r * rows.groups + j]));
                cr_assert(eq(int, memcmp(alone, y + r * row + begin, n * sizeof *alone), 0));
            }
        }
        free(x);
        free(y);
    }
}

static struct mesa_affine_runs one_run(size_t n) {
    return (struct mesa_affine_runs){.runs = 1, .run = n};
}

/* Runs of a group that is spread give what a contiguous group gives. */
Test(kernels, affine_runs_equal_rows) {
    for (int round = 0; round < 900; round++) {
        float x[MAX_GROUP], y[MAX_GROUP], z[MAX_GROUP], spread[MAX_SPREAD];
        size_t run = 1 + (size_t)rand() % 99, gap = (size_t)rand() % 50;
        size_t n = (32 + (size_t)rand() % (MAX_GROUP - 32)) / run * run;
        if (n < 32 || n / run * (run + gap) > MAX_SPREAD)
            continue;
        const struct mesa_affine_runs runs = {n / run, run, (ptrdiff_t)(run + gap), run};
        for (size_t i = 0; i < n; i++)
            x[i] = random_float(round % 5, i);
        for (size_t i = 0; i < n; i++)
            spread[i / run * (run + gap) + i % run] = x[i];
        unsigned bits = 1 + (unsigned)rand() % MESA_MOST_CODE_BITS;
        bool strict = rand() % 2;
        float lo = INFINITY, hi = -INFINITY;
        cr_assert(kernels.affine_range[MESA_F32](&runs, spread, &lo, &hi));
        uint32_t word = mesa_affine_word(lo, hi, bits, strict, MESA_ROUND_NEAREST);
        struct mesa_affine_rows rows = one_group(n, bits, strict, MESA_ROUND_NEAREST);
        struct held held = round_trip(&rows, x, y);
        cr_assert(eq(u32, held.word, word));
        if (word == MESA_GROUP_RAW)
            continue;
        uint8_t upper[MAX_GROUP], lower[MAX_GROUP], packed[MAX_GROUP * 2];
        const struct mesa_code_bytes codes = {upper, lower};
        kernels.affine_quantize[MESA_F32](&runs, spread, word, bits, strict, codes);
        kernels.pack_bits(upper, n, bits < 8 ? bits : 8, packed);
        if (bits > 8)
            kernels.pack_bits(lower, n, bits - 8, packed + n);
        cr_assert(eq(int, memcmp(packed, held.codes, mesa_code_row_bytes(n, bits)), 0));
        kernels.affine_dequantize[MESA_F32](&runs, codes, bits, word, spread);
        for (size_t i = 0; i < n; i++)
            z[i] = spread[i / run * (run + gap) + i % run];
        cr_assert(eq(int, memcmp(y, z, n * sizeof *y), 0));
    }
}

static void check_columns(unsigned bits) {
    enum { ROWS = 40, COLUMNS = 7 };
    float x[ROWS][COLUMNS], y[ROWS][COLUMNS], lo[COLUMNS], hi[COLUMNS];
    uint32_t words[COLUMNS];
    uint8_t upper[ROWS][COLUMNS], lower[ROWS][COLUMNS];
    const struct mesa_code_bytes codes = {upper[0], lower[0]};
    memset(lower, 0, sizeof lower);
    for (size_t i = 0; i < COLUMNS; i++) {
        for (size_t r = 0; r < ROWS; r++)
            x[r][i] = i == 2 ? 0 : (float)(random_unit() * (double)i - 1);
        lo[i] = INFINITY;
        hi[i] = -INFINITY;
    }
    cr_assert(kernels.affine_range_columns[MESA_F32](x, ROWS, COLUMNS, lo, hi));
    for (size_t i = 0; i < COLUMNS; i++)
        words[i] = mesa_affine_word(lo[i], hi[i], bits, true, MESA_ROUND_NEAREST);
    kernels.affine_quantize_columns[MESA_F32](x, ROWS, COLUMNS, words, bits, true, codes);
    kernels.affine_dequantize_columns[MESA_F32](codes, bits, ROWS, COLUMNS, words, y);
    for (size_t i = 0; i < COLUMNS; i++) {
        for (size_t r = 0; r < ROWS; r++) {
            uint8_t code[2] = {0};
            float value;
            const struct mesa_affine_runs alone = one_run(1);
            const struct mesa_code_bytes one = {&code[0], &code[1]};
            kernels.affine_quantize[MESA_F32](&alone, &x[r][i], words[i], bits, true, one);
            kernels.affine_dequantize[MESA_F32](&alone, one, bits, words[i], &value);
            cr_assert(eq(u8, code[0], upper[r][i]));
            cr_assert(eq(u8, code[1], lower[r][i]));
            cr_assert(eq(u32, float_bits(value), float_bits(y[r][i])));
        }
    }
    x[3][4] = NAN;
    cr_assert(not(kernels.affine_range_columns[MESA_F32](x, ROWS, COLUMNS, lo, hi)));
}

Test(kernels, affine_columns_equal_runs) {
    for (unsigned bits = 2; bits <= MESA_MOST_CODE_BITS; bits++)
        check_columns(bits);
}

Test(kernels, quantize_clips_to_the_nearest_code) {
    uint32_t word = mesa_affine_word(-1, 1, 4, false, MESA_ROUND_NEAREST);
    const float far[] = {-1e30f, 1e30f, -INFINITY, INFINITY};
    uint8_t codes[4];
    const struct mesa_affine_runs all = one_run(4);
    kernels.affine_quantize[MESA_F32](&all, far, word, 4, false,
                                      (struct mesa_code_bytes){.upper = codes});
    cr_assert(eq(u8, codes[0], 0));
    cr_assert(eq(u8, codes[1], 15));
    cr_assert(eq(u8, codes[2], 0));
    cr_assert(eq(u8, codes[3], 15));
}

Test(kernels, bits_are_packed_low_first) {
    const uint8_t codes[] = {5, 2, 7, 1};
    uint8_t packed[2], unpacked[4];
    kernels.pack_bits(codes, 4, 3, packed);
    cr_assert(eq(u8, packed[0], (5 | 2 << 3 | 7 << 6) & 0xff));
    cr_assert(eq(u8, packed[1], 7 >> 2 | 1 << 1));
    kernels.unpack_bits(packed, 4, 3, unpacked);
    cr_assert(eq(int, memcmp(codes, unpacked, 4), 0));
    for (unsigned bits = 1; bits <= 8; bits++) {
        uint8_t random[77], held[77], back[77];
        for (size_t i = 0; i < 77; i++)
            random[i] = (uint8_t)((unsigned)rand() & ((1u << bits) - 1));
        kernels.pack_bits(random, 77, bits, held);
        for (size_t i = 0; i < 77; i++)
            for (unsigned b = 0; b < bits; b++) {
                size_t at = i * bits + b;
                cr_assert(eq(int, held[at / 8] >> at % 8 & 1, random[i] >> b & 1));
            }
        kernels.unpack_bits(held, 77, bits, back);
        cr_assert(eq(int, memcmp(random, back, 77), 0));
    }
}

/* ---- the floating point environment ---------------------------------------------------------------- */

/* Groups with subnormals and ties, in an environment that would treat them otherwise. */
Test(kernels, results_do_not_depend_on_the_callers_float_state) {
    float x[256], y[2][256];
    struct held held[2];
    for (size_t i = 0; i < 256; i++)
        x[i] = i % 4 == 0 ? (float)i * FLT_TRUE_MIN : (float)(rand() % 200 - 90) * 0.5f;
    struct mesa_affine_rows rows = one_group(256, 7, true, MESA_ROUND_NEAREST);
    held[0] = round_trip(&rows, x, y[0]);

    fesetround(FE_UPWARD);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040); /* FTZ and DAZ */
    unsigned before = _mm_getcsr();
#endif
    mesa_float_state state = mesa_float_state_enter();
    held[1] = round_trip(&rows, x, y[1]);
    mesa_float_state_leave(state);
#if defined(__x86_64__)
    unsigned after = _mm_getcsr();
    _mm_setcsr(before & ~0x8040u);
    cr_assert(eq(u32, before, after));
#endif
    int rounding = fegetround();
    fesetround(FE_TONEAREST);
    cr_assert(eq(int, rounding, FE_UPWARD));
    cr_assert(eq(u32, held[0].word, held[1].word));
    cr_assert(eq(int, memcmp(held[0].codes, held[1].codes, sizeof held[0].codes), 0));
    cr_assert(eq(int, memcmp(y[0], y[1], sizeof y[0]), 0));
}

/* ---- masks ------------------------------------------------------------------------------------------ */

Test(kernels, masks_compare_as_said) {
    const float x[] = {-1, -0.0f, 0, 0.5f, 1, 2, NAN, INFINITY};
    const struct {
        enum mesa_predicate predicate;
        double lo, hi;
        uint8_t mask; /* element 0 is bit 0 */
    } cases[] = {
        {MESA_ABOVE, 0, 0, 0xf8},   {MESA_GREATER, 0, 0, 0xb8}, {MESA_BETWEEN, 0, 1, 0x08},
        {MESA_WITHIN, 0, 1, 0x1e},  {MESA_NONZERO, 0, 0, 0xf9}, {MESA_ABOVE, 0.5, 0, 0xf0},
        {MESA_WITHIN, -1, 2, 0x3f}, {MESA_ABOVE, NAN, 0, 0xff}, {MESA_GREATER, NAN, 0, 0},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        uint8_t mask = 0x55;
        kernels.mask_pack[MESA_F32](x, 8, cases[k].predicate, cases[k].lo, cases[k].hi, &mask);
        cr_assert(eq(u8, mask, cases[k].mask), "case %zu", k);
        double wide[8];
        uint16_t bf16[8], f16[8];
        for (size_t i = 0; i < 8; i++) {
            wide[i] = (double)x[i];
            bf16[i] = bf16_round(x[i]);
            f16[i] = f16_round(x[i]);
        }
        const void *sources[] = {x, bf16, f16, wide};
        for (size_t dtype = 0; dtype < MESA_REAL_DTYPES; dtype++) {
            kernels.mask_pack[dtype](sources[dtype], 8, cases[k].predicate, cases[k].lo,
                                     cases[k].hi, &mask);
            cr_assert(eq(u8, mask, cases[k].mask), "case %zu dtype %zu", k, dtype);
        }
    }
}

/* A float32 against a bound that float32 cannot express. */
Test(kernels, masks_compare_in_double) {
    const float x[] = {0.1f, nextafterf(0.1f, 0)};
    uint8_t mask;
    kernels.mask_pack[MESA_F32](x, 2, MESA_GREATER, 0.1, 0, &mask);
    cr_assert(eq(u8, mask, 1), "0.1f is a little more than 0.1");
}

Test(kernels, bool_masks_round_trip) {
    for (size_t n = 0; n < 70; n++) {
        uint8_t x[70], y[70], mask[9];
        memset(mask, 0xff, sizeof mask);
        for (size_t i = 0; i < n; i++)
            x[i] = rand() % 2;
        kernels.mask_pack_bool(x, n, mask);
        for (size_t i = n; i < (n + 7) / 8 * 8; i++)
            cr_assert(eq(int, mask[i / 8] >> i % 8 & 1, 0), "spare bits");
        kernels.mask_unpack_bool(mask, n, y);
        cr_assert(eq(int, memcmp(x, y, n), 0));
    }
}

Test(kernels, two_values_round_trip_and_a_third_is_seen) {
    for (size_t index = 0; index < 3; index++) {
        size_t bytes = (size_t)2 << index;
        const uint64_t zero = 0x8000800080008000u, one = 0x3f8c3f8c3f8c3f8cu;
        for (size_t n = 0; n < 50; n++) {
            uint8_t x[400], y[400], mask[7];
            for (size_t i = 0; i < n; i++)
                memcpy(x + i * bytes, rand() % 2 ? &one : &zero, bytes);
            cr_assert(kernels.mask_pack_two[index](x, n, &zero, &one, mask));
            kernels.mask_unpack_two[index](mask, n, &zero, &one, false, y);
            cr_assert(eq(int, memcmp(x, y, n * bytes), 0));
            if (n == 0)
                continue;
            x[(size_t)rand() % (n * bytes)] ^= 1;
            cr_assert(not(kernels.mask_pack_two[index](x, n, &zero, &one, mask)));
        }
    }
}

Test(kernels, signs_round_trip) {
    const float x[] = {3, -2, 0, -0.0f, NAN, INFINITY, -FLT_TRUE_MIN};
    const float want[] = {1, -1, 0, 0, NAN, 1, -1};
    uint8_t codes[2];
    float y[7];
    kernels.sign_pack[MESA_F32](x, 7, codes);
    kernels.sign_unpack[MESA_F32](codes, 7, y);
    for (size_t i = 0; i < 7; i++)
        cr_assert(y[i] == want[i] || (isnan(y[i]) && isnan(want[i])));
}

Test(kernels, sparse_runs_round_trip) {
    for (size_t index = 0; index < 4; index++) {
        size_t bytes = (size_t)1 << index;
        for (size_t n = 0; n < 100; n++) {
            uint8_t x[800], y[800], mask[13], elements[864];
            size_t present = 0;
            memset(x, 0, sizeof x);
            for (size_t i = 0; i < n; i++) {
                x[i * bytes + bytes - 1] = rand() % 3 ? 0 : 0x80; /* -0: not +0, so held */
                present += x[i * bytes + bytes - 1] != 0;
            }
            cr_assert(
                eq(sz, kernels.sparse_compress[index](x, n, present, mask, elements), present));
            cr_assert(eq(sz, kernels.sparse_expand[index](mask, n, elements, y), present));
            cr_assert(eq(int, memcmp(x, y, n * bytes), 0));
            if (present > 0)
                cr_assert(eq(sz, kernels.sparse_compress[index](x, n, present - 1, mask, elements),
                             SIZE_MAX));
        }
    }
}

/* ---- numbers ---------------------------------------------------------------------------------------- */

Test(kernels, integers_round_trip) {
    const int64_t x[] = {INT64_MAX, INT64_MAX - 255, INT64_MAX - 7};
    int64_t lo, hi, y[3];
    uint8_t narrow[3];
    kernels.integer_range[3](x, 3, &lo, &hi);
    cr_assert(eq(i64, lo, INT64_MAX - 255));
    cr_assert(eq(i64, hi, INT64_MAX));
    kernels.integer_narrow[3](x, 3, lo, 1, narrow);
    cr_assert(eq(u8, narrow[2], 248));
    kernels.integer_widen[3](narrow, 3, lo, 1, y);
    cr_assert(eq(int, memcmp(x, y, sizeof x), 0));

    const int8_t small[] = {-128, 127};
    int8_t back[2];
    kernels.integer_range[0](small, 2, &lo, &hi);
    cr_assert(eq(i64, lo, -128));
    cr_assert(eq(i64, hi, 127));
    kernels.integer_narrow[0](small, 2, lo, 1, narrow);
    cr_assert(eq(u8, narrow[1], 255));
    kernels.integer_widen[0](narrow, 2, lo, 1, back);
    cr_assert(eq(int, memcmp(small, back, 2), 0));
}

/* The nearest of all values that a short float with `mantissa` bits and least exponent `least` has,
 * by arithmetic instead of bits. */
static double nearest_short(double x, int mantissa, int least, double most) {
    if (x == 0 || !isfinite(x))
        return x;
    int exponent;
    frexp(x, &exponent); /* |x| in [2^(exponent - 1), 2^exponent) */
    int unit = exponent - 1 < least ? least - mantissa : exponent - 1 - mantissa;
    double rounded = ldexp(rint(ldexp(x, -unit)), unit);
    return fabs(rounded) > most ? copysign(INFINITY, x) : rounded;
}

Test(kernels, short_floats_round_to_nearest_even) {
    for (int round = 0; round < 400000; round++) {
        uint32_t bits = round < 200000 ? random_word() : (random_word() & 0xffffe000u) | 0x1000u;
        float x = float_of_bits(bits);
        uint16_t bf16, f16;
        kernels.float_to_bf16(&x, 1, &bf16);
        float back;
        kernels.bf16_to_float(&bf16, 1, false, &back);
        bool fits = kernels.float_to_f16(&x, 1, &f16);
        if (isnan(x)) {
            cr_assert(isnan(back) && fits && (f16 & 0x7fff) > 0x7c00);
            continue;
        }
        cr_assert(nearest_short((double)x, 7, -126, 0x1.fep127) == (double)back, "%a became %a",
                  (double)x, (double)back);
        double want = nearest_short((double)x, 10, -14, 65504);
        cr_assert(fits == (isfinite(want) || isinf(x)));
        if (!fits)
            continue;
        kernels.f16_to_float(&f16, 1, false, &back);
        cr_assert(want == (double)back, "%a became %a", (double)x, (double)back);
        cr_assert(signbit(back) == signbit(x));
    }
}

Test(kernels, every_float16_widens_exactly) {
    for (uint32_t half = 0; half < 0x10000; half++) {
        uint16_t in = (uint16_t)half, out;
        float x;
        kernels.f16_to_float(&in, 1, false, &x);
        cr_assert(kernels.float_to_f16(&x, 1, &out));
        if (isnan(x))
            cr_assert(eq(int, in | 0x200, out)); /* quiet now, its payload kept */
        else
            cr_assert(eq(u16, in, out));
    }
}

Test(kernels, finiteness_is_seen_everywhere) {
    for (size_t n = 1; n < 40; n++) {
        double wide[40] = {0};
        float x[40] = {FLT_MAX, -FLT_MAX};
        cr_assert(kernels.all_finite[MESA_F32](x, n));
        cr_assert(kernels.all_finite[MESA_F64](wide, n));
        x[n - 1] = NAN;
        wide[n - 1] = -INFINITY;
        cr_assert(not(kernels.all_finite[MESA_F32](x, n)));
        cr_assert(not(kernels.all_finite[MESA_F64](wide, n)));
    }
    double large = 1e300; /* finite, though not as float32 */
    cr_assert(kernels.all_finite[MESA_F64](&large, 1));
}

Test(kernels, fingerprints_tell_contents_apart) {
    uint8_t x[300] = {0};
    uint64_t seen = kernels.fingerprint(x, 300);
    cr_assert(ne(u64, kernels.fingerprint(x, 299), seen), "zeros of another length");
    for (size_t i = 0; i < 300; i++) {
        x[i] ^= (uint8_t)(1 << i % 8);
        cr_assert(ne(u64, kernels.fingerprint(x, 300), seen));
        x[i] ^= (uint8_t)(1 << i % 8);
    }
    cr_assert(eq(u64, kernels.fingerprint(x, 300), seen));
    uint64_t words[16];
    for (uint64_t i = 0; i < 16; i++)
        words[i] = i;
    seen = kernels.fingerprint(words, sizeof words);
    words[0] = 8; /* lanes and blocks are not interchangeable */
    words[8] = 0;
    cr_assert(ne(u64, kernels.fingerprint(words, sizeof words), seen));
}

/* ---- the table -------------------------------------------------------------------------------------- */

Test(kernels, every_entry_of_every_isa_is_filled) {
    for (enum mesa_isa isa = 0; isa < MESA_ISA_COUNT; isa++) {
        cr_assert(eq(int, (int)mesa_isa_find(mesa_isa_name(isa)), (int)isa));
        if (!mesa_isa_supported(isa))
            continue;
        struct mesa_kernels table;
        mesa_kernels_fill(&table, isa);
        cr_assert(eq(str, (char *)table.name, (char *)mesa_isa_name(isa)));
        const char *bytes = (const char *)&table;
        for (size_t at = 0; at < sizeof table; at += sizeof(void (*)(void))) {
            void (*entry)(void);
            memcpy(&entry, bytes + at, sizeof entry);
            cr_assert(entry != NULL, "%s: word %zu of the table is empty", table.name,
                      at / sizeof entry);
        }
    }
    cr_assert(eq(int, (int)mesa_isa_find("sse9"), MESA_ISA_COUNT));
    cr_assert(mesa_isa_supported(mesa_isa_best()));
    cr_assert(mesa_cache_bytes() >= 1 << 16);
}
