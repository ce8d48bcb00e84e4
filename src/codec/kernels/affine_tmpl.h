/* The affine kernels of the vector files but for their instructions. A batch of groups is ranged, then
 * all its words are found at once (a lane for each group, since a division and its dependants take
 * longer than the rest of a group), then it is coded out of the first cache. Equals affine_scalar.c
 * byte for byte.
 *
 * affine_ISA.c (as mask_ISA.c and number_ISA.c their own) includes this behind the header of its vectors, which defines
 *     vfloat, vint, vmask   LANES lanes of float32 and of 32 bits, and a truth for each lane
 *     vcodes                BLOCK codes, a byte each; a block is VECTORS vectors of elements
 *     v_ i_ h_ m_           operations that give a vfloat, a vint, a vint as lanes of 16 bits, a vmask:
 *       v_round, v_floor    to an integer, halves to even; downwards
 *       v_min, v_max        of two lanes; of NaN anything
 *       v_clip              to least..most; NaN becomes most
 *       v_first, v_second   halves of pairs of lanes: join(v_first(a, b, l), v_second(a, b, l)) for
 *                           each level l < log2(LANES) over a tree of LANES vectors leaves in lane g
 *                           what joining all lanes of vector g gives
 *       v_least, v_most     of all lanes, a float
 *       v_bits, i_bits      the same bits; v_of_i, i_of_v convert, to nearest even
 *       i_up, i_down        shifts by a constant, _by: by any number; i_down_signed copies the sign
 *       i_places            0, 1, 2, ...
 *       h_sign              all ones where negative; h_odd_of takes odd lanes from its first
 *       m_differ, m_not_at_most   also true for NaN
 *       m_bits, m_bits_of_4 a bit for each lane, of one vmask or of four
 *       m_choose            yes where the lane's truth holds, else no
 *     e_set, e_equal, e_choose    the same for elements of 1, 2, 4 or 8 bytes in a vint; truths as bits
 *     load_floats, store_floats   LANES elements of a dtype, as element_load() and element_store();
 *                           stored ones are finite, or NaN as f32 or bf16. stream: past the caches, dst is aligned
 *     load_some, store_some the first n <= LANES. Lanes beyond have the first again, or 0 for n = 0
 *     store_f16_some        as store_some, but what is too large for float16 becomes infinite
 *     store_vector          a whole vint; stores_done() after the last streamed one
 *     bytes_load, bytes_store     the first n bytes of a vint (or all); loads: 0 beyond
 *     narrow_codes          codes of 32 bits to a block, clipped to 0..2^bits-1; narrow_code_pairs: of
 *                           each two vectors the first has the even lanes, the second the odd ones
 *     widen_codes           codes k * LANES on of a block in 32 bits; widen_half_codes: k * 2 * LANES on
 *                           in 16 bits
 *     codes_first           the first n of a block, 0 beyond
 *     block_load, block_store, codes_load, codes_store   n <= BLOCK or LANES bytes; loads: 0 beyond
 *     codes_nonzero, codes_of_bits   a bit for each code of a block; 0 or 1 for each bit
 *     store_packed          exactly the packed bytes of n <= BLOCK codes that are 0 beyond the n-th
 *     load_packed           inverse; beyond the n-th anything. Touches `readable` bytes at the most
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_AFFINE_TMPL_H
#define MESA_CODEC_KERNELS_AFFINE_TMPL_H

#include "codec/kernels/affine.h"
#include "codec/kernels/affine_entries.h"
#include "codec/kernels/batch.h"

/* Vectors of a block stay in registers also where gcc would keep the loop. */
#define UNROLL _Pragma("GCC unroll 8")

/* ---- range ----------------------------------------------------------------------------------- */

/* Least and most of what went in; `doubt` has bits set where an element was not finite (x - x is NaN
 * then, else +0), since minima and maxima alone would lose a NaN. */
struct extent {
    vfloat lo, hi, doubt;
};

MESA_ALWAYS_INLINE struct extent extent_start(void) {
    return (struct extent){v_set(INFINITY), v_set(-INFINITY), v_set(0)};
}

MESA_ALWAYS_INLINE struct extent extent_of_one(vfloat x) {
    return (struct extent){x, x, v_sub(x, x)};
}

MESA_ALWAYS_INLINE void extent_add(struct extent *extent, vfloat x) {
    extent->lo = v_min(x, extent->lo);
    extent->hi = v_max(x, extent->hi);
    extent->doubt = v_or(extent->doubt, v_sub(x, x));
}

MESA_ALWAYS_INLINE struct extent extent_join(struct extent a, struct extent b) {
    return (struct extent){v_min(a.lo, b.lo), v_max(a.hi, b.hi), v_or(a.doubt, b.doubt)};
}

/* The elements of bfloat16 of a vector: even ones, odd ones. */
MESA_ALWAYS_INLINE vfloat even_bf16(vint pairs) {
    return v_bits(i_up(pairs, 16));
}

MESA_ALWAYS_INLINE vfloat odd_bf16(vint pairs) {
    return v_bits(i_and(pairs, i_set(0xffff0000)));
}

/* bfloat16 to integers of the same order, NaN outside infinity, and back: negative ones have their
 * lower bits flipped. */
MESA_ALWAYS_INLINE vint bf16_order(vint x) {
    return i_xor(x, i_and(h_sign(x), h_set(0x7fff)));
}

/* Four independent accumulators, for the latency of the operations. Of bfloat16, whole steps are
 * compared as integers, which takes a vector of 2 * LANES. */
