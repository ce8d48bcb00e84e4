/* Specification of the mask kernels: bits for elements, signs in two bits, and sparse runs (a mask
 * beside the elements that are not zero).
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/element.h"
#include "codec/kernels/kernels.h"
#include "codec/kernels/predicate.h"
#include "codec/kernels/scalar.h"

static bool mask_bit(const uint8_t *mask, size_t i) {
    return mask[i / 8] >> (i % 8) & 1;
}

/* Bits come in order: the first of a byte clears the rest of it. */
MESA_ALWAYS_INLINE void mask_append(uint8_t *mask, size_t i, bool bit) {
    if (i % 8 == 0)
        mask[i / 8] = 0;
    mask[i / 8] = (uint8_t)(mask[i / 8] | (unsigned)bit << (i % 8));
}

static void pack_bool(const uint8_t *src, size_t n, uint8_t *ret_mask) {
    for (size_t i = 0; i < n; i++)
        mask_append(ret_mask, i, src[i] != 0);
}

static void unpack_bool(const uint8_t *mask, size_t n, uint8_t *ret_dst) {
    for (size_t i = 0; i < n; i++)
        ret_dst[i] = mask_bit(mask, i);
}

MESA_ALWAYS_INLINE void pack_predicate(enum mesa_dtype dtype, const void *src, size_t n,
                                       enum mesa_predicate predicate, double lo, double hi,
                                       uint8_t *ret_mask) {
    for (size_t i = 0; i < n; i++)
        mask_append(ret_mask, i,
                    predicate_holds(predicate, element_load_double(dtype, src, i), lo, hi));
}

MESA_ALWAYS_INLINE bool pack_two(size_t bytes, const void *src, size_t n, const void *zero,
                                 const void *one, uint8_t *ret_mask) {
    for (size_t i = 0; i < n; i++) {
        const char *element = (const char *)src + i * bytes;
        bool is_one = memcmp(element, one, bytes) == 0;
        if (!is_one && memcmp(element, zero, bytes) != 0)
            return false;
        mask_append(ret_mask, i, is_one);
    }
    return true;
}

MESA_ALWAYS_INLINE void unpack_two(size_t bytes, const uint8_t *mask, size_t n, const void *zero,
                                   const void *one, void *ret_dst) {
    for (size_t i = 0; i < n; i++)
        memcpy((char *)ret_dst + i * bytes, mask_bit(mask, i) ? one : zero, bytes);
}

MESA_ALWAYS_INLINE void pack_sign(enum mesa_dtype dtype, const void *src, size_t n,
                                  uint8_t *ret_codes) {
    for (size_t i = 0; i < n; i++) {
        double x = element_load_double(dtype, src, i);
        unsigned code = x > 0 ? 1 : x < 0 ? 2 : x == 0 ? 0 : 3;
        if (i % 4 == 0)
            ret_codes[i / 4] = 0;
        ret_codes[i / 4] = (uint8_t)(ret_codes[i / 4] | code << (i % 4 * 2));
    }
}

MESA_ALWAYS_INLINE void unpack_sign(enum mesa_dtype dtype, const uint8_t *codes, size_t n,
                                    void *ret_dst) {
    static const float values[4] = {0, 1, -1, NAN};
    for (size_t i = 0; i < n; i++)
        element_store(dtype, ret_dst, i, values[codes[i / 4] >> (i % 4 * 2) & 3]);
}

MESA_ALWAYS_INLINE size_t compress(size_t bytes, const void *src, size_t n, size_t most,
                                   uint8_t *ret_mask, void *ret_elements) {
    static const char zero[8];
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        const char *element = (const char *)src + i * bytes;
        bool present = memcmp(element, zero, bytes) != 0;
        mask_append(ret_mask, i, present);
        if (!present)
            continue;
        if (count == most)
            return SIZE_MAX;
        memcpy((char *)ret_elements + count * bytes, element, bytes);
        count++;
    }
    return count;
}

