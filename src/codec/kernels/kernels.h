/* The table of kernels: what a codec does to many elements at once, one function a job, chosen once
 * for the processor. `*_scalar.c` define every byte; each other file overwrites the entries that it
 * does faster and must equal the scalar ones bit for bit. Kernels know arrays of elements only: no
 * tensors, no locks, no allocation.
 *
 * All pointers may have any alignment that the element type allows in torch (down to 1 byte for
 * foreign memory: load with memcpy or unaligned vector loads). Kernels run in any thread, at the
 * same time. Callers have put the floating point environment into its default state first
 * (mesa_float_state_enter), so kernels may rely on round-to-nearest-even and on subnormals.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_KERNELS_H
#define MESA_CODEC_KERNELS_KERNELS_H

#include "dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- affine: codes with a scale and an integer zero point, zero on the grid --------------------
 *
 * A group is a run of elements with one 32-bit group word w:
 *     bits 31..16  the upper half of a float32 scale s > 0 (that is, a bfloat16, rounded up)
 *     bits 15..0   int16 zero point z
 * and a code q (0 <= q < 2^bits) for each element; value = (float)(q + z) * s, one multiply, so
 * there is nothing to contract. w == 0 (s == 0): every element is +0, codes are 0.
 * Encoding group x with L = 2^bits - 1 (all in float32; bf16 and f16 are widened first, f64 is
 * narrowed first, and a float64 that is finite but not finite as float32 makes the group raw):
 *     lo = min(x), hi = max(x); s = up(bf16, max((hi - lo) / L, max|x| / 32000))
 *     z = rint(lo / s), moved so that 0 has a code whenever it lies in [lo, hi]
 *     q = rint(x * (1/s)) - z, clipped to 0..L
 * The grid is s times the integers, so 0 is on it and signs never change (a value below s/2 becomes
 * 0 unless strict_sign is set). The error is at most s/2 (s if stochastic or strict_sign), but for
 * the rounding of x * (1/s) itself: |x| 2^-22. Where codes must reach further than the range does
 * (stochastic, strict_sign) the range gets L - 1 steps; affine_word.c is the specification.
 * float16 results beyond the largest float16 become the largest.
 *
 * Two marks with z == INT16_MIN (never a zero point) say that a group is held otherwise:
 *     MESA_GROUP_CONSTANT  all elements have the same bits (not +-0; NaN and Inf too): the first
 *                          bytes of the group's codes hold one element of the source dtype
 *     MESA_GROUP_RAW       the group is kept as it is (NaN, Inf, max|x| >= 2^125, nonzero values so
 *                          small that s < 2^-100, or strict_sign with 1 bit and both signs): the
 *                          codec appends the elements to the raw area, and the first 4 bytes of
 *                          the group's codes hold its index there (in units of groups, little
 *                          endian)
 * A group whose code bytes cannot hold what a mark needs (element_bytes or 4) is never marked
 * CONSTANT, and the codec plans no group with fewer than 4 code bytes.
 *
 * Codes are packed low bits first: code i of a row occupies bits [i*bits, (i+1)*bits) of the row's
 * code bytes, little endian. A row starts at a byte. Codes of more than 8 bits are split: a group's
 * bytes are the upper 8 bits of each code, a byte each, then the lower bits of all, packed. */
#define MESA_GROUP_CONSTANT 0x00018000u
#define MESA_GROUP_RAW      0x00028000u
/* (scale halves 1 and 2 are subnormal, so no real scale has them) */

/* A group is a multiple of this many elements, except the last of a row. */
#define MESA_GROUP_UNIT 32

/* Of a code. With more of them the window of codes could reach beyond what z + L holds exactly. */
#define MESA_MOST_CODE_BITS 12

enum mesa_rounding { MESA_ROUND_NEAREST, MESA_ROUND_STOCHASTIC };

