/* Specification of the kernels that change how numbers are held: integers in fewer bytes, short
 * floats; and of what is asked about whole arrays: finiteness, a fingerprint.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/element.h"
#include "codec/kernels/fill.h"
#include "codec/kernels/fingerprint.h"
#include "codec/kernels/kernels.h"
#include "codec/kernels/number_entries.h"

/* ---- integers -------------------------------------------------------------------------------- */

MESA_ALWAYS_INLINE int64_t load_integer(size_t bytes, const void *src, size_t i) {
    const char *at = (const char *)src + i * bytes;
    int8_t i8;
    int16_t i16;
    int32_t i32;
    int64_t i64;
    switch (bytes) {
    case 1:
        memcpy(&i8, at, 1);
        return i8;
    case 2:
        memcpy(&i16, at, 2);
        return i16;
    case 4:
        memcpy(&i32, at, 4);
        return i32;
    default:
        memcpy(&i64, at, 8);
        return i64;
    }
}

/* The low `bytes` bytes of value, in the processor's order. */
MESA_ALWAYS_INLINE void store_integer(size_t bytes, void *dst, size_t i, uint64_t value) {
    char *at = (char *)dst + i * bytes;
    uint8_t u8 = (uint8_t)value;
    uint16_t u16 = (uint16_t)value;
    uint32_t u32 = (uint32_t)value;
    switch (bytes) {
    case 1:
        memcpy(at, &u8, 1);
        break;
    case 2:
        memcpy(at, &u16, 2);
        break;
    case 4:
        memcpy(at, &u32, 4);
        break;
    default:
        memcpy(at, &value, 8);
    }
}

MESA_ALWAYS_INLINE uint64_t load_unsigned(size_t bytes, const void *src, size_t i) {
    uint64_t mask = bytes == 8 ? UINT64_MAX : ((uint64_t)1 << bytes * 8) - 1;
    return (uint64_t)load_integer(bytes, src, i) & mask;
}

/* n >= 1 */
MESA_ALWAYS_INLINE void integer_range(size_t bytes, const void *src, size_t n, int64_t *ret_lo,
                                      int64_t *ret_hi) {
    int64_t lo = INT64_MAX, hi = INT64_MIN;
    for (size_t i = 0; i < n; i++) {
        int64_t x = load_integer(bytes, src, i);
        lo = x < lo ? x : lo;
        hi = x > hi ? x : hi;
    }
    *ret_lo = lo;
    *ret_hi = hi;
}

MESA_ALWAYS_INLINE void narrow_to(size_t from, size_t to, const void *src, size_t n, int64_t lo,
                                  void *ret_dst) {
    for (size_t i = 0; i < n; i++)
        store_integer(to, ret_dst, i, (uint64_t)load_integer(from, src, i) - (uint64_t)lo);
}

MESA_ALWAYS_INLINE void widen_from(size_t from, size_t to, const void *src, size_t n, int64_t lo,
                                   void *ret_dst) {
    for (size_t i = 0; i < n; i++)
        store_integer(to, ret_dst, i, load_unsigned(from, src, i) + (uint64_t)lo);
}

/* ---- short floats ---------------------------------------------------------------------------- */

static void float_to_bf16(const float *src, size_t n, uint16_t *ret_dst) {
    for (size_t i = 0; i < n; i++) {
        uint16_t half = bf16_round(element_load(MESA_F32, src, i));
        memcpy((char *)ret_dst + i * sizeof half, &half, sizeof half);
    }
}

static void bf16_to_float(const uint16_t *src, size_t n, bool stream, float *ret_dst) {
    (void)stream;
    for (size_t i = 0; i < n; i++)
        element_store(MESA_F32, ret_dst, i, element_load(MESA_BF16, src, i));
}

static bool float_to_f16(const float *src, size_t n, uint16_t *ret_dst) {
    for (size_t i = 0; i < n; i++) {
        float x = element_load(MESA_F32, src, i);
        uint16_t half = f16_round(x);
        if (isfinite(x) && !isfinite(f16_widen(half)))
            return false;
        memcpy((char *)ret_dst + i * sizeof half, &half, sizeof half);
    }
    return true;
}

static void f16_to_float(const uint16_t *src, size_t n, bool stream, float *ret_dst) {
    (void)stream;
    for (size_t i = 0; i < n; i++)
        element_store(MESA_F32, ret_dst, i, element_load(MESA_F16, src, i));
}

/* ---- whole arrays ---------------------------------------------------------------------------- */

MESA_ALWAYS_INLINE bool all_finite(enum mesa_dtype dtype, const void *src, size_t n) {
    bool finite = true;
    for (size_t i = 0; i < n; i++)
        finite &= isfinite(element_load_double(dtype, src, i));
    return finite;
}

static uint64_t fingerprint(const void *src, size_t bytes) {
    struct fingerprint state = fingerprint_begin();
    const unsigned char *at = src;
    size_t left = bytes;
    for (; left >= FINGERPRINT_BLOCK; left -= FINGERPRINT_BLOCK, at += FINGERPRINT_BLOCK)
        fingerprint_add(&state, at);
    return fingerprint_end(&state, at, left, bytes);
}

/* ---- the entries ----------------------------------------------------------------------------- */

DEFINE_INTEGER_ENTRIES(1)
DEFINE_INTEGER_ENTRIES(2)
DEFINE_INTEGER_ENTRIES(4)
DEFINE_INTEGER_ENTRIES(8)
FINITE_REALS(DEFINE_FINITE_ENTRY)

void mesa_kernels_fill_number_scalar(struct mesa_kernels *table) {
    SET_INTEGER_ENTRIES(table, 0, 1);
    SET_INTEGER_ENTRIES(table, 1, 2);
    SET_INTEGER_ENTRIES(table, 2, 4);
    SET_INTEGER_ENTRIES(table, 3, 8);
    SET_SHORT_FLOAT_ENTRIES(table);
    FINITE_REALS(SET_FINITE_ENTRY)
    table->fingerprint = fingerprint;
}