struct extents {
    struct extent parts[4];
    vint lo[2], hi[2];
};

/* Elements that all accumulators take together. */
#define EXTENT_STEP (4 * (size_t)LANES)

MESA_ALWAYS_INLINE struct extents extents_start(void) {
    return (struct extents){
        .parts = {extent_start(), extent_start(), extent_start(), extent_start()},
        .lo = {h_set(INT16_MAX), h_set(INT16_MAX)},
        .hi = {h_set(INT16_MIN), h_set(INT16_MIN)},
    };
}

MESA_ALWAYS_INLINE vint bf16_in_order(const void *src, size_t k) {
    return bf16_order(i_load(element_at(MESA_BF16, src, 2 * LANES * k)));
}

/* Of the first EXTENT_STEP elements: nothing was there to compare them with. */
MESA_ALWAYS_INLINE void extents_first(enum mesa_dtype dtype, struct extents *extents,
                                      const void *src) {
    UNROLL
    for (size_t k = 0; k < 2 && dtype == MESA_BF16; k++)
        extents->lo[k] = extents->hi[k] = bf16_in_order(src, k);
    UNROLL
    for (size_t j = 0; j < 4 && dtype != MESA_BF16; j++)
        extents->parts[j] = extent_of_one(load_floats(dtype, element_at(dtype, src, j * LANES)));
}

MESA_ALWAYS_INLINE void extents_add_bf16(struct extents *extents, const void *src) {
    UNROLL
    for (size_t k = 0; k < 2; k++) {
        vint x = bf16_in_order(src, k);
        extents->lo[k] = h_min(extents->lo[k], x);
        extents->hi[k] = h_max(extents->hi[k], x);
    }
}

MESA_ALWAYS_INLINE void extents_add(enum mesa_dtype dtype, struct extents *extents, const void *src,
                                    size_t n) {
    struct extent *parts = extents->parts;
    size_t i = 0;
    if (dtype == MESA_BF16)
        for (; i + EXTENT_STEP <= n; i += EXTENT_STEP)
            extents_add_bf16(extents, element_at(MESA_BF16, src, i));
    for (; i + EXTENT_STEP <= n; i += EXTENT_STEP) {
        UNROLL
        for (size_t j = 0; j < 4; j++)
            extent_add(&parts[j], load_floats(dtype, element_at(dtype, src, i + j * LANES)));
    }
    for (; i + LANES <= n; i += LANES)
        extent_add(&parts[0], load_floats(dtype, element_at(dtype, src, i)));
    if (i < n)
        extent_add(&parts[1], load_some(dtype, element_at(dtype, src, i), n - i));
}

/* Of whole steps of bfloat16: a NaN lies beyond infinity, and is the least or the most. */
MESA_ALWAYS_INLINE struct extent extent_of_steps(const struct extents *extents) {
    vint least = bf16_order(h_min(extents->lo[0], extents->lo[1]));
    vint most = bf16_order(h_max(extents->hi[0], extents->hi[1]));
    struct extent lo[2] = {extent_of_one(even_bf16(least)), extent_of_one(odd_bf16(least))};
    struct extent hi[2] = {extent_of_one(even_bf16(most)), extent_of_one(odd_bf16(most))};
    return (struct extent){v_min(lo[0].lo, lo[1].lo), v_max(hi[0].hi, hi[1].hi),
                           v_or(v_or(lo[0].doubt, lo[1].doubt), v_or(hi[0].doubt, hi[1].doubt))};
}

/* What was added came in pieces of n elements. */
MESA_ALWAYS_INLINE struct extent extents_join(enum mesa_dtype dtype, struct extents extents,
                                              size_t n) {
    struct extent *parts = extents.parts;
    bool has_steps = dtype == MESA_BF16 && n >= EXTENT_STEP;
    if (has_steps && n % EXTENT_STEP == 0)
        return extent_of_steps(&extents);
    if (has_steps)
        parts[2] = extent_of_steps(&extents);
    return extent_join(extent_join(parts[0], parts[1]), extent_join(parts[2], parts[3]));
}

MESA_ALWAYS_INLINE struct extent extent_of(enum mesa_dtype dtype, const void *src, size_t n) {
    struct extents extents = extents_start();
    size_t first = 0;
    if (n >= EXTENT_STEP) {
        extents_first(dtype, &extents, src);
        first = EXTENT_STEP;
    }
    extents_add(dtype, &extents, element_at(dtype, src, first), n - first);
    return extents_join(dtype, extents, n);
}

/* Coding takes about as long as ranging, and in all that time nothing else asks memory for what follows:
 * large tensors are encoded at 25 GB/s instead of 15. Further than a batch, nearer than what would push
 * it out of the first cache; a place behind the last element is no fault. */
#define AHEAD_BYTES 16384

MESA_ALWAYS_INLINE void ask_ahead(const char *src, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(src + at + AHEAD_BYTES);
}

MESA_ALWAYS_INLINE vmask finite_lanes(vfloat doubt) {
    return i_is_zero(i_bits(doubt));
}

