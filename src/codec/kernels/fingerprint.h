/* A 64-bit fingerprint of bytes. Eight lanes of 64 bits take a word of each block; a lane's step
 * (xor, multiply by an odd number, rotate) is a bijection of both its state and its word, so blocks
 * that differ in one word never meet in that lane, and others meet by chance only. Lanes do not
 * depend on each other: that is what vector units and out-of-order processors want.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_KERNELS_FINGERPRINT_H
#define MESA_CODEC_KERNELS_FINGERPRINT_H

#include "codec/kernels/element.h"

#define FINGERPRINT_LANES    8
#define FINGERPRINT_BLOCK    (FINGERPRINT_LANES * sizeof(uint64_t))
#define FINGERPRINT_MULTIPLY 0x9fb21c651e98df25u
#define FINGERPRINT_ROTATE   29

struct fingerprint {
    uint64_t lanes[FINGERPRINT_LANES];
};

MESA_ALWAYS_INLINE uint64_t fingerprint_step(uint64_t lane, uint64_t word) {
    uint64_t product = (lane ^ word) * FINGERPRINT_MULTIPLY;
    return product << FINGERPRINT_ROTATE | product >> (64 - FINGERPRINT_ROTATE);
}

MESA_ALWAYS_INLINE struct fingerprint fingerprint_begin(void) {
    struct fingerprint state;
    for (unsigned i = 0; i < FINGERPRINT_LANES; i++)
        state.lanes[i] = (i + 1) * 0x9e3779b97f4a7c15u;
    return state;
}

MESA_ALWAYS_INLINE void fingerprint_add(struct fingerprint *state, const unsigned char *block) {
    for (unsigned i = 0; i < FINGERPRINT_LANES; i++) {
        uint64_t word;
        memcpy(&word, block + i * sizeof word, sizeof word);
        state->lanes[i] = fingerprint_step(state->lanes[i], word);
    }
}

/* Adds the rest (less than a block) as a block padded with zeros, then all lanes and the length. */
MESA_ALWAYS_INLINE uint64_t fingerprint_end(struct fingerprint *state, const unsigned char *rest,
                                            size_t rest_bytes, size_t all_bytes) {
    unsigned char block[FINGERPRINT_BLOCK] = {0};
    if (rest_bytes > 0) {
        memcpy(block, rest, rest_bytes);
        fingerprint_add(state, block);
    }
    uint64_t sum = all_bytes;
    for (unsigned i = 0; i < FINGERPRINT_LANES; i++) {
        sum = fingerprint_step(sum, state->lanes[i]);
        sum ^= sum >> 32;
    }
    sum *= FINGERPRINT_MULTIPLY;
    return sum ^ sum >> 32;
}

#endif