struct mesa_affine_rows {
    size_t rows;          /* rows to code */
    size_t row;           /* elements in a row, >= 1 */
    ptrdiff_t row_stride; /* elements from one source row to the next (encode only) */
    size_t groups;        /* groups in a row: group j covers elements mesa_group_begin(j) to (j+1);
                             1 to max(1, row / MESA_GROUP_UNIT), so that none is empty */
    unsigned bits;        /* 1..MESA_MOST_CODE_BITS */
    bool strict_sign;     /* a nonzero element never gets the code of 0, nor a positive one the
                             code of a negative (for masks made of values) */
    enum mesa_rounding rounding;
    uint64_t seed;        /* of stochastic rounding; the uniform of an element is a function of
                             (seed, first_element + its index in dense order) only */
    uint64_t first_element;
    bool stream; /* encode: nobody reads the codes before the caches are written over: use
                    non-temporal stores (and fence before return) */
};

/* Elements of one group that is spread over a tensor: runs of equal length, equally far apart. */
struct mesa_affine_runs {
    size_t runs, run;   /* how many, and elements in each */
    ptrdiff_t stride;   /* elements from one run to the next */
    size_t code_stride; /* bytes from the codes of one run to those of the next, a byte each */
};

/* First element of group j in a row of `row` elements cut into `groups` groups: whole units of
 * MESA_GROUP_UNIT, as even as can be; the tail belongs to the last group. */
static inline size_t mesa_group_begin(size_t row, size_t groups, size_t j) {
    return j == groups ? row : row / MESA_GROUP_UNIT * j / groups * MESA_GROUP_UNIT;
}

/* Groups for a row if a group should have about `wanted` elements: between 1 and 2 times as many. */
static inline size_t mesa_group_count(size_t row, size_t wanted) {
    size_t groups = row / wanted;
    size_t most = row / MESA_GROUP_UNIT;
    if (groups > most)
        groups = most;
    return groups == 0 ? 1 : groups;
}

static inline size_t mesa_code_row_bytes(size_t row, unsigned bits) {
    return (row * bits + 7) / 8;
}

/* Those of a code that do not fit its byte. */
static inline unsigned mesa_lower_bits(unsigned bits) {
    return bits > 8 ? bits - 8 : 0;
}

/* Codes that are not packed, a byte each: of more than 8 bits the upper 8. */
struct mesa_code_bytes {
    uint8_t *upper;
    uint8_t *lower; /* the other bits, if there are any */
};

/* Kinds of comparison that turn a real tensor into a mask. NaN is told in each line. */
enum mesa_predicate {
    MESA_ABOVE,     /* !(x <= lo): relu, threshold (NaN passes the gradient, as in PyTorch) */
    MESA_GREATER,   /* x > lo: leaky_relu, elu-like (NaN: false) */
    MESA_BETWEEN,   /* lo < x && x < hi: hardtanh (NaN: false) */
    MESA_WITHIN,    /* lo <= x && x <= hi: clamp (NaN: false) */
    MESA_NONZERO,   /* x != 0 (NaN: true) */
    MESA_PREDICATE_COUNT,
};

/* Entries indexed by dtype exist for MESA_F32, MESA_BF16, MESA_F16, MESA_F64 unless said. */
#define MESA_REAL_DTYPES 4

struct mesa_kernels {
    const char *name; /* of the highest ISA in the table: "scalar", "avx2", "avx512", "neon" */

    /* Codes rows of groups. words: rows*groups; codes: rows * mesa_code_row_bytes(). Returns the
     * number of groups marked raw (their code bytes are 0, for the codec to fill). */
    size_t (*affine_encode[MESA_REAL_DTYPES])(const struct mesa_affine_rows *rows, const void *src,
                                              uint32_t *ret_words, uint8_t *ret_codes);
    /* Inverse, into dense rows. raw: the raw area, group k at raw + k * raw_group_bytes. `stream`:
     * the result is larger than the caches, use non-temporal stores (and fence before return). */
    void (*affine_decode[MESA_REAL_DTYPES])(const struct mesa_affine_rows *rows,
                                            const uint32_t *words, const uint8_t *codes,
                                            const uint8_t *raw, size_t raw_group_bytes, bool stream,
                                            void *ret_dst);