MESA_ALWAYS_INLINE bool range_runs(enum mesa_dtype dtype, const struct mesa_affine_runs *runs,
                                   const void *src, float *lo, float *hi) {
    struct extents extents = extents_start();
    for (size_t i = 0; i < runs->runs; i++) {
        const void *run = run_at(dtype, runs, src, i);
        ask_ahead(run, runs->run * element_bytes(dtype));
        extents_add(dtype, &extents, run, runs->run);
    }
    struct extent extent = extents_join(dtype, extents, runs->runs == 0 ? 0 : runs->run);
    float least = v_least(extent.lo), most = v_most(extent.hi);
    *lo = (least < *lo ? least : *lo) + 0.0f;
    *hi = (most > *hi ? most : *hi) + 0.0f;
    return m_all(finite_lanes(extent.doubt));
}

/* LANES vectors to one, whose lane g joins the lanes of vector g: a third of the steps of LANES
 * reductions. */
#define DEFINE_REDUCE(name, join)                                                                  \
    MESA_ALWAYS_INLINE vfloat name##_2(const vfloat *v) {                                          \
        return join(v_first(v[0], v[1], 0), v_second(v[0], v[1], 0));                              \
    }                                                                                              \
    MESA_ALWAYS_INLINE vfloat name##_4(const vfloat *v) {                                          \
        vfloat a = name##_2(v), b = name##_2(v + 2);                                               \
        return join(v_first(a, b, 1), v_second(a, b, 1));                                          \
    }                                                                                              \
    MESA_ALWAYS_INLINE vfloat name##_8(const vfloat *v) {                                          \
        vfloat a = name##_4(v), b = name##_4(v + 4);                                               \
        return join(v_first(a, b, 2), v_second(a, b, 2));                                          \
    }                                                                                              \
    MESA_ALWAYS_INLINE vfloat name##_16(const vfloat *v) {                                         \
        vfloat a = name##_8(v), b = name##_8(v + 8);                                               \
        return join(v_first(a, b, 3), v_second(a, b, 3));                                          \
    }                                                                                              \
    MESA_ALWAYS_INLINE vfloat name(const vfloat *v) {                                              \
        return LANES == 4 ? name##_4(v) : LANES == 8 ? name##_8(v) : name##_16(v);                 \
    }

DEFINE_REDUCE(least_of_each, v_min)
DEFINE_REDUCE(most_of_each, v_max)
DEFINE_REDUCE(union_of_each, v_or)

/* ---- words: mesa_affine_word() in all lanes, step by step ---------------------------------------- */

struct words {
    vint words, zero_points;
    vfloat inverse; /* of the scales */
};

/* Of a call. Small enough for a register: words_of() is not inlined. */
struct rules {
    unsigned bits;
    bool strict_sign, stochastic;
};

MESA_ALWAYS_INLINE vint choose_words(vmask m, vint yes, vint no) {
    return i_bits(m_choose(m, v_bits(yes), v_bits(no)));
}

/* Bits of the scales, rounded up to bfloat16. */
MESA_ALWAYS_INLINE vint scale_bits_of(vfloat lo, vfloat hi, vfloat magnitude, struct rules rules) {
    const float last_code = (float)((1u << rules.bits) - 1);
    vfloat zero = v_set(0), steps = v_set(last_code), fewer = v_set(last_code - 1);
    if (rules.stochastic && rules.bits != 1)
        steps = m_choose(m_or(m_equal(lo, zero), m_equal(hi, zero)), steps, fewer);
    else if (rules.strict_sign && rules.bits != 1)
        steps = m_choose(m_and(m_less(lo, zero), m_less(zero, hi)), fewer, steps);
    vfloat step = v_div(v_sub(hi, lo), steps);
    vfloat reach = v_div(magnitude, v_set(MESA_AFFINE_REACH));
    return i_and(i_add(i_bits(v_max(step, reach)), i_set(0xffff)), i_set(0xffff0000));
}

/* Grid indices of code 0. */
MESA_ALWAYS_INLINE vint zero_points_of(vfloat lo, vfloat hi, vfloat inverse, struct rules rules) {
    vfloat zero = v_set(0), one = v_set(1);
    vfloat least = v_set(-(float)((1u << rules.bits) - 1));
    vfloat first = v_mul(lo, inverse);
    first = rules.stochastic && rules.bits != 1 ? v_floor(first) : v_round(first);
    if (rules.strict_sign)
        least = m_choose(m_less(zero, hi), v_add(least, one), least);
    first = m_choose(m_at_least(hi, zero), v_max(first, least), first);
    if (rules.strict_sign)
        first = m_choose(m_less(lo, zero), v_min(first, v_set(-1)), first);
    return i_of_v(first);
}

static struct words words_of(vfloat lo, vfloat hi, vmask finite, struct rules rules) {
    vfloat zero = v_set(0), magnitude = v_max(v_sub(zero, lo), hi);
    vint scale_bits = scale_bits_of(lo, hi, magnitude, rules);
    vfloat scale = v_bits(scale_bits), inverse = v_div(v_set(1), scale);
    vmask good = m_and(finite, m_less(magnitude, v_set(MESA_AFFINE_MOST)));
    good = m_and(good, m_at_least(scale, v_set(MESA_AFFINE_LEAST)));
    if (rules.strict_sign && rules.bits == 1)
        good = m_and_not(good, m_and(m_less(lo, zero), m_less(zero, hi)));

    vint zero_points = zero_points_of(lo, hi, inverse, rules);
    vint words = i_or(scale_bits, i_and(zero_points, i_set(0xffff)));
    words = choose_words(good, words, i_set(MESA_GROUP_RAW));
    words = choose_words(m_and(finite, m_equal(magnitude, zero)), i_set(0), words);
    return (struct words){words, zero_points, inverse};
}

/* ---- codes ----------------------------------------------------------------------------------- */

