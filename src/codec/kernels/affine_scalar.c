/* Specification of the affine kernels: groups of elements to codes and back. Written for reading;
 * the vector files must give the same bytes. What single elements and words mean is in affine.h and
 * affine_word.c.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/affine.h"
#include "codec/kernels/affine_entries.h"
#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"

/* ---- runs of one group ----------------------------------------------------------------------- */

/* A range never ends in -0: which zero a minimum finds would depend on the order. */
MESA_ALWAYS_INLINE bool range(enum mesa_dtype dtype, const void *src, size_t n, float *lo,
                              float *hi) {
    float least = *lo, most = *hi;
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        float x = element_load(dtype, src, i);
        finite &= isfinite(x);
        least = x < least ? x : least;
        most = x > most ? x : most;
    }
    *lo = least + 0.0f;
    *hi = most + 0.0f;
    return finite;
}

MESA_ALWAYS_INLINE void quantize(enum mesa_dtype dtype, const void *src, size_t n, uint32_t word,
                                 unsigned bits, bool strict_sign,
                                 struct mesa_code_bytes ret_codes) {
    struct affine_grid grid = affine_grid_of(word, bits);
    for (size_t i = 0; i < n; i++) {
        float x = element_load(dtype, src, i);
        code_store(ret_codes, bits, i, word == 0 ? 0 : affine_nearest(x, grid, strict_sign));
    }
}

MESA_ALWAYS_INLINE void dequantize(enum mesa_dtype dtype, struct mesa_code_bytes codes,
                                   unsigned bits, size_t n, uint32_t word, void *ret_dst) {
    for (size_t i = 0; i < n; i++)
        element_store(dtype, ret_dst, i, affine_value(code_load(codes, bits, i), word));
}

MESA_ALWAYS_INLINE bool range_runs(enum mesa_dtype dtype, const struct mesa_affine_runs *runs,
                                   const void *src, float *lo, float *hi) {
    bool finite = true;
    for (size_t i = 0; i < runs->runs; i++)
        finite &= range(dtype, run_at(dtype, runs, src, i), runs->run, lo, hi);
    return finite;
}

MESA_ALWAYS_INLINE void quantize_runs(enum mesa_dtype dtype, const struct mesa_affine_runs *runs,
                                      const void *src, uint32_t word, unsigned bits,
                                      bool strict_sign, struct mesa_code_bytes ret_codes) {
    for (size_t i = 0; i < runs->runs; i++)
        quantize(dtype, run_at(dtype, runs, src, i), runs->run, word, bits, strict_sign,
                 codes_from(ret_codes, bits, i * runs->code_stride));
}

MESA_ALWAYS_INLINE void dequantize_runs(enum mesa_dtype dtype, const struct mesa_affine_runs *runs,
                                        struct mesa_code_bytes codes, unsigned bits, uint32_t word,
                                        void *ret_dst) {
    for (size_t i = 0; i < runs->runs; i++)
        dequantize(dtype, codes_from(codes, bits, i * runs->code_stride), bits, runs->run, word,
                   (char *)ret_dst + run_offset(dtype, runs, i));
}

/* ---- one group for each column --------------------------------------------------------------- */

MESA_ALWAYS_INLINE bool range_columns(enum mesa_dtype dtype, const void *src, size_t rows, size_t n,
                                      float *lo, float *hi) {
    bool finite = true;
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < n; i++)
            finite &= range(dtype, element_at(dtype, src, row * n + i), 1, &lo[i], &hi[i]);
    return finite;
}

MESA_ALWAYS_INLINE void quantize_columns(enum mesa_dtype dtype, const void *src, size_t rows,
                                         size_t n, const uint32_t *words, unsigned bits,
                                         bool strict_sign, struct mesa_code_bytes ret_codes) {
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < n; i++)
            quantize(dtype, element_at(dtype, src, row * n + i), 1, words[i], bits, strict_sign,
                     codes_from(ret_codes, bits, row * n + i));
}

MESA_ALWAYS_INLINE void dequantize_columns(enum mesa_dtype dtype, struct mesa_code_bytes codes,
                                           unsigned bits, size_t rows, size_t n,
                                           const uint32_t *words, void *ret_dst) {
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < n; i++)
            dequantize(dtype, codes_from(codes, bits, row * n + i), bits, 1, words[i],
                       (char *)ret_dst + (row * n + i) * element_bytes(dtype));
}