    /* ---- groups that are not contiguous (head or channel over a whole tensor) */
    /* Widens [*lo, *hi] (INFINITY, -INFINITY to start with) to cover all elements, as float32; never
     * leaves -0 there. False if an element is not finite (then *lo, *hi are unspecified). */
    bool (*affine_range[MESA_REAL_DTYPES])(const struct mesa_affine_runs *runs, const void *src,
                                           float *lo, float *hi);
    /* Codes to nearest, for elements of one group whose word is `word` (no mark).
     * An element outside the range that the word was made for gets the nearest code. */
    void (*affine_quantize[MESA_REAL_DTYPES])(const struct mesa_affine_runs *runs, const void *src,
                                              uint32_t word, unsigned bits, bool strict_sign,
                                              struct mesa_code_bytes ret_codes);
    void (*affine_dequantize[MESA_REAL_DTYPES])(const struct mesa_affine_runs *runs,
                                                struct mesa_code_bytes codes, unsigned bits,
                                                uint32_t word, void *ret_dst);
    /* The same where element i of each of `rows` dense rows of n belongs to group i. */
    bool (*affine_range_columns[MESA_REAL_DTYPES])(const void *src, size_t rows, size_t n,
                                                   float *lo, float *hi);
    void (*affine_quantize_columns[MESA_REAL_DTYPES])(const void *src, size_t rows, size_t n,
                                                      const uint32_t *words, unsigned bits,
                                                      bool strict_sign,
                                                      struct mesa_code_bytes ret_codes);
    void (*affine_dequantize_columns[MESA_REAL_DTYPES])(struct mesa_code_bytes codes, unsigned bits,
                                                        size_t rows, size_t n,
                                                        const uint32_t *words, void *ret_dst);
    /* n byte codes to and from `bits` bits each (1..8), low bits first; (n*bits+7)/8 bytes, spare
     * bits of the last byte are 0. */
    void (*pack_bits)(const uint8_t *codes, size_t n, unsigned bits, uint8_t *ret_packed);
    void (*unpack_bits)(const uint8_t *packed, size_t n, unsigned bits, uint8_t *ret_codes);

    /* ---- masks: element i is bit i % 8 of byte i / 8; spare bits are 0 */
    void (*mask_pack_bool)(const uint8_t *src, size_t n, uint8_t *ret_mask);
    void (*mask_unpack_bool)(const uint8_t *mask, size_t n, uint8_t *ret_dst);
    void (*mask_pack[MESA_REAL_DTYPES])(const void *src, size_t n, enum mesa_predicate predicate,
                                        double lo, double hi, uint8_t *ret_mask);
    /* Packs "element has the bits of *one"; false as soon as an element has neither the bits of
     * *zero nor of *one. For elements of 2, 4 and 8 bytes (index 0, 1, 2). */
    bool (*mask_pack_two[3])(const void *src, size_t n, const void *zero, const void *one,
                             uint8_t *ret_mask);
    /* Writes *one where the bit is set and *zero elsewhere. */
    void (*mask_unpack_two[3])(const uint8_t *mask, size_t n, const void *zero, const void *one,
                               bool stream, void *ret_dst);
    /* Sign in 2 bits, 4 elements a byte, low bits first: 0 zero, 1 positive, 2 negative, 3 NaN.
     * Unpacks to 0, 1, -1, NaN. */
    void (*sign_pack[MESA_REAL_DTYPES])(const void *src, size_t n, uint8_t *ret_codes);
    void (*sign_unpack[MESA_REAL_DTYPES])(const uint8_t *codes, size_t n, void *ret_dst);

    /* ---- sparse: only the elements that are not +0 (by bits) are held, beside a mask of them.
     * For elements of 1, 2, 4 and 8 bytes (index 0..3). compress writes the mask and the elements
     * in order and returns how many; it may write up to 64 bytes of slack behind the last. It
     * stops and returns SIZE_MAX once more than `most` elements would be needed. */
    size_t (*sparse_compress[4])(const void *src, size_t n, size_t most, uint8_t *ret_mask,
                                 void *ret_elements);
    /* Returns how many elements were consumed. */
    size_t (*sparse_expand[4])(const uint8_t *mask, size_t n, const void *elements, void *ret_dst);

    /* ---- integers: index 0..3 for int8, int16, int32, int64 */
    /* n >= 1 */
    void (*integer_range[4])(const void *src, size_t n, int64_t *ret_lo, int64_t *ret_hi);
    /* src[i] - lo as an unsigned of `bytes` (1, 2 or 4, at most those of the source) */
    void (*integer_narrow[4])(const void *src, size_t n, int64_t lo, unsigned bytes, void *ret_dst);
    void (*integer_widen[4])(const void *src, size_t n, int64_t lo, unsigned bytes, void *ret_dst);