MESA_ALWAYS_INLINE vfloat keep_signs(vfloat index, vfloat x) {
    index = m_choose(m_less(v_set(0), x), v_max(index, v_set(1)), index);
    return m_choose(m_less(x, v_set(0)), v_min(index, v_set(-1)), index);
}

/* affine_uniform() of the LANES elements from `element` on. */
MESA_ALWAYS_INLINE vfloat uniforms_from(uint64_t seed, uint64_t element) {
    if ((uint32_t)element > UINT32_MAX - (LANES - 1)) { /* the key changes on the way */
        float uniforms[LANES];
        for (unsigned i = 0; i < LANES; i++)
            uniforms[i] = affine_uniform(affine_key_of(seed, element + i), (uint32_t)(element + i));
        return v_load(uniforms);
    }
    struct affine_key key = affine_key_of(seed, element);
    vint x = i_add(i_set((uint32_t)element + key.add), i_places());
    x = i_mul(i_xor(x, i_down(x, 16)), i_set(AFFINE_MULTIPLY_1));
    x = i_xor(x, i_set(key.flip));
    x = i_mul(i_xor(x, i_down(x, 15)), i_set(AFFINE_MULTIPLY_2));
    x = i_xor(x, i_down(x, 15));
    return v_mul(v_of_i(i_down(x, 8)), v_set(0x1p-24f));
}

struct coder {
    vfloat inverse; /* 1 / scale */
    vint zero_point;
    struct rules rules;
    bool stream;
    uint64_t seed;
    bool clips;         /* elements may lie outside the range of their word, or be NaN */
    vfloat least, most; /* then: grid indices of the first and the last code */
};

MESA_ALWAYS_INLINE void coder_set_ends(struct coder *coder, unsigned bits) {
    coder->least = v_of_i(coder->zero_point);
    coder->most = v_add(coder->least, v_set((float)((1u << bits) - 1)));
}

/* Grid indices of LANES elements, not rounded yet where the conversion that follows does that: to
 * nearest even. */
MESA_ALWAYS_INLINE vfloat indices_of(struct coder coder, vfloat x, uint64_t element) {
    vfloat position = v_mul(x, coder.inverse);
    if (!coder.rules.stochastic && !coder.rules.strict_sign)
        return position;
    vfloat index = v_round(position);
    if (coder.rules.stochastic) {
        index = v_floor(position);
        vmask up = m_less(uniforms_from(coder.seed, element), v_sub(position, index));
        index = m_choose(up, v_add(index, v_set(1)), index);
    }
    return coder.rules.strict_sign ? keep_signs(index, x) : index;
}

/* Codes of LANES elements in 32 bits. Unless the coder clips, what narrows them still must. */
MESA_ALWAYS_INLINE vint codes_of(struct coder coder, vfloat x, uint64_t element) {
    vfloat index = indices_of(coder, x, element);
    if (coder.clips) /* to integers: it does not matter that rounding comes later */
        index = v_clip(index, coder.least, coder.most);
    return i_sub(i_of_v(index), coder.zero_point);
}

/* Codes of a block; of more than 8 bits the upper 8, and the others. */
struct block {
    vcodes upper, lower;
};

/* `pairs`: of each two vectors the first has the even lanes, the second the odd ones. Unless the coder
 * clips, too large codes of up to 8 bits become the largest. */
MESA_ALWAYS_INLINE struct block block_of(const vint codes[VECTORS], unsigned bits, bool pairs) {
    const unsigned lower_bits = mesa_lower_bits(bits);
    if (lower_bits == 0)
        return (struct block){.upper = pairs ? narrow_code_pairs(codes, bits)
                                             : narrow_codes(codes, bits)};
    vint upper[VECTORS], lower[VECTORS];
    UNROLL
    for (size_t j = 0; j < VECTORS; j++) {
        upper[j] = i_down_by(codes[j], lower_bits);
        lower[j] = i_and(codes[j], i_set((1u << lower_bits) - 1));
    }
    return pairs ? (struct block){narrow_code_pairs(upper, 8), narrow_code_pairs(lower, 8)}
                 : (struct block){narrow_codes(upper, 8), narrow_codes(lower, 8)};
}

MESA_ALWAYS_INLINE struct block block_codes(enum mesa_dtype dtype, struct coder coder,
                                            const char *src, uint64_t element) {
    vint codes[VECTORS];
    if (dtype == MESA_BF16 && !coder.rules.stochastic) { /* else order matters to the uniforms */
        UNROLL
        for (size_t k = 0; k < VECTORS / 2; k++) {
            vint pairs = i_load(src + k * sizeof pairs);
            codes[2 * k] = codes_of(coder, even_bf16(pairs), element);
            codes[2 * k + 1] = codes_of(coder, odd_bf16(pairs), element);
        }
        return block_of(codes, coder.rules.bits, true);
    }
    UNROLL
    for (size_t j = 0; j < VECTORS; j++)
        codes[j] = codes_of(coder, load_floats(dtype, element_at(dtype, src, j * LANES)),
                            element + j * LANES);
    return block_of(codes, coder.rules.bits, false);
}

/* Codes [i, i + n) of a group whose upper and lower bits are to be packed from the two places on. */
MESA_ALWAYS_INLINE void block_pack(struct block block, unsigned bits, size_t i, size_t n,
                                   bool stream, uint8_t *ret_upper, uint8_t *ret_lower) {
    const unsigned lower_bits = mesa_lower_bits(bits), upper_bits = bits - lower_bits;
    store_packed(ret_upper + i * upper_bits / 8, block.upper, n, upper_bits, stream);
    if (lower_bits != 0)
        store_packed(ret_lower + i * lower_bits / 8, block.lower, n, lower_bits, stream);
}

