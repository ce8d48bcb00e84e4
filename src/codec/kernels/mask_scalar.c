/* Specification of the mask kernels: bits for elements, signs in two bits, and sparse runs (a mask
 * beside the elements that are not zero).
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/element.h"
#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"
#include "codec/kernels/mask.h"
#include "codec/kernels/mask_entries.h"

static void pack_bool(const uint8_t *src, size_t n, uint8_t *ret_mask) {
    for (size_t i = 0; i < n; i++)
        mask_append(ret_mask, i, src[i] != 0);
}

static void unpack_bool(const uint8_t *mask, size_t n, uint8_t *ret_dst) {
    for (size_t i = 0; i < n; i++)
        ret_dst[i] = mask_bit(mask, i);
}

MESA_ALWAYS_INLINE void pack_predicate(enum mesa_dtype dtype, enum mesa_predicate predicate,
                                       const void *src, size_t n, double lo, double hi,
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
                                   const void *one, bool stream, void *ret_dst) {
    (void)stream; /* a matter of speed only */
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
    size_t count = 0;
    bool fits = compress_elements(bytes, src, 0, n, most, ret_mask, ret_elements, &count);
    return fits ? count : SIZE_MAX;
}

MESA_ALWAYS_INLINE size_t expand(size_t bytes, const uint8_t *mask, size_t n, const void *elements,
                                 void *ret_dst) {
    return expand_elements(bytes, mask, 0, n, elements, 0, ret_dst);
}

/* ---- the entries ----------------------------------------------------------------------------- */

MASK_REALS(DEFINE_PREDICATE_ENTRY)
MASK_REALS(DEFINE_SIGN_ENTRIES)
MASK_TWO_SIZES(DEFINE_TWO_ENTRIES)
MASK_SIZES(DEFINE_SPARSE_ENTRIES)

void mesa_kernels_fill_mask_scalar(struct mesa_kernels *table) {
    table->mask_pack_bool = pack_bool;
    table->mask_unpack_bool = unpack_bool;
    MASK_REALS(SET_PREDICATE_ENTRY)
    MASK_REALS(SET_SIGN_ENTRIES)
    MASK_TWO_SIZES(SET_TWO_ENTRIES)
    MASK_SIZES(SET_SPARSE_ENTRIES)
}
