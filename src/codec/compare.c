/* How each element of a tensor compares with the one in the same place of another: 2 bits. Decodes to
 * 1, 0, -1, which compare with 0 as the elements did with each other. For an op whose backward reads
 * nothing else of its two inputs, such as maximum. What it makes of a NaN depends on the op and on the
 * version of PyTorch, so a tensor with one is declined.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/element.h"
#include "codec/walk.h"

#define CODES_IN_BYTE 4

/* Elements that are compared at a time, with their signs in the nearest cache. A multiple of
 * CODES_IN_BYTE. */
#define TILE 1024

static size_t compare_bound_bytes(const struct mesa_plan *plan) {
    return mesa_dtype_is_real(plan->dtype) ? mesa_divide_up(plan->elements, CODES_IN_BYTE) : 0;
}

static bool compare_may_fit(const struct mesa_plan *plan, const struct mesa_source *source) {
    (void)plan;
    return source->against != NULL;
}

/* A short float as an integer of the same order; both zeros are 0. */
MESA_ALWAYS_INLINE int ordered(uint16_t bits) {
    int magnitude = bits & 0x7fff;
    return bits & 0x8000 ? -magnitude : magnitude;
}

#define DEFINE_SIGNS(name, element, value, is_nan)                                                 \
    static bool signs_##name(const element *a, const element *b, size_t n, float *ret_signs) {     \
        int nans = 0;                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            ret_signs[i] = (float)((value(a[i]) > value(b[i])) - (value(a[i]) < value(b[i])));     \
            nans |= is_nan(a[i]) | is_nan(b[i]);                                                   \
        }                                                                                          \
        return nans == 0;                                                                          \
    }

#define ITSELF(x)      (x)
#define IS_NAN(x)      ((x) != (x))
#define IS_F16_NAN(x)  (((x)&0x7fff) > 0x7c00)
#define IS_BF16_NAN(x) (((x)&0x7fff) > 0x7f80)
DEFINE_SIGNS(f32, float, ITSELF, IS_NAN)
DEFINE_SIGNS(f64, double, ITSELF, IS_NAN)
DEFINE_SIGNS(f16, uint16_t, ordered, IS_F16_NAN)
DEFINE_SIGNS(bf16, uint16_t, ordered, IS_BF16_NAN)

/* Writes 1, 0 or -1 for each of n elements; false if there is a NaN among them. */
static bool signs_of(enum mesa_dtype dtype, const void *a, const void *b, size_t n,
                     float *ret_signs) {
    return dtype == MESA_F32   ? signs_f32(a, b, n, ret_signs)
           : dtype == MESA_F64 ? signs_f64(a, b, n, ret_signs)
           : dtype == MESA_F16 ? signs_f16(a, b, n, ret_signs)
                               : signs_bf16(a, b, n, ret_signs);
}

struct comparison {
    struct mesa_source against;
    uint8_t *codes;
};

static bool compare_pack_window(void *context, const void *elements, size_t first, size_t n) {
    const struct comparison *comparison = context;
    const struct mesa_source *against = &comparison->against;
    size_t bytes = mesa_dtype_bytes(against->dtype);
    _Alignas(64) double gathered[TILE];
    _Alignas(64) float signs[TILE];
    for (size_t i = 0; i < n; i += TILE) {
        size_t count = mesa_smaller(TILE, n - i);
        const void *other = mesa_source_window(against, first + i, first + i + count, gathered);
        if (!signs_of(against->dtype, (const char *)elements + i * bytes, other, count, signs))
            return false;
        mesa_kernels.sign_pack[MESA_F32](signs, count,
                                         comparison->codes + (first + i) / CODES_IN_BYTE);
    }
    return true;
}

static enum mesa_status compare_encode(struct mesa_plan *plan, const struct mesa_source *source,
                                       mesa_parallel_for *parallel, void *held, size_t *ret_bytes) {
    struct comparison comparison = {.against = *source, .codes = held};
    comparison.against.data = source->against;
    if (!mesa_walk_source(source, parallel, compare_pack_window, &comparison))
        return MESA_DECLINED;
    *ret_bytes = compare_bound_bytes(plan);
    return MESA_OK;
}

static void compare_decode(const struct mesa_plan *plan, const void *held,
                           mesa_parallel_for *parallel, void *ret_elements) {
    mesa_codec_sign.decode(plan, held, parallel, ret_elements);
}

const struct mesa_codec mesa_codec_compare = {
    .name = "compare",
    .exact = false,
    .bound_bytes = compare_bound_bytes,
    .may_fit = compare_may_fit,
    .encode = compare_encode,
    .decode = compare_decode,
};
