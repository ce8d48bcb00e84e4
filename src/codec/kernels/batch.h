/* Rows of groups cut into batches for vector code: some groups whose elements stay in the first
 * cache together, so that ranging, finding the words (one lane a group) and coding read memory
 * once.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_BATCH_H
#define MESA_CODEC_KERNELS_BATCH_H

#include "codec/kernels/affine.h"
#include "codec/kernels/kernels.h"

#define BATCH_GROUPS 16
/* Small enough that a batch stays in the first cache with room for what is fetched ahead, and large
 * enough that groups of 192 floats fill it: a batch with few of them finds their words as slowly as one
 * with all. */
#define BATCH_BYTES 12288

/* Walks over the groups of rows in the order of their words. The borders are mesa_group_begin()'s,
 * without its division: units * j / groups grows by quotient, and by one more whenever the
 * remainders have added up to another whole. */
struct group_cursor {
    const struct mesa_affine_rows *rows; /* borrowed */
    size_t quotient, remainder;          /* of units of a row by groups */
    size_t row, group;                   /* of the next group */
    size_t begin;                        /* its first element within its row */
    size_t carry;                        /* remainders so far, below groups */
};

struct group {
    size_t row, begin, n; /* n elements from element `begin` of row `row` */
};

MESA_ALWAYS_INLINE struct group_cursor group_cursor_begin(const struct mesa_affine_rows *rows) {
    size_t units = rows->row / MESA_GROUP_UNIT;
    return (struct group_cursor){
        .rows = rows,
        .quotient = units / rows->groups,
        .remainder = units % rows->groups,
    };
}

static inline bool group_cursor_next(struct group_cursor *cursor, struct group *ret_group) {
    const struct mesa_affine_rows *rows = cursor->rows;
    if (cursor->row == rows->rows)
        return false;
    size_t row = cursor->row, begin = cursor->begin, end;
    if (++cursor->group == rows->groups) {
        end = rows->row;
        cursor->group = cursor->begin = cursor->carry = 0;
        cursor->row++;
    } else {
        cursor->carry += cursor->remainder;
        size_t whole = cursor->carry >= rows->groups;
        cursor->carry -= whole * rows->groups;
        end = cursor->begin = begin + (cursor->quotient + whole) * MESA_GROUP_UNIT;
    }
    *ret_group = (struct group){row, begin, end - begin};
    return true;
}

MESA_ALWAYS_INLINE const char *group_source(const struct mesa_affine_rows *rows, struct group group,
                                            const void *src, size_t element_bytes) {
    ptrdiff_t element = (ptrdiff_t)group.row * rows->row_stride + (ptrdiff_t)group.begin;
    return (const char *)src + element * (ptrdiff_t)element_bytes;
}

MESA_ALWAYS_INLINE size_t group_code_offset(const struct mesa_affine_rows *rows,
                                            struct group group) {
    return group.row * mesa_code_row_bytes(rows->row, rows->bits) + group.begin * rows->bits / 8;
}

/* The first element's place in dense order, for stochastic rounding. */
MESA_ALWAYS_INLINE uint64_t group_first_element(const struct mesa_affine_rows *rows,
                                                struct group group) {
    return rows->first_element + group.row * rows->row + group.begin;
}

/* Takes the next groups as long as they fit a batch: at least one, 0 at the end. */
static inline size_t group_cursor_take(struct group_cursor *cursor, size_t element_bytes,
                                       struct group ret_groups[BATCH_GROUPS]) {
    size_t count = 0, bytes = 0;
    while (count < BATCH_GROUPS && bytes < BATCH_BYTES &&
           group_cursor_next(cursor, &ret_groups[count])) {
        bytes += ret_groups[count].n * element_bytes;
        count++;
    }
    return count;
}

/* Holds a group in a way that needs no codes, if that is so: one element for all where they have the
 * same bits (`one_value`: as far as the range tells), nothing for zeros and for raw groups. Returns
 * the final word; if it is an ordinary one, codes are still to be made. */
static inline uint32_t group_hold_special(const char *src, size_t n, size_t element_bytes,
                                          unsigned bits, bool one_value, uint32_t word,
                                          uint8_t *ret_codes) {
    size_t code_bytes = mesa_code_row_bytes(n, bits);
    bool constant = word != 0 && one_value && code_bytes >= element_bytes &&
                    memcmp(src, src + element_bytes, (n - 1) * element_bytes) == 0;
    if (constant || word == 0 || word == MESA_GROUP_RAW)
        memset(ret_codes, 0, code_bytes);
    if (constant)
        memcpy(ret_codes, src, element_bytes);
    return constant ? MESA_GROUP_CONSTANT : word;
}

/* Writes a group that is held as a mark. */
static inline void group_restore_mark(uint32_t word, const uint8_t *codes, size_t n,
                                      size_t element_bytes, const uint8_t *raw,
                                      size_t raw_group_bytes, void *ret_dst) {
    if (word == MESA_GROUP_CONSTANT) {
        for (size_t i = 0; i < n; i++)
            memcpy((char *)ret_dst + i * element_bytes, codes, element_bytes);
        return;
    }
    size_t index =
        codes[0] | (size_t)codes[1] << 8 | (size_t)codes[2] << 16 | (size_t)codes[3] << 24;
    memcpy(ret_dst, raw + index * raw_group_bytes, n * element_bytes);
}

#endif