MESA_ALWAYS_INLINE void encode_group(enum mesa_dtype dtype, struct coder coder, const char *src,
                                     size_t n, uint64_t element, uint8_t *ret_codes) {
    const unsigned bits = coder.rules.bits;
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        ask_ahead(src + i * element_bytes(dtype), BLOCK * element_bytes(dtype));
        struct block block = block_codes(dtype, coder, element_at(dtype, src, i), element + i);
        block_pack(block, bits, i, BLOCK, coder.stream, ret_codes, ret_codes + n);
    }
    if (i == n)
        return;
    vint codes[VECTORS];
    for (size_t j = 0; j < VECTORS; j++) {
        size_t first = i + j * LANES;
        vfloat x = load_some(dtype, element_at(dtype, src, first), first < n ? n - first : 0);
        codes[j] = codes_of(coder, x, element + first);
    }
    struct block block = block_of(codes, bits, false);
    block.upper = codes_first(block.upper, n - i);
    if (mesa_lower_bits(bits) != 0)
        block.lower = codes_first(block.lower, n - i);
    block_pack(block, bits, i, n - i, false, ret_codes, ret_codes + n);
}

/* ---- batches --------------------------------------------------------------------------------- */

struct batch {
    size_t count;
    struct group groups[BATCH_GROUPS];
    vfloat lo[BATCH_GROUPS], hi[BATCH_GROUPS], doubt[BATCH_GROUPS];
    uint32_t words[BATCH_GROUPS];
    int32_t zero_points[BATCH_GROUPS];
    float inverse[BATCH_GROUPS];
    unsigned one_value; /* bit g: group g may be one element over and over */
};

MESA_ALWAYS_INLINE void batch_range(enum mesa_dtype dtype, const struct mesa_affine_rows *rows,
                                    const void *src, struct batch *batch) {
    size_t g = 0;
    for (; g < batch->count; g++) {
        const char *from = group_source(rows, batch->groups[g], src, element_bytes(dtype));
        struct extent extent = extent_of(dtype, from, batch->groups[g].n);
        batch->lo[g] = extent.lo;
        batch->hi[g] = extent.hi;
        batch->doubt[g] = extent.doubt;
    }
    for (; g % LANES != 0; g++)
        batch->lo[g] = batch->hi[g] = batch->doubt[g] = v_set(0);
}

MESA_ALWAYS_INLINE void batch_find_words(struct rules rules, struct batch *batch) {
    batch->one_value = 0;
    for (size_t g = 0; g < batch->count; g += LANES) {
        vfloat least = v_add(least_of_each(batch->lo + g), v_set(0));
        vfloat most = v_add(most_of_each(batch->hi + g), v_set(0));
        vmask finite = finite_lanes(union_of_each(batch->doubt + g));
        struct words words = words_of(least, most, finite, rules);
        i_store(batch->words + g, words.words);
        i_store(batch->zero_points + g, words.zero_points);
        v_store(batch->inverse + g, words.inverse);
        batch->one_value |= ~m_bits(m_and_not(finite, m_equal(least, most))) << g;
    }
}

/* Returns the number of raw groups. */
MESA_ALWAYS_INLINE size_t batch_code(enum mesa_dtype dtype, struct coder coder,
                                     const struct mesa_affine_rows *rows, const void *src,
                                     const struct batch *batch, uint32_t *ret_words,
                                     uint8_t *ret_codes) {
    const size_t bytes = element_bytes(dtype);
    size_t raw_groups = 0;
    for (size_t g = 0; g < batch->count; g++) {
        struct group group = batch->groups[g];
        const char *from = group_source(rows, group, src, bytes);
        uint8_t *codes = ret_codes + group_code_offset(rows, group);
        uint32_t word = batch->words[g];
        bool one_value = batch->one_value >> g & 1;
        if (word == 0 || word == MESA_GROUP_RAW || one_value)
            word =
                group_hold_special(from, group.n, bytes, coder.rules.bits, one_value, word, codes);
        if (word != 0 && !word_is_mark(word)) {
            coder.inverse = v_set(batch->inverse[g]);
            coder.zero_point = i_set(batch->zero_points[g]);
            if (coder.clips)
                coder_set_ends(&coder, coder.rules.bits);
            encode_group(dtype, coder, from, group.n, group_first_element(rows, group), codes);
        }
        raw_groups += word == MESA_GROUP_RAW;
        ret_words[g] = word;
    }
    return raw_groups;
}

MESA_ALWAYS_INLINE size_t encode(enum mesa_dtype dtype, unsigned bits, bool strict_sign,
                                 enum mesa_rounding rounding, const struct mesa_affine_rows *rows,
                                 const void *src, uint32_t *ret_words, uint8_t *ret_codes) {
    const struct coder coder = {
        .rules = {bits, strict_sign, rounding == MESA_ROUND_STOCHASTIC},
        .stream = rows->stream,
        .seed = rows->seed,
        .clips = bits > 8, /* bytes are clipped by what narrows codes to them */
    };
    size_t raw_groups = 0;
    struct group_cursor cursor = group_cursor_begin(rows);
    struct batch batch;
    while ((batch.count = group_cursor_take(&cursor, element_bytes(dtype), batch.groups)) > 0) {
        batch_range(dtype, rows, src, &batch);
        batch_find_words(coder.rules, &batch);
        raw_groups += batch_code(dtype, coder, rows, src, &batch, ret_words, ret_codes);
        ret_words += batch.count;
    }
    if (rows->stream)
        stores_done();
    return raw_groups;
}