    /* ---- short floats, round to nearest even; NaN stays NaN. f16: false if a finite element
     * becomes infinite (dst unspecified). src and dst may not overlap. */
    void (*float_to_bf16)(const float *src, size_t n, uint16_t *ret_dst);
    void (*bf16_to_float)(const uint16_t *src, size_t n, bool stream, float *ret_dst);
    bool (*float_to_f16)(const float *src, size_t n, uint16_t *ret_dst);
    void (*f16_to_float)(const uint16_t *src, size_t n, bool stream, float *ret_dst);

    /* ---- floats as exponents, a byte each, and the other bits. Indexed by MESA_F32, MESA_BF16 and
     * MESA_F16. rest: float32 2n bytes with the low halves, then n with the sign above the upper 7
     * bits of the mantissa; bfloat16 n bytes of sign and mantissa; float16 n low bytes. extra:
     * float16 only, n bytes with the sign above the upper 2 bits of the mantissa. */
    void (*exponent_split[3])(const void *src, size_t n, uint8_t *ret_exponents, uint8_t *ret_rest,
                              uint8_t *ret_extra);
    void (*exponent_join[3])(const uint8_t *exponents, const uint8_t *rest, const uint8_t *extra,
                             size_t n, void *ret_dst);
    /* An exponent e is far if (uint8_t)(top - e) >= escape, escape >= 1. How many are? */
    size_t (*exponent_count_far[3])(const void *src, size_t n, uint8_t top, uint8_t escape);
    /* n codes, top - e or `escape` for those that are far, and those, in order. Returns how many; may
     * write up to 64 bytes of slack behind the last. */
    size_t (*exponent_fold)(const uint8_t *exponents, size_t n, uint8_t top, uint8_t escape,
                            uint8_t *ret_codes, uint8_t *ret_far);
    /* `count` are far. */
    void (*exponent_unfold)(const uint8_t *codes, size_t n, uint8_t top, uint8_t escape,
                            const uint8_t *far, size_t count, uint8_t *ret_exponents);

    /* ---- is every element finite? */
    bool (*all_finite[MESA_REAL_DTYPES])(const void *src, size_t n);

    /* ---- 64-bit fingerprint of n bytes (the same on every ISA; not cryptographic) */
    uint64_t (*fingerprint)(const void *src, size_t bytes);
};

/* The group word for elements in [lo, hi] (both finite, lo <= hi): its scale and zero point as the
 * specification above says, 0, or MESA_GROUP_RAW. Never MESA_GROUP_CONSTANT: that is seen in the
 * elements, not in their range. Exact same function for every ISA. */
uint32_t mesa_affine_word(float lo, float hi, unsigned bits, bool strict_sign,
                          enum mesa_rounding rounding);

/* Processor levels in rising order; a table for level L holds the best entries of 0..L. */
enum mesa_isa { MESA_ISA_SCALAR, MESA_ISA_AVX2, MESA_ISA_AVX512, MESA_ISA_NEON, MESA_ISA_COUNT };

const char *mesa_isa_name(enum mesa_isa isa);
enum mesa_isa mesa_isa_find(const char *name); /* MESA_ISA_COUNT if unknown */
bool mesa_isa_supported(enum mesa_isa isa);    /* on this processor and in this build */
enum mesa_isa mesa_isa_best(void);

/* Fills *ret_table for `isa`, which must be supported. Init only, or a caller's own table. */
void mesa_kernels_fill(struct mesa_kernels *ret_table, enum mesa_isa isa);

/* The table in use. Written once by mesa_kernels_init() before any other thread reads it. */
extern struct mesa_kernels mesa_kernels;
void mesa_kernels_init(enum mesa_isa isa);

/* Puts the calling thread's rounding and denormal modes into their defaults / back (MXCSR, FPCR).
 * Exception flags raised in between are dropped. */
typedef uint64_t mesa_float_state;
mesa_float_state mesa_float_state_enter(void);
void mesa_float_state_leave(mesa_float_state state);

/* Bytes of the last-level cache share that a result may fill before streaming stores pay. */
size_t mesa_cache_bytes(void);

#endif
