/* The sign of a real: 2 bits an element (zero, positive, negative, NaN). Decodes to 0, 1, -1, NaN:
 * exact for an op whose backward asks for sgn(x) only, such as abs.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/walk.h"

#define CODES_IN_BYTE 4

static size_t sign_bound_bytes(const struct mesa_plan *plan) {
    return mesa_dtype_is_real(plan->dtype) ? mesa_divide_up(plan->elements, CODES_IN_BYTE) : 0;
}

struct sign {
    enum mesa_dtype dtype;
    uint8_t *codes;      /* encode */
    const uint8_t *held; /* decode */
    char *elements;      /* decode */
};

static bool sign_pack_window(void *context, const void *elements, size_t first, size_t n) {
    const struct sign *sign = context;
    mesa_kernels.sign_pack[sign->dtype](elements, n, sign->codes + first / CODES_IN_BYTE);
    return true;
}

static enum mesa_status sign_encode(struct mesa_plan *plan, const struct mesa_source *source,
                                    mesa_parallel_for *parallel, void *held, size_t *ret_bytes) {
    struct sign sign = {.dtype = plan->dtype, .codes = held};
    mesa_walk_source(source, parallel, sign_pack_window, &sign);
    *ret_bytes = sign_bound_bytes(plan);
    return MESA_OK;
}

static void sign_unpack_elements(void *context, size_t begin, size_t end) {
    const struct sign *sign = context;
    mesa_kernels.sign_unpack[sign->dtype](sign->held + begin / CODES_IN_BYTE, end - begin,
                                          sign->elements + begin * mesa_dtype_bytes(sign->dtype));
}

static void sign_decode(const struct mesa_plan *plan, const void *held, mesa_parallel_for *parallel,
                        void *ret_elements) {
    struct sign sign = {.dtype = plan->dtype, .held = held, .elements = ret_elements};
    mesa_walk_result(plan->elements, mesa_dtype_bytes(plan->dtype), parallel, sign_unpack_elements,
                     &sign);
}

const struct mesa_codec mesa_codec_sign = {
    .name = "sign",
    .exact = false,
    .bound_bytes = sign_bound_bytes,
    .encode = sign_encode,
    .decode = sign_decode,
};