/* ---- codes of less than a byte --------------------------------------------------------------- */

static void pack_bits(const uint8_t *codes, size_t n, unsigned bits, uint8_t *ret_packed) {
    uint32_t pending = 0; /* bits not written yet, low ones first */
    unsigned filled = 0;
    for (size_t i = 0; i < n; i++) {
        pending |= (uint32_t)codes[i] << filled;
        filled += bits;
        if (filled >= 8) {
            *ret_packed++ = (uint8_t)pending;
            pending >>= 8;
            filled -= 8;
        }
    }
    if (filled > 0)
        *ret_packed = (uint8_t)pending;
}

static void unpack_bits(const uint8_t *packed, size_t n, unsigned bits, uint8_t *ret_codes) {
    uint32_t pending = 0;
    unsigned filled = 0;
    for (size_t i = 0; i < n; i++) {
        if (filled < bits) {
            pending |= (uint32_t)*packed++ << filled;
            filled += 8;
        }
        ret_codes[i] = (uint8_t)(pending & ((1u << bits) - 1));
        pending >>= bits;
        filled -= bits;
    }
}

/* ---- rows of groups -------------------------------------------------------------------------- */

/* Codes that are made before they are packed; a multiple of 8, so that each piece ends at a byte. */
#define PIECE 256

static bool is_constant(const void *src, size_t n, size_t bytes) {
    for (size_t i = 1; i < n; i++)
        if (memcmp(src, (const char *)src + i * bytes, bytes) != 0)
            return false;
    return true;
}

/* How a call codes all its groups. */
struct coding {
    unsigned bits;
    bool strict_sign;
    enum mesa_rounding rounding;
    uint64_t seed;
};

MESA_ALWAYS_INLINE void code_group(enum mesa_dtype dtype, struct coding coding, const void *src,
                                   size_t n, uint64_t first_element, uint32_t word,
                                   uint8_t *ret_codes) {
    struct affine_grid grid = affine_grid_of(word, coding.bits);
    const unsigned lower_bits = mesa_lower_bits(coding.bits);
    const unsigned upper_bits = coding.bits - lower_bits;
    for (size_t begin = 0; begin < n; begin += PIECE) {
        uint8_t upper[PIECE], lower[PIECE];
        struct mesa_code_bytes codes = {upper, lower};
        size_t count = n - begin < PIECE ? n - begin : PIECE;
        for (size_t i = 0; i < count; i++) {
            float x = element_load(dtype, src, begin + i);
            if (coding.rounding == MESA_ROUND_STOCHASTIC) {
                uint64_t element = first_element + begin + i;
                float uniform =
                    affine_uniform(affine_key_of(coding.seed, element), (uint32_t)element);
                code_store(codes, coding.bits, i,
                           affine_stochastic(x, grid, coding.strict_sign, uniform));
            } else {
                code_store(codes, coding.bits, i, affine_nearest(x, grid, coding.strict_sign));
            }
        }
        pack_bits(upper, count, upper_bits, ret_codes + begin * upper_bits / 8);
        if (lower_bits != 0)
            pack_bits(lower, count, lower_bits, ret_codes + n + begin * lower_bits / 8);
    }
}

/* Returns the word. A group of one repeated element keeps that element, whatever it is, but for
 * zeros: those are the word 0, as are groups of +0 and -0. */
MESA_ALWAYS_INLINE uint32_t encode_group(enum mesa_dtype dtype, struct coding coding,
                                         const void *src, size_t n, uint64_t first_element,
                                         uint8_t *ret_codes) {
    float lo = INFINITY, hi = -INFINITY;
    bool finite = range(dtype, src, n, &lo, &hi);
    size_t code_bytes = mesa_code_row_bytes(n, coding.bits);
    size_t bytes = element_bytes(dtype);

    bool one_value = !finite || (lo == hi && lo != 0);
    if (one_value && code_bytes >= bytes && is_constant(src, n, bytes)) {
        memset(ret_codes, 0, code_bytes);
        memcpy(ret_codes, src, bytes);
        return MESA_GROUP_CONSTANT;
    }
    uint32_t word = finite
                        ? mesa_affine_word(lo, hi, coding.bits, coding.strict_sign, coding.rounding)
                        : MESA_GROUP_RAW;
    if (word == 0 || word == MESA_GROUP_RAW)
        memset(ret_codes, 0, code_bytes);
    else
        code_group(dtype, coding, src, n, first_element, word, ret_codes);
    return word;
}

