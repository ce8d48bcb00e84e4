/* Masks and sparse runs with AVX2: comparisons leave all ones in a lane, of which the sign bits are
 * collected. Signs in two bits and elements of 8 bytes in sparse runs stay with the scalar entries.
 * Equals mask_scalar.c byte for byte.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/avx2.h"
#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"
#include "codec/kernels/mask_entries.h"
#include "codec/kernels/predicate.h"

MESA_ALWAYS_INLINE void mask_append(uint8_t *mask, size_t i, bool bit) {
    if (i % 8 == 0)
        mask[i / 8] = 0;
    mask[i / 8] = (uint8_t)(mask[i / 8] | (unsigned)bit << (i % 8));
}

/* 32 bits to 32 bytes of all ones or zeros. */
MESA_ALWAYS_INLINE __m256i spread32(uint32_t bits) {
    const __m256i place =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), place);
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
}

/* ---- bool ------------------------------------------------------------------------------------ */

static void pack_bool(const uint8_t *src, size_t n, uint8_t *ret_mask) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(src + i));
        __m256i zero = _mm256_cmpeq_epi8(x, _mm256_setzero_si256());
        uint32_t bits = ~(uint32_t)_mm256_movemask_epi8(zero);
        memcpy(ret_mask + i / 8, &bits, sizeof bits);
    }
    for (; i < n; i++)
        mask_append(ret_mask, i, src[i] != 0);
}

static void unpack_bool(const uint8_t *mask, size_t n, uint8_t *ret_dst) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        uint32_t bits;
        memcpy(&bits, mask + i / 8, sizeof bits);
        _mm256_storeu_si256((__m256i *)(ret_dst + i),
                            _mm256_and_si256(spread32(bits), _mm256_set1_epi8(1)));
    }
    for (; i < n; i++)
        ret_dst[i] = mask[i / 8] >> (i % 8) & 1;
}

/* ---- predicates of reals ----------------------------------------------------------------------- */

/* Float32 bounds answer as float64 ones do (predicate.h). */
struct bounds {
    __m256 lo_below, lo_above, hi_below, hi_above;
};

MESA_ALWAYS_INLINE __m256 holds8(enum mesa_predicate predicate, __m256 x, struct bounds b) {
    switch (predicate) {
    case MESA_ABOVE:
        return _mm256_cmp_ps(x, b.lo_below, _CMP_NLE_UQ);
    case MESA_GREATER:
        return _mm256_cmp_ps(x, b.lo_below, _CMP_GT_OQ);
    case MESA_BETWEEN:
        return _mm256_and_ps(_mm256_cmp_ps(x, b.lo_below, _CMP_GT_OQ),
                             _mm256_cmp_ps(x, b.hi_above, _CMP_LT_OQ));
    case MESA_WITHIN:
        return _mm256_and_ps(_mm256_cmp_ps(x, b.lo_above, _CMP_GE_OQ),
                             _mm256_cmp_ps(x, b.hi_below, _CMP_LE_OQ));
    case MESA_NONZERO:
    case MESA_PREDICATE_COUNT:
        break;
    }
    return _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NEQ_UQ);
}

MESA_ALWAYS_INLINE void pack_one_predicate(enum mesa_dtype dtype, enum mesa_predicate predicate,
                                           const void *src, size_t n, double lo, double hi,
                                           uint8_t *ret_mask) {
    const struct bounds bounds = {
        .lo_below = _mm256_set1_ps(float_below(lo)),
        .lo_above = _mm256_set1_ps(float_above(lo)),
        .hi_below = _mm256_set1_ps(float_below(hi)),
        .hi_above = _mm256_set1_ps(float_above(hi)),
    };
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 x = load_floats(dtype, element_at(dtype, src, i));
        ret_mask[i / 8] = (uint8_t)_mm256_movemask_ps(holds8(predicate, x, bounds));
    }
    for (; i < n; i++)
        mask_append(ret_mask, i,
                    predicate_holds(predicate, element_load_double(dtype, src, i), lo, hi));
}

MESA_ALWAYS_INLINE void pack_predicate(enum mesa_dtype dtype, const void *src, size_t n,
                                       enum mesa_predicate predicate, double lo, double hi,
                                       uint8_t *ret_mask) {
    if (predicate == MESA_ABOVE)
        pack_one_predicate(dtype, MESA_ABOVE, src, n, lo, hi, ret_mask);
    else if (predicate == MESA_GREATER)
        pack_one_predicate(dtype, MESA_GREATER, src, n, lo, hi, ret_mask);
    else if (predicate == MESA_BETWEEN)
        pack_one_predicate(dtype, MESA_BETWEEN, src, n, lo, hi, ret_mask);
    else if (predicate == MESA_WITHIN)
        pack_one_predicate(dtype, MESA_WITHIN, src, n, lo, hi, ret_mask);
    else
        pack_one_predicate(dtype, MESA_NONZERO, src, n, lo, hi, ret_mask);
}

