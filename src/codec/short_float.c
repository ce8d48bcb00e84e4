/* float32 rounded to a shorter float: bfloat16 keeps the range, float16 more digits. A tensor with a
 * finite element that float16 cannot hold is declined. Other dtypes are declined: the short floats
 * gain nothing, and a float64 is there because its digits matter.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/walk.h"

static size_t short_bound_bytes(const struct mesa_plan *plan) {
    return plan->dtype == MESA_F32 ? plan->elements * sizeof(uint16_t) : 0;
}

struct shortening {
    bool to_bfloat16;
    bool stream;
    uint16_t *shorts;     /* encode */
    const uint16_t *held; /* decode */
    float *elements;      /* decode */
};

static bool short_window(void *context, const void *elements, size_t first, size_t n) {
    const struct shortening *job = context;
    if (!job->to_bfloat16)
        return mesa_kernels.float_to_f16(elements, n, job->shorts + first);
    mesa_kernels.float_to_bf16(elements, n, job->shorts + first);
    return true;
}

static enum mesa_status short_encode(struct mesa_plan *plan, const struct mesa_source *source,
                                     mesa_parallel_for *parallel, void *held, size_t *ret_bytes) {
    struct shortening job = {.to_bfloat16 = plan->codec == &mesa_codec_bfloat16, .shorts = held};
    if (!mesa_walk_source(source, parallel, short_window, &job))
        return MESA_DECLINED;
    *ret_bytes = short_bound_bytes(plan);
    return MESA_OK;
}

static void widen_elements(void *context, size_t begin, size_t end) {
    const struct shortening *job = context;
    if (job->to_bfloat16)
        mesa_kernels.bf16_to_float(job->held + begin, end - begin, job->stream,
                                   job->elements + begin);
    else
        mesa_kernels.f16_to_float(job->held + begin, end - begin, job->stream,
                                  job->elements + begin);
}

static void short_decode(const struct mesa_plan *plan, const void *held,
                         mesa_parallel_for *parallel, void *ret_elements) {
    struct shortening job = {
        .to_bfloat16 = plan->codec == &mesa_codec_bfloat16,
        .stream = plan->elements * sizeof(float) > mesa_cache_bytes(),
        .held = held,
        .elements = ret_elements,
    };
    mesa_walk_result(plan->elements, sizeof(float), parallel, widen_elements, &job);
}

const struct mesa_codec mesa_codec_bfloat16 = {
    .name = "bfloat16",
    .exact = false,
    .bound_bytes = short_bound_bytes,
    .encode = short_encode,
    .decode = short_decode,
};

const struct mesa_codec mesa_codec_float16 = {
    .name = "float16",
    .exact = false,
    .bound_bytes = short_bound_bytes,
    .encode = short_encode,
    .decode = short_decode,
};