MESA_ALWAYS_INLINE size_t encode(enum mesa_dtype dtype, unsigned bits, bool strict_sign,
                                 enum mesa_rounding rounding, const struct mesa_affine_rows *rows,
                                 const void *src, uint32_t *ret_words, uint8_t *ret_codes) {
    struct coding coding = {bits, strict_sign, rounding, rows->seed};
    size_t raw_groups = 0;
    size_t code_row_bytes = mesa_code_row_bytes(rows->row, bits);
    for (size_t row = 0; row < rows->rows; row++) {
        const char *from =
            (const char *)src + (ptrdiff_t)row * rows->row_stride * (ptrdiff_t)element_bytes(dtype);
        uint8_t *codes = ret_codes + row * code_row_bytes;
        for (size_t j = 0; j < rows->groups; j++) {
            size_t begin = mesa_group_begin(rows->row, rows->groups, j);
            size_t end = mesa_group_begin(rows->row, rows->groups, j + 1);
            uint32_t word = encode_group(dtype, coding, element_at(dtype, from, begin), end - begin,
                                         rows->first_element + row * rows->row + begin,
                                         codes + begin * bits / 8);
            raw_groups += word == MESA_GROUP_RAW;
            *ret_words++ = word;
        }
    }
    return raw_groups;
}

MESA_ALWAYS_INLINE void decode_group(enum mesa_dtype dtype, uint32_t word, const uint8_t *codes,
                                     size_t n, unsigned bits, const uint8_t *raw,
                                     size_t raw_group_bytes, void *ret_dst) {
    const size_t bytes = element_bytes(dtype);
    const unsigned lower_bits = mesa_lower_bits(bits), upper_bits = bits - lower_bits;
    if (word == MESA_GROUP_CONSTANT) {
        for (size_t i = 0; i < n; i++)
            memcpy((char *)ret_dst + i * bytes, codes, bytes);
        return;
    }
    if (word == MESA_GROUP_RAW) {
        size_t index =
            codes[0] | (size_t)codes[1] << 8 | (size_t)codes[2] << 16 | (size_t)codes[3] << 24;
        memcpy(ret_dst, raw + index * raw_group_bytes, n * bytes);
        return;
    }
    for (size_t begin = 0; begin < n; begin += PIECE) {
        uint8_t upper[PIECE], lower[PIECE];
        size_t count = n - begin < PIECE ? n - begin : PIECE;
        unpack_bits(codes + begin * upper_bits / 8, count, upper_bits, upper);
        if (lower_bits != 0)
            unpack_bits(codes + n + begin * lower_bits / 8, count, lower_bits, lower);
        dequantize(dtype, (struct mesa_code_bytes){upper, lower}, bits, count, word,
                   (char *)ret_dst + begin * bytes);
    }
}

MESA_ALWAYS_INLINE void decode(enum mesa_dtype dtype, unsigned bits,
                               const struct mesa_affine_rows *rows, const uint32_t *words,
                               const uint8_t *codes, const uint8_t *raw, size_t raw_group_bytes,
                               bool stream, void *ret_dst) {
    (void)stream; /* a matter of speed only */
    size_t code_row_bytes = mesa_code_row_bytes(rows->row, bits);
    for (size_t row = 0; row < rows->rows; row++) {
        for (size_t j = 0; j < rows->groups; j++) {
            size_t begin = mesa_group_begin(rows->row, rows->groups, j);
            size_t end = mesa_group_begin(rows->row, rows->groups, j + 1);
            char *to = (char *)ret_dst + (row * rows->row + begin) * element_bytes(dtype);
            decode_group(dtype, *words++, codes + row * code_row_bytes + begin * bits / 8,
                         end - begin, bits, raw, raw_group_bytes, to);
        }
    }
}

/* ---- the entries ----------------------------------------------------------------------------- */

AFFINE_HALVES_AND_FLOATS(DEFINE_AFFINE_ENTRIES)
AFFINE_DOUBLES(DEFINE_AFFINE_ENTRIES)

void mesa_kernels_fill_affine_scalar(struct mesa_kernels *table) {
    AFFINE_HALVES_AND_FLOATS(SET_AFFINE_ENTRIES)
    AFFINE_DOUBLES(SET_AFFINE_ENTRIES)
    table->pack_bits = pack_bits;
    table->unpack_bits = unpack_bits;
}