/* ---- elements of 2, 4 and 8 bytes as bits -------------------------------------------------------- */

MESA_ALWAYS_INLINE __m256i broadcast(size_t bytes, const void *element) {
    int16_t half;
    int32_t word;
    int64_t longer;
    if (bytes == 2) {
        memcpy(&half, element, sizeof half);
        return _mm256_set1_epi16(half);
    }
    if (bytes == 4) {
        memcpy(&word, element, sizeof word);
        return _mm256_set1_epi32(word);
    }
    memcpy(&longer, element, sizeof longer);
    return _mm256_set1_epi64x(longer);
}

/* Lanes that are equal as bytes of ones. */
MESA_ALWAYS_INLINE __m256i equal_lanes(size_t bytes, __m256i a, __m256i b) {
    return bytes == 1   ? _mm256_cmpeq_epi8(a, b)
           : bytes == 2 ? _mm256_cmpeq_epi16(a, b)
           : bytes == 4 ? _mm256_cmpeq_epi32(a, b)
                        : _mm256_cmpeq_epi64(a, b);
}

/* A bit for each lane of ones. */
MESA_ALWAYS_INLINE uint32_t lane_bits(size_t bytes, __m256i lanes) {
    if (bytes == 8)
        return (uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(lanes));
    if (bytes == 4)
        return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(lanes));
    if (bytes == 1)
        return (uint32_t)_mm256_movemask_epi8(lanes);
    __m128i narrow =
        _mm_packs_epi16(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
    return (uint32_t)_mm_movemask_epi8(narrow);
}

/* A block gives whole bytes of the mask: 8 elements, or a vector of them if that is more. */
MESA_ALWAYS_INLINE size_t block_elements(size_t bytes) {
    return bytes == 8 ? 8 : 32 / bytes;
}

MESA_ALWAYS_INLINE bool pack_two(size_t bytes, const void *src, size_t n, const void *zero,
                                 const void *one, uint8_t *ret_mask) {
    const size_t block = block_elements(bytes), lanes = 32 / bytes;
    const __m256i zeros = broadcast(bytes, zero), ones = broadcast(bytes, one);
    size_t i = 0;
    for (; i + block <= n; i += block) {
        uint32_t bits = 0;
        __m256i known = _mm256_set1_epi8(-1);
        for (size_t j = 0; j < block; j += lanes) {
            const char *at = (const char *)src + (i + j) * bytes;
            __m256i x = _mm256_loadu_si256((const __m256i *)at);
            __m256i is_one = equal_lanes(bytes, x, ones);
            known = _mm256_and_si256(known, _mm256_or_si256(is_one, equal_lanes(bytes, x, zeros)));
            bits |= lane_bits(bytes, is_one) << j;
        }
        if (_mm256_movemask_epi8(known) != -1)
            return false;
        memcpy(ret_mask + i / 8, &bits, block / 8);
    }
    for (; i < n; i++) {
        const char *element = (const char *)src + i * bytes;
        bool is_one = memcmp(element, one, bytes) == 0;
        if (!is_one && memcmp(element, zero, bytes) != 0)
            return false;
        mask_append(ret_mask, i, is_one);
    }
    return true;
}

/* The bits of a vector's elements as lanes of ones. */
MESA_ALWAYS_INLINE __m256i spread_lanes(size_t bytes, uint32_t bits) {
    __m256i bytes_of_ones = spread32(bits);
    __m128i low = _mm256_castsi256_si128(bytes_of_ones);
    return bytes == 1   ? bytes_of_ones
           : bytes == 2 ? _mm256_cvtepi8_epi16(low)
           : bytes == 4 ? _mm256_cvtepi8_epi32(low)
                        : _mm256_cvtepi8_epi64(low);
}

MESA_ALWAYS_INLINE void unpack_two(size_t bytes, const uint8_t *mask, size_t n, const void *zero,
                                   const void *one, bool stream, void *ret_dst) {
    const size_t block = block_elements(bytes), lanes = 32 / bytes;
    const __m256i zeros = broadcast(bytes, zero), ones = broadcast(bytes, one);
    bool aligned = stream && (uintptr_t)ret_dst % 32 == 0;
    size_t i = 0;
    for (; i + block <= n; i += block) {
        uint32_t bits = 0;
        memcpy(&bits, mask + i / 8, block / 8);
        for (size_t j = 0; j < block; j += lanes) {
            __m256i values = _mm256_blendv_epi8(zeros, ones, spread_lanes(bytes, bits >> j));
            __m256i *to = (__m256i *)((char *)ret_dst + (i + j) * bytes);
            if (aligned)
                _mm256_stream_si256(to, values);
            else
                _mm256_storeu_si256(to, values);
        }
    }
    for (; i < n; i++)
        memcpy((char *)ret_dst + i * bytes, mask[i / 8] >> (i % 8) & 1 ? one : zero, bytes);
    if (stream)
        _mm_sfence();
}