MESA_ALWAYS_INLINE size_t expand(size_t bytes, const uint8_t *mask, size_t n, const void *elements,
                                 void *ret_dst) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        char *to = (char *)ret_dst + i * bytes;
        if (mask_bit(mask, i))
            memcpy(to, (const char *)elements + count++ * bytes, bytes);
        else
            memset(to, 0, bytes);
    }
    return count;
}

/* ---- the entries ----------------------------------------------------------------------------- */

#define DEFINE_REAL(name, dtype)                                                                   \
    static void pack_predicate_##name(const void *src, size_t n, enum mesa_predicate predicate,    \
                                      double lo, double hi, uint8_t *ret_mask) {                   \
        pack_predicate(dtype, src, n, predicate, lo, hi, ret_mask);                                \
    }                                                                                              \
    static void pack_sign_##name(const void *src, size_t n, uint8_t *ret_codes) {                  \
        pack_sign(dtype, src, n, ret_codes);                                                       \
    }                                                                                              \
    static void unpack_sign_##name(const uint8_t *codes, size_t n, void *ret_dst) {                \
        unpack_sign(dtype, codes, n, ret_dst);                                                     \
    }

DEFINE_REAL(f32, MESA_F32)
DEFINE_REAL(bf16, MESA_BF16)
DEFINE_REAL(f16, MESA_F16)
DEFINE_REAL(f64, MESA_F64)

#define DEFINE_TWO(bytes)                                                                          \
    static bool pack_two_##bytes(const void *src, size_t n, const void *zero, const void *one,     \
                                 uint8_t *ret_mask) {                                              \
        return pack_two(bytes, src, n, zero, one, ret_mask);                                       \
    }                                                                                              \
    static void unpack_two_##bytes(const uint8_t *mask, size_t n, const void *zero,                \
                                   const void *one, bool stream, void *ret_dst) {                  \
        (void)stream;                                                                              \
        unpack_two(bytes, mask, n, zero, one, ret_dst);                                            \
    }

DEFINE_TWO(2)
DEFINE_TWO(4)
DEFINE_TWO(8)

#define DEFINE_SPARSE(bytes)                                                                       \
    static size_t compress_##bytes(const void *src, size_t n, size_t most, uint8_t *ret_mask,      \
                                   void *ret_elements) {                                           \
        return compress(bytes, src, n, most, ret_mask, ret_elements);                              \
    }                                                                                              \
    static size_t expand_##bytes(const uint8_t *mask, size_t n, const void *elements,              \
                                 void *ret_dst) {                                                  \
        return expand(bytes, mask, n, elements, ret_dst);                                          \
    }

DEFINE_SPARSE(1)
DEFINE_SPARSE(2)
DEFINE_SPARSE(4)
DEFINE_SPARSE(8)

#define SET_REAL(name, dtype)                                                                      \
    table->mask_pack[dtype] = pack_predicate_##name;                                               \
    table->sign_pack[dtype] = pack_sign_##name;                                                    \
    table->sign_unpack[dtype] = unpack_sign_##name

#define SET_TWO(index, bytes)                                                                      \
    table->mask_pack_two[index] = pack_two_##bytes;                                                \
    table->mask_unpack_two[index] = unpack_two_##bytes

#define SET_SPARSE(index, bytes)                                                                   \
    table->sparse_compress[index] = compress_##bytes;                                              \
    table->sparse_expand[index] = expand_##bytes

void mesa_kernels_fill_scalar_mask(struct mesa_kernels *table) {
    table->mask_pack_bool = pack_bool;
    table->mask_unpack_bool = unpack_bool;
    SET_REAL(f32, MESA_F32);
    SET_REAL(bf16, MESA_BF16);
    SET_REAL(f16, MESA_F16);
    SET_REAL(f64, MESA_F64);
    SET_TWO(0, 2);
    SET_TWO(1, 4);
    SET_TWO(2, 8);
    SET_SPARSE(0, 1);
    SET_SPARSE(1, 2);
    SET_SPARSE(2, 4);
    SET_SPARSE(3, 8);
}
