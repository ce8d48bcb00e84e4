/* The entries of the table that affine_ISA.c fills for one dtype, made from the always-inline bodies
 * `encode`, `decode`, `range_runs`, ...: the dtype becomes a constant in each, and for a `hot` one so do 8
 * and 4 bits, the widths that are used most.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_AFFINE_ENTRIES_H
#define MESA_CODEC_KERNELS_AFFINE_ENTRIES_H

/* What every ISA has; float64 is added where there are vectors of it. */
#define AFFINE_HALVES_AND_FLOATS(entries)                                                          \
    entries(f32, MESA_F32, true) entries(bf16, MESA_BF16, true) entries(f16, MESA_F16, false)
#define AFFINE_DOUBLES(entries) entries(f64, MESA_F64, false)

#define DEFINE_AFFINE_ENTRIES(name, dtype, hot)                                                    \
    static size_t encode_##name(const struct mesa_affine_rows *rows, const void *src,              \
                                uint32_t *ret_words, uint8_t *ret_codes) {                         \
        bool plain = hot && !rows->strict_sign && rows->rounding == MESA_ROUND_NEAREST;            \
        if (plain && rows->bits == 8)                                                              \
            return encode(dtype, 8, false, MESA_ROUND_NEAREST, rows, src, ret_words, ret_codes);   \
        if (plain && rows->bits == 4)                                                              \
            return encode(dtype, 4, false, MESA_ROUND_NEAREST, rows, src, ret_words, ret_codes);   \
        return encode(dtype, rows->bits, rows->strict_sign, rows->rounding, rows, src, ret_words,  \
                      ret_codes);                                                                  \
    }                                                                                              \
    static void decode_##name(const struct mesa_affine_rows *rows, const uint32_t *words,          \
                              const uint8_t *codes, const uint8_t *raw, size_t raw_group_bytes,    \
                              bool stream, void *ret_dst) {                                        \
        if (hot && rows->bits == 8)                                                                \
            decode(dtype, 8, rows, words, codes, raw, raw_group_bytes, stream, ret_dst);           \
        else if (hot && rows->bits == 4)                                                           \
            decode(dtype, 4, rows, words, codes, raw, raw_group_bytes, stream, ret_dst);           \
        else                                                                                       \
            decode(dtype, rows->bits, rows, words, codes, raw, raw_group_bytes, stream, ret_dst);  \
    }                                                                                              \
    static bool range_runs_##name(const struct mesa_affine_runs *runs, const void *src, float *lo, \
                                  float *hi) {                                                     \
        return range_runs(dtype, runs, src, lo, hi);                                               \
    }                                                                                              \
    static void quantize_runs_##name(const struct mesa_affine_runs *runs, const void *src,         \
                                     uint32_t word, unsigned bits, bool strict_sign,               \
                                     struct mesa_code_bytes ret_codes) {                           \
        if (bits > 8)                                                                              \
            quantize_runs(dtype, runs, src, word, bits, strict_sign, ret_codes);                   \
        else if (strict_sign)                                                                      \
            quantize_runs(dtype, runs, src, word, bits, true, ret_codes);                          \
        else                                                                                       \
            quantize_runs(dtype, runs, src, word, bits, false, ret_codes);                         \
    }                                                                                              \
    static void dequantize_runs_##name(const struct mesa_affine_runs *runs,                        \
                                       struct mesa_code_bytes codes, unsigned bits, uint32_t word, \
                                       void *ret_dst) {                                            \
        if (bits <= 8)                                                                             \
            dequantize_runs(dtype, runs, codes, 8, word, ret_dst);                                 \
        else                                                                                       \
            dequantize_runs(dtype, runs, codes, bits, word, ret_dst);                              \
    }                                                                                              \
    static bool range_columns_##name(const void *src, size_t rows, size_t n, float *lo,            \
                                     float *hi) {                                                  \
        return range_columns(dtype, src, rows, n, lo, hi);                                         \
    }                                                                                              \
    static void quantize_columns_##name(const void *src, size_t rows, size_t n,                    \
                                        const uint32_t *words, unsigned bits, bool strict_sign,    \
                                        struct mesa_code_bytes ret_codes) {                        \
        quantize_columns(dtype, src, rows, n, words, bits, strict_sign, ret_codes);                \
    }                                                                                              \
    static void dequantize_columns_##name(struct mesa_code_bytes codes, unsigned bits,             \
                                          size_t rows, size_t n, const uint32_t *words,            \
                                          void *ret_dst) {                                         \
        dequantize_columns(dtype, codes, bits, rows, n, words, ret_dst);                           \
    }

#define SET_AFFINE_ENTRIES(name, dtype, hot)                                                       \
    table->affine_encode[dtype] = encode_##name;                                                   \
    table->affine_decode[dtype] = decode_##name;                                                   \
    table->affine_range[dtype] = range_runs_##name;                                                \
    table->affine_quantize[dtype] = quantize_runs_##name;                                          \
    table->affine_dequantize[dtype] = dequantize_runs_##name;                                      \
    table->affine_range_columns[dtype] = range_columns_##name;                                     \
    table->affine_quantize_columns[dtype] = quantize_columns_##name;                               \
    table->affine_dequantize_columns[dtype] = dequantize_columns_##name;

#endif
