/* Edit distance: insertions, deletions, replacements and swaps of neighbours, each one step, and case
 * does not count (the restricted Damerau-Levenshtein distance, by dynamic programming over rows).
 *
 * SPDX-License-Identifier: MIT */
#include "policy/nearest.h"

#include "policy/policy.h"

#include <string.h>

#define MOST_LETTERS 64

static unsigned char fold(char c) {
    return (unsigned char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length) {
    size_t rows[3][MOST_LETTERS + 1];
    size_t *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= b_length; j++)
        last[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t replace = last[j - 1] + (fold(a[i - 1]) != fold(b[j - 1]));
            row[j] = smaller(replace, smaller(last[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) &&
                fold(a[i - 2]) == fold(b[j - 1]))
                row[j] = smaller(row[j], before[j - 2] + 1);
        }
        size_t *free_row = before;
        before = last;
        last = row;
        row = free_row;
    }
    return last[b_length];
}

void mesa_nearest_begin(struct mesa_nearest *nearest, const char *word, size_t length) {
    /* a third of the letters may be wrong; of two or three, one */
    size_t near = length < 2 ? 0 : length / 3 + (length == 2);
    *nearest = (struct mesa_nearest){.word = word, .length = length, .distance = near + 1};
}

void mesa_nearest_try(struct mesa_nearest *nearest, const char *candidate) {
    size_t length = strlen(candidate);
    if (nearest->length > MOST_LETTERS || length > MOST_LETTERS)
        return;
    size_t apart = length > nearest->length ? length - nearest->length : nearest->length - length;
    if (apart >= nearest->distance) /* every letter too many is a step */
        return;
    size_t distance = edit_distance(nearest->word, nearest->length, candidate, length);
    if (distance < nearest->distance) {
        nearest->best = candidate;
        nearest->distance = distance;
    }
}

const char *mesa_policy_nearest(const char *word, size_t length, const char *const *words) {
    struct mesa_nearest nearest;
    mesa_nearest_begin(&nearest, word, length);
    for (; *words != NULL; words++)
        mesa_nearest_try(&nearest, *words);
    return nearest.best;
}
