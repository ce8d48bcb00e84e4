/* What the two ways of grouping affine codes share. Private to affine.c and affine_cycle.c.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CODEC_AFFINE_H
#define MESA_CODEC_AFFINE_H

#include "codec/walk.h"

/* Marks as raw those of n group words whose codes reach further than plan->widest. Returns how many
 * were marked. */
size_t mesa_affine_mark_wide(const struct mesa_plan *plan, uint32_t *words, size_t n);

/* MESA_GROUP_CYCLE: as the functions of struct mesa_codec, for plans with that grouping. */
size_t mesa_affine_cycle_bound_bytes(const struct mesa_plan *plan);
enum mesa_status mesa_affine_cycle_encode(struct mesa_plan *plan, const struct mesa_source *source,
                                          mesa_parallel_for *parallel, void *held,
                                          size_t *ret_bytes);
void mesa_affine_cycle_decode(const struct mesa_plan *plan, const void *held,
                              mesa_parallel_for *parallel, void *ret_elements);

#endif