/* ---- values ---------------------------------------------------------------------------------- */

MESA_ALWAYS_INLINE vfloat values_of(vint codes, vint zero_point, vfloat scale) {
    return v_mul(v_of_i(i_add(codes, zero_point)), scale);
}

/* 2 * LANES codes in 16 bits each to bfloat16: even and odd ones are rounded apart, as bf16_round()
 * does, and meet again in the halves of 32 bits. */
MESA_ALWAYS_INLINE vint bf16_values_of(vint codes, vint zero_point, vfloat scale) {
    vint rounded[2] = {i_and(codes, i_set(0xffff)), i_down(codes, 16)};
    UNROLL
    for (int k = 0; k < 2; k++) {
        vint bits = i_bits(values_of(rounded[k], zero_point, scale));
        vint lowest = i_and(i_down(bits, 16), i_set(1));
        rounded[k] = i_add(i_add(bits, i_set(0x7fff)), lowest);
    }
    return h_odd_of(rounded[1], i_down(rounded[0], 16));
}

/* Lanes of 32 or of 16 bits, which have room for codes. */
MESA_ALWAYS_INLINE vint whole_codes(vint upper, vint lower, unsigned bits) {
    return i_or(i_up_by(upper, mesa_lower_bits(bits)), lower);
}

MESA_ALWAYS_INLINE vint widen_block(struct block block, unsigned bits, size_t k) {
    vint upper = widen_codes(block.upper, k);
    return bits <= 8 ? upper : whole_codes(upper, widen_codes(block.lower, k), bits);
}

MESA_ALWAYS_INLINE vint widen_half_block(struct block block, unsigned bits, size_t k) {
    vint upper = widen_half_codes(block.upper, k);
    return bits <= 8 ? upper : whole_codes(upper, widen_half_codes(block.lower, k), bits);
}

/* A whole block. `packed`: where its codes are from; bytes need not come out of a vector again. */
MESA_ALWAYS_INLINE void store_values(enum mesa_dtype dtype, struct block block,
                                     const uint8_t *packed, unsigned bits, vint zero_point,
                                     vfloat scale, bool stream, char *dst) {
    if (dtype == MESA_BF16) {
        UNROLL
        for (size_t k = 0; k < VECTORS / 2; k++)
            store_vector(dst + k * sizeof(vint),
                         bf16_values_of(widen_half_block(block, bits, k), zero_point, scale),
                         stream);
        return;
    }
    UNROLL
    for (size_t j = 0; j < VECTORS; j++) {
        vint wide = bits == 8 ? codes_load(packed + j * LANES, LANES) : widen_block(block, bits, j);
        store_floats(dtype, dst + j * LANES * element_bytes(dtype),
                     values_of(wide, zero_point, scale), stream);
    }
}

/* Inverse of block_pack(). `readable`: bytes from `upper` on that may be touched. */
MESA_ALWAYS_INLINE struct block block_unpack(const uint8_t *upper, const uint8_t *lower,
                                             unsigned bits, size_t i, size_t n, size_t readable) {
    const unsigned lower_bits = mesa_lower_bits(bits), upper_bits = bits - lower_bits;
    size_t upper_at = i * upper_bits / 8, lower_at = i * lower_bits / 8;
    struct block block = {.upper =
                              load_packed(upper + upper_at, n, upper_bits, readable - upper_at)};
    if (lower_bits != 0)
        block.lower = load_packed(lower + lower_at, n, lower_bits,
                                  readable - (size_t)(lower - upper) - lower_at);
    return block;
}

/* `readable`: bytes at `codes` that may be touched. */
MESA_ALWAYS_INLINE void decode_group(enum mesa_dtype dtype, uint32_t word, const uint8_t *codes,
                                     size_t n, unsigned bits, size_t readable, bool stream,
                                     char *dst) {
    vint zero_point = i_set(word_zero_point(word));
    vfloat scale = v_set(word_scale(word));
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        struct block block = block_unpack(codes, codes + n, bits, i, BLOCK, readable);
        store_values(dtype, block, codes + i, bits, zero_point, scale, stream,
                     dst + i * element_bytes(dtype));
    }
    if (i == n)
        return;
    struct block block = block_unpack(codes, codes + n, bits, i, n - i, readable);
    for (size_t j = 0; j < VECTORS && i + j * LANES < n; j++)
        store_some(dtype, dst + (i + j * LANES) * element_bytes(dtype),
                   values_of(widen_block(block, bits, j), zero_point, scale), n - i - j * LANES);
}

