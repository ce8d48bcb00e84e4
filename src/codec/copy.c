/* The elements as they are, made dense. It saves nothing by itself but lets go of a storage of which
 * the tensor is a small part.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/walk.h"

#include <string.h>

static size_t copy_bound_bytes(const struct mesa_plan *plan) {
    return plan->elements * mesa_dtype_bytes(plan->dtype);
}

struct copy {
    const struct mesa_source *source; /* NULL: dense bytes at `from` */
    const char *from;
    char *to;
    size_t element_bytes;
};

static void copy_elements(void *context, size_t begin, size_t end) {
    const struct copy *copy = context;
    char *to = copy->to + begin * copy->element_bytes;
    if (copy->source != NULL)
        mesa_source_gather(copy->source, begin, end, to);
    else
        memcpy(to, copy->from + begin * copy->element_bytes, (end - begin) * copy->element_bytes);
}

static enum mesa_status copy_encode(struct mesa_plan *plan, const struct mesa_source *source,
                                    mesa_parallel_for *parallel, void *held, size_t *ret_bytes) {
    struct copy copy = {source, NULL, held, mesa_dtype_bytes(plan->dtype)};
    mesa_walk_result(plan->elements, copy.element_bytes, parallel, copy_elements, &copy);
    *ret_bytes = copy_bound_bytes(plan);
    return MESA_OK;
}

static void copy_decode(const struct mesa_plan *plan, const void *held, mesa_parallel_for *parallel,
                        void *ret_elements) {
    struct copy copy = {NULL, held, ret_elements, mesa_dtype_bytes(plan->dtype)};
    mesa_walk_result(plan->elements, copy.element_bytes, parallel, copy_elements, &copy);
}

const struct mesa_codec mesa_codec_copy = {
    .name = "copy",
    .exact = true,
    .bound_bytes = copy_bound_bytes,
    .encode = copy_encode,
    .decode = copy_decode,
};
