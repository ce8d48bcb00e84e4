/* How the elements of a saved tensor lie in memory, and where heads, rows and channels are in them.
 * Pure functions over sizes and strides; must not know torch.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CLASSIFY_LAYOUT_H
#define MESA_CLASSIFY_LAYOUT_H

#include "codec/codec.h"

/* A tensor's geometry as the program sees it. */
struct mesa_view {
    const void *data; /* address of the first element (storage offset included) */
    enum mesa_dtype dtype;
    int ndim;
    int64_t sizes[MESA_MAX_DIMS], strides[MESA_MAX_DIMS]; /* elements */
    size_t elements;                                      /* product of sizes; may be 0 */
};

/* Turns a view into the set of its distinct elements in memory order: dims of size 1 and of stride 0
 * dropped, the rest sorted by falling stride, neighbours that run on collapsed. Two views of the same
 * elements give the same source, whatever their shapes. A view whose dims overlap (sliding windows)
 * gives the dense span from its first to its last element when that span is no longer than
 * `elements`, else MESA_DECLINED. An empty view is declined. A 0-dim or all-broadcast view gives one
 * element. */
enum mesa_status mesa_layout_source(const struct mesa_view *view, struct mesa_source *ret_source);

/* Strides of `view` over the dense buffer that decode() writes for `source`: the view's own strides
 * where the source is dense or a span, else the compact ones in the same order of dims; 0 stays 0. */
void mesa_layout_restored_strides(const struct mesa_view *view, const struct mesa_source *source,
                                  int64_t ret_strides[MESA_MAX_DIMS]);

/* 64-bit key of (address, dtype, sizes, strides) of a source: equal for the same set of elements.
 * Compare with mesa_source_equal before trusting it. */
uint64_t mesa_source_key(const struct mesa_source *source);
bool mesa_source_equal(const struct mesa_source *a, const struct mesa_source *b);

/* What an op's argument looks like in terms of heads, from the op table. */
enum mesa_head_layout {
    MESA_HEADS_NONE,
    MESA_HEADS_BHND,   /* (B,H,N,D) in any memory order: query, key, value, output of attention */
    MESA_HEADS_FOLDED, /* (B*H,N,D) operands of bmm: H from a hint or unknown (each B*H its own) */
    MESA_HEADS_MAP,    /* (B,H,N,M) or (B*H,N,M): attention maps */
    MESA_HEADS_LINEAR, /* (...,H*D): linear's input or output; H from a hint */
    MESA_HEADS_CHANNELS, /* (N,C,...) whose channels keep apart as heads do: batch norm's input */
};

/* Head count and size that a neighbouring attention op showed in this thread; 0 = not known. */
struct mesa_head_hint {
    int64_t batch, heads, head_size;
};

struct mesa_heads {
    enum mesa_head_layout layout; /* NONE if heads were not found */
    int64_t heads;                /* H */
    int64_t head_size;            /* contiguous-by-meaning elements of a head in a row: D, or M */
};

/* Finds heads in `view` for an argument of layout `expected`. */
struct mesa_heads mesa_layout_heads(const struct mesa_view *view, enum mesa_head_layout expected,
                                    const struct mesa_head_hint *hint);

/* What a policy asks for. */
enum mesa_group_by { MESA_BY_BLOCK, MESA_BY_ROW, MESA_BY_HEAD, MESA_BY_CHANNEL, MESA_BY_TENSOR };

/* Fills the grouping fields of `plan` (grouping, row, group, run, cycle, period) for elements in the
 * dense order of `source`. Rows are the innermost dim in memory that has a meaning of its own (the
 * last dim by stride); heads (or channels that keep apart) never share a group: blocks end where a
 * head does, and where its runs are shorter than half of `group`, a group gathers several. Where the
 * geometry does not allow what was asked (head without heads, channel of a vector) it falls back to
 * blocks of `group`. `channel_dim` is the dim of `view` that holds channels (1 for convolutions and
 * batch norm, the last one for linear layers).
 * Rows shorter than MESA_GROUP_UNIT are merged with their outer dims until they are not. */
void mesa_layout_group(const struct mesa_view *view, const struct mesa_source *source,
                       const struct mesa_heads *heads, enum mesa_group_by by, size_t group,
                       int channel_dim, struct mesa_plan *plan);

/* "(B,H,N,D) strides ..., 3 runs of 64": one line for explain; at most `size` bytes with the NUL. */
void mesa_layout_describe(const struct mesa_view *view, const struct mesa_source *source,
                          const struct mesa_heads *heads, const struct mesa_plan *plan, char *ret,
                          size_t size);

#endif