MESA_ALWAYS_INLINE void decode(enum mesa_dtype dtype, unsigned bits,
                               const struct mesa_affine_rows *rows, const uint32_t *words,
                               const uint8_t *codes, const uint8_t *raw, size_t raw_group_bytes,
                               bool stream, void *ret_dst) {
    const size_t code_bytes = rows->rows * mesa_code_row_bytes(rows->row, bits);
    struct group_cursor cursor = group_cursor_begin(rows);
    struct group group;
    while (group_cursor_next(&cursor, &group)) {
        uint32_t word = *words++;
        size_t offset = group_code_offset(rows, group), readable = code_bytes - offset;
        const uint8_t *from = codes + offset;
        char *to = (char *)ret_dst + (group.row * rows->row + group.begin) * element_bytes(dtype);
        if (word_is_mark(word))
            group_restore_mark(word, from, group.n, element_bytes(dtype), raw, raw_group_bytes, to);
        else if (stream && (uintptr_t)to % sizeof(vint) == 0)
            decode_group(dtype, word, from, group.n, bits, readable, true, to);
        else
            decode_group(dtype, word, from, group.n, bits, readable, false, to);
    }
    if (stream)
        stores_done();
}

/* ---- runs of a group --------------------------------------------------------------------------- */

/* For bytes that are stored as they are: at least 8 bits, whatever the word was made for. */
MESA_ALWAYS_INLINE struct coder clipping_coder(vfloat inverse, vint zero_point, unsigned bits,
                                               bool strict_sign) {
    struct coder coder = {
        .inverse = inverse,
        .zero_point = zero_point,
        .rules = {.bits = bits <= 8 ? 8 : bits, .strict_sign = strict_sign},
        .clips = true,
    };
    coder_set_ends(&coder, bits);
    return coder;
}

/* n <= LANES codes, not packed. */
MESA_ALWAYS_INLINE void some_codes_store(struct mesa_code_bytes to, vint codes, unsigned bits,
                                         size_t i, size_t n) {
    const unsigned lower_bits = mesa_lower_bits(bits);
    codes_store(to.upper + i, lower_bits == 0 ? codes : i_down_by(codes, lower_bits), n);
    if (lower_bits != 0)
        codes_store(to.lower + i, i_and(codes, i_set((1u << lower_bits) - 1)), n);
}

MESA_ALWAYS_INLINE vint some_codes_load(struct mesa_code_bytes from, unsigned bits, size_t i,
                                        size_t n) {
    vint upper = codes_load(from.upper + i, n);
    return bits <= 8 ? upper : whole_codes(upper, codes_load(from.lower + i, n), bits);
}

MESA_ALWAYS_INLINE void quantize_run(enum mesa_dtype dtype, struct coder coder, const void *src,
                                     size_t n, struct mesa_code_bytes ret_codes) {
    const unsigned bits = coder.rules.bits;
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        struct block block = block_codes(dtype, coder, element_at(dtype, src, i), 0);
        block_store(ret_codes.upper + i, block.upper, BLOCK);
        if (bits > 8)
            block_store(ret_codes.lower + i, block.lower, BLOCK);
    }
    for (; i + LANES <= n; i += LANES) {
        vfloat x = load_floats(dtype, element_at(dtype, src, i));
        some_codes_store(ret_codes, codes_of(coder, x, 0), bits, i, LANES);
    }
    if (i < n) {
        vfloat x = load_some(dtype, element_at(dtype, src, i), n - i);
        some_codes_store(ret_codes, codes_of(coder, x, 0), bits, i, n - i);
    }
}

MESA_ALWAYS_INLINE void quantize_runs(enum mesa_dtype dtype, const struct mesa_affine_runs *runs,
                                      const void *src, uint32_t word, unsigned bits,
                                      bool strict_sign, struct mesa_code_bytes ret_codes) {
    struct coder coder = clipping_coder(v_set(1.0f / word_scale(word)),
                                        i_set(word_zero_point(word)), bits, strict_sign);
    for (size_t i = 0; i < runs->runs; i++) {
        struct mesa_code_bytes codes = codes_from(ret_codes, bits, i * runs->code_stride);
        if (word != 0)
            quantize_run(dtype, coder, run_at(dtype, runs, src, i), runs->run, codes);
        else
            memset(codes.upper, 0, runs->run);
        if (word == 0 && bits > 8)
            memset(codes.lower, 0, runs->run);
    }
}

MESA_ALWAYS_INLINE void dequantize_run(enum mesa_dtype dtype, struct mesa_code_bytes codes,
                                       unsigned bits, size_t n, vint zero_point, vfloat scale,
                                       char *dst) {
    const size_t bytes = element_bytes(dtype);
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        struct block block = {.upper = block_load(codes.upper + i, BLOCK)};
        if (bits > 8)
            block.lower = block_load(codes.lower + i, BLOCK);
        store_values(dtype, block, codes.upper + i, bits, zero_point, scale, false,
                     dst + i * bytes);
    }
    for (; i + LANES <= n; i += LANES)
        store_floats(dtype, dst + i * bytes,
                     values_of(some_codes_load(codes, bits, i, LANES), zero_point, scale), false);
    if (i < n)
        store_some(dtype, dst + i * bytes,
                   values_of(some_codes_load(codes, bits, i, n - i), zero_point, scale), n - i);
}

/* bits: at least 8. */
MESA_ALWAYS_INLINE void dequantize_runs(enum mesa_dtype dtype, const struct mesa_affine_runs *runs,
                                        struct mesa_code_bytes codes, unsigned bits, uint32_t word,
                                        void *ret_dst) {
    vint zero_point = i_set(word_zero_point(word));
    vfloat scale = v_set(word_scale(word));
    for (size_t i = 0; i < runs->runs; i++)
        dequantize_run(dtype, codes_from(codes, bits, i * runs->code_stride), bits, runs->run,
                       zero_point, scale, (char *)ret_dst + run_offset(dtype, runs, i));
}

/* ---- one group for each column --------------------------------------------------------------- */