/* ---- sparse: eight elements at a time, by tables ------------------------------------------------- */

/* Entry m of the first: the places of the bits of m, lowest first, a byte each. */
#define PLACE(m, i)                                                                                \
    ((uint64_t)((m) >> (i)&1) * (i) << 8 * __builtin_popcount((m) & ((1u << (i)) - 1)))
#define PLACES(m)                                                                                  \
    (PLACE(m, 0u) | PLACE(m, 1u) | PLACE(m, 2u) | PLACE(m, 3u) | PLACE(m, 4u) | PLACE(m, 5u) |     \
     PLACE(m, 6u) | PLACE(m, 7u))
/* Entry m of the second: for each bit of m how many lie below it; 0x80 where m has none. */
#define RANK(m, i)                                                                                 \
    ((uint64_t)((m) >> (i)&1 ? __builtin_popcount((m) & ((1u << (i)) - 1)) : 0x80) << 8 * (i))
#define RANKS(m)                                                                                   \
    (RANK(m, 0u) | RANK(m, 1u) | RANK(m, 2u) | RANK(m, 3u) | RANK(m, 4u) | RANK(m, 5u) |           \
     RANK(m, 6u) | RANK(m, 7u))
#define TABLE_4(entry, m) entry(m), entry((m) + 1), entry((m) + 2), entry((m) + 3)
#define TABLE_16(entry, m)                                                                         \
    TABLE_4(entry, m), TABLE_4(entry, (m) + 4), TABLE_4(entry, (m) + 8), TABLE_4(entry, (m) + 12)
#define TABLE_64(entry, m)                                                                         \
    TABLE_16(entry, m), TABLE_16(entry, (m) + 16), TABLE_16(entry, (m) + 32),                      \
        TABLE_16(entry, (m) + 48)
#define TABLE_256(entry)                                                                           \
    { TABLE_64(entry, 0u), TABLE_64(entry, 64u), TABLE_64(entry, 128u), TABLE_64(entry, 192u) }

static const uint64_t places_of_bits[256] = TABLE_256(PLACES);
static const uint64_t ranks_of_bits[256] = TABLE_256(RANKS);

/* Eight indices of bytes to sixteen of the bytes of two-byte elements; 0x80 stays above 0x7f. */
MESA_ALWAYS_INLINE __m128i double_indices(__m128i indices) {
    __m128i doubled = _mm_add_epi8(_mm_add_epi8(indices, indices),
                                   _mm_and_si128(indices, _mm_set1_epi8((char)0x80)));
    return _mm_unpacklo_epi8(doubled,
                             _mm_or_si128(_mm_add_epi8(doubled, _mm_set1_epi8(1)),
                                          _mm_and_si128(indices, _mm_set1_epi8((char)0x80))));
}

/* Writes a whole vector to `to`: the chosen of eight elements first. */
MESA_ALWAYS_INLINE void compress8(size_t bytes, const char *from, unsigned bits, char *to) {
    __m128i places = _mm_loadl_epi64((const __m128i *)&places_of_bits[bits]);
    if (bytes == 4) {
        __m256i x = _mm256_loadu_si256((const __m256i *)from);
        x = _mm256_permutevar8x32_epi32(x, _mm256_cvtepu8_epi32(places));
        _mm256_storeu_si256((__m256i *)to, x);
    } else if (bytes == 2) {
        __m128i x = _mm_loadu_si128((const __m128i *)from);
        _mm_storeu_si128((__m128i *)to, _mm_shuffle_epi8(x, double_indices(places)));
    } else {
        __m128i x = _mm_loadl_epi64((const __m128i *)from);
        _mm_storel_epi64((__m128i *)to, _mm_shuffle_epi8(x, places));
    }
}

/* `from` has eight readable elements, of which as many as there are bits get their places. */
MESA_ALWAYS_INLINE void expand8(size_t bytes, const char *from, unsigned bits, char *to) {
    __m128i ranks = _mm_loadl_epi64((const __m128i *)&ranks_of_bits[bits]);
    if (bytes == 4) {
        __m256i x = _mm256_loadu_si256((const __m256i *)from);
        x = _mm256_permutevar8x32_epi32(x, _mm256_cvtepu8_epi32(ranks));
        __m256i absent = _mm256_cvtepi8_epi32(_mm_cmplt_epi8(ranks, _mm_setzero_si128()));
        _mm256_storeu_si256((__m256i *)to, _mm256_andnot_si256(absent, x));
    } else if (bytes == 2) {
        __m128i x = _mm_loadu_si128((const __m128i *)from);
        _mm_storeu_si128((__m128i *)to, _mm_shuffle_epi8(x, double_indices(ranks)));
    } else {
        __m128i x = _mm_loadl_epi64((const __m128i *)from);
        _mm_storel_epi64((__m128i *)to, _mm_shuffle_epi8(x, ranks));
    }
}

