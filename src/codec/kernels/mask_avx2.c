/* Masks and sparse runs with AVX2. Signs in two bits, float64, and elements of 8 bytes in sparse runs
 * stay with the scalar entries.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/avx2.h"

#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"
#include "codec/kernels/mask_tmpl.h"

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
    uint32_t zero = (uint32_t)e_equal(bytes, x, _mm256_setzero_si256());
    return bytes == 1 ? ~zero : ~zero & ((1u << (32 / bytes % 32)) - 1);
}

MESA_ALWAYS_INLINE size_t compress(size_t bytes, const void *src, size_t n, size_t most,
                                   uint8_t *ret_mask, void *ret_elements) {
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
    bool fits = compress_elements(bytes, src, i, n, most, ret_mask, elements, &count);
    return fits ? count : SIZE_MAX;
}

static size_t count_bits(const uint8_t *mask, size_t n) {
    size_t count = 0, i = 0;
    for (; i + 64 <= n; i += 64) {
        uint64_t bits;
        memcpy(&bits, mask + i / 8, sizeof bits);
        count += (size_t)__builtin_popcountll(bits);
    }
    for (; i < n; i++)
        count += mask_bit(mask, i);
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
    return expand_elements(bytes, mask, i, n, from, count, ret_dst);
}

/* ---- the entries ------------------------------------------------------------------------------- */

MASK_SHORT_SIZES(DEFINE_SPARSE_ENTRIES)

void mesa_kernels_fill_mask_avx2(struct mesa_kernels *table) {
    fill_common_entries(table);
    MASK_SHORT_SIZES(SET_SPARSE_ENTRIES)
}