/* Each `_some` does n <= LANES columns of one row; loops call it for whole vectors, where n is known
 * to the compiler, and for what is left. */

/* Returns what `doubt` gets. */
MESA_ALWAYS_INLINE vfloat range_some(enum mesa_dtype dtype, const void *src, size_t n, float *lo,
                                     float *hi) {
    vfloat x = load_some(dtype, src, n);
    vfloat least = v_min(x, load_some(MESA_F32, lo, n));
    vfloat most = v_max(x, load_some(MESA_F32, hi, n));
    store_some(MESA_F32, lo, v_add(least, v_set(0)), n);
    store_some(MESA_F32, hi, v_add(most, v_set(0)), n);
    return v_sub(x, x);
}

MESA_ALWAYS_INLINE bool range_columns(enum mesa_dtype dtype, const void *src, size_t rows, size_t n,
                                      float *lo, float *hi) {
    vfloat doubt = v_set(0);
    for (size_t row = 0; row < rows; row++) {
        const void *from = element_at(dtype, src, row * n);
        size_t i = 0;
        for (; i + LANES <= n; i += LANES)
            doubt =
                v_or(doubt, range_some(dtype, element_at(dtype, from, i), LANES, lo + i, hi + i));
        if (i < n)
            doubt =
                v_or(doubt, range_some(dtype, element_at(dtype, from, i), n - i, lo + i, hi + i));
    }
    return m_all(finite_lanes(doubt));
}

MESA_ALWAYS_INLINE vint words_load(const uint32_t *words, size_t n) {
    return i_bits(load_some(MESA_F32, words, n));
}

MESA_ALWAYS_INLINE vfloat scales_of(vint words) {
    return v_bits(i_and(words, i_set(0xffff0000)));
}

MESA_ALWAYS_INLINE vint zero_points_in(vint words) {
    return i_down_signed(i_up(words, 16), 16);
}

MESA_ALWAYS_INLINE void quantize_some_columns(enum mesa_dtype dtype, const void *src, size_t n,
                                              const uint32_t *words, unsigned bits,
                                              bool strict_sign, struct mesa_code_bytes to,
                                              size_t at) {
    vint group = words_load(words, n);
    struct coder coder =
        clipping_coder(v_div(v_set(1), scales_of(group)), zero_points_in(group), bits, strict_sign);
    vint codes = codes_of(coder, load_some(dtype, src, n), 0);
    some_codes_store(to, choose_words(i_is_zero(group), i_set(0), codes), bits, at, n);
}

MESA_ALWAYS_INLINE void quantize_columns(enum mesa_dtype dtype, const void *src, size_t rows,
                                         size_t n, const uint32_t *words, unsigned bits,
                                         bool strict_sign, struct mesa_code_bytes ret_codes) {
    for (size_t row = 0; row < rows; row++) {
        const void *from = element_at(dtype, src, row * n);
        struct mesa_code_bytes to = codes_from(ret_codes, bits, row * n);
        size_t i = 0;
        for (; i + LANES <= n; i += LANES)
            quantize_some_columns(dtype, element_at(dtype, from, i), LANES, words + i, bits,
                                  strict_sign, to, i);
        if (i < n)
            quantize_some_columns(dtype, element_at(dtype, from, i), n - i, words + i, bits,
                                  strict_sign, to, i);
    }
}

MESA_ALWAYS_INLINE void dequantize_some(enum mesa_dtype dtype, vint codes, size_t n,
                                        const uint32_t *words, char *dst) {
    vint group = words_load(words, n);
    store_some(dtype, dst, values_of(codes, zero_points_in(group), scales_of(group)), n);
}

MESA_ALWAYS_INLINE void dequantize_columns(enum mesa_dtype dtype, struct mesa_code_bytes codes,
                                           unsigned bits, size_t rows, size_t n,
                                           const uint32_t *words, void *ret_dst) {
    for (size_t row = 0; row < rows; row++) {
        struct mesa_code_bytes from = codes_from(codes, bits, row * n);
        char *to = (char *)ret_dst + row * n * element_bytes(dtype);
        size_t i = 0;
        for (; i + LANES <= n; i += LANES)
            dequantize_some(dtype, some_codes_load(from, bits, i, LANES), LANES, words + i,
                            to + i * element_bytes(dtype));
        if (i < n)
            dequantize_some(dtype, some_codes_load(from, bits, i, n - i), n - i, words + i,
                            to + i * element_bytes(dtype));
    }
}

/* ---- codes of less than a byte --------------------------------------------------------------- */

static void pack_bits(const uint8_t *codes, size_t n, unsigned bits, uint8_t *ret_packed) {
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        store_packed(ret_packed + i * bits / 8, block_load(codes + i, BLOCK), BLOCK, bits, false);
    if (i < n)
        store_packed(ret_packed + i * bits / 8, block_load(codes + i, n - i), n - i, bits, false);
}

static void unpack_bits(const uint8_t *packed, size_t n, unsigned bits, uint8_t *ret_codes) {
    const size_t packed_bytes = mesa_code_row_bytes(n, bits);
    size_t i = 0;
    for (; i < n; i += BLOCK) {
        size_t offset = i * bits / 8, count = n - i < BLOCK ? n - i : BLOCK;
        vcodes codes = load_packed(packed + offset, count, bits, packed_bytes - offset);
        block_store(ret_codes + i, codes, count);
    }
}

AFFINE_HALVES_AND_FLOATS(DEFINE_AFFINE_ENTRIES)

#endif