/* Which of the vector of elements at `from` are not zero. */
MESA_ALWAYS_INLINE uint32_t present_lanes(size_t bytes, const char *from) {
    __m256i x = _mm256_loadu_si256((const __m256i *)from);
    uint32_t zero = lane_bits(bytes, equal_lanes(bytes, x, _mm256_setzero_si256()));
    return bytes == 1 ? ~zero : ~zero & ((1u << (32 / bytes % 32)) - 1);
}

MESA_ALWAYS_INLINE size_t compress(size_t bytes, const void *src, size_t n, size_t most,
                                   uint8_t *ret_mask, void *ret_elements) {
    static const char zero[8];
    const size_t lanes = 32 / bytes;
    char *elements = ret_elements;
    size_t count = 0, i = 0;
    for (; i + lanes <= n; i += lanes) {
        const char *from = (const char *)src + i * bytes;
        uint32_t present = present_lanes(bytes, from);
        if ((size_t)__builtin_popcount(present) > most - count)
            return SIZE_MAX;
        memcpy(ret_mask + i / 8, &present, lanes / 8);
        for (size_t j = 0; j < lanes; j += 8) {
            unsigned bits = present >> j & 0xff;
            compress8(bytes, from + j * bytes, bits, elements + count * bytes);
            count += (size_t)__builtin_popcount(bits);
        }
    }
    for (; i < n; i++) {
        const char *element = (const char *)src + i * bytes;
        bool present = memcmp(element, zero, bytes) != 0;
        mask_append(ret_mask, i, present);
        if (!present)
            continue;
        if (count == most)
            return SIZE_MAX;
        memcpy(elements + count++ * bytes, element, bytes);
    }
    return count;
}

static size_t count_bits(const uint8_t *mask, size_t n) {
    size_t count = 0, i = 0;
    for (; i + 64 <= n; i += 64) {
        uint64_t bits;
        memcpy(&bits, mask + i / 8, sizeof bits);
        count += (size_t)__builtin_popcountll(bits);
    }
    for (; i < n; i++)
        count += mask[i / 8] >> (i % 8) & 1;
    return count;
}

MESA_ALWAYS_INLINE size_t expand(size_t bytes, const uint8_t *mask, size_t n, const void *elements,
                                 void *ret_dst) {
    const char *from = elements;
    const size_t total = count_bits(mask, n); /* beyond these nothing may be read */
    size_t count = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        unsigned bits = mask[i / 8];
        char *to = (char *)ret_dst + i * bytes;
        if (count + 8 <= total) {
            expand8(bytes, from + count * bytes, bits, to);
        } else {
            char rest[32] = {0};
            memcpy(rest, from + count * bytes, (total - count) * bytes);
            expand8(bytes, rest, bits, to);
        }
        count += (size_t)__builtin_popcount(bits);
    }
    for (; i < n; i++) {
        char *to = (char *)ret_dst + i * bytes;
        if (mask[i / 8] >> (i % 8) & 1)
            memcpy(to, from + count++ * bytes, bytes);
        else
            memset(to, 0, bytes);
    }
    return count;
}

/* ---- the entries ------------------------------------------------------------------------------- */

DEFINE_PREDICATE_ENTRY(f32, MESA_F32)
DEFINE_PREDICATE_ENTRY(bf16, MESA_BF16)
DEFINE_PREDICATE_ENTRY(f16, MESA_F16)
DEFINE_TWO_ENTRIES(2)
DEFINE_TWO_ENTRIES(4)
DEFINE_TWO_ENTRIES(8)
DEFINE_SPARSE_ENTRIES(1)
DEFINE_SPARSE_ENTRIES(2)
DEFINE_SPARSE_ENTRIES(4)

void mesa_kernels_fill_mask_avx2(struct mesa_kernels *table) {
    table->mask_pack_bool = pack_bool;
    table->mask_unpack_bool = unpack_bool;
    table->mask_pack[MESA_F32] = pack_predicate_f32;
    table->mask_pack[MESA_BF16] = pack_predicate_bf16;
    table->mask_pack[MESA_F16] = pack_predicate_f16;
    SET_TWO_ENTRIES(table, 0, 2);
    SET_TWO_ENTRIES(table, 1, 4);
    SET_TWO_ENTRIES(table, 2, 8);
    SET_SPARSE_ENTRIES(table, 0, 1);
    SET_SPARSE_ENTRIES(table, 1, 2);
    SET_SPARSE_ENTRIES(table, 2, 4);
}
