/* Names and sizes of element types: one row for each, in the order of the enum.
 *
 * SPDX-License-Identifier: MIT */
#include "dtype.h"

#include <string.h>

static const struct {
    const char *name, *short_name;
    size_t bytes;
} dtypes[MESA_DTYPE_COUNT] = {
    [MESA_F32] = {"float32", "fp32", 4},      [MESA_BF16] = {"bfloat16", "bf16", 2},
    [MESA_F16] = {"float16", "fp16", 2},      [MESA_F64] = {"float64", "fp64", 8},
    [MESA_BOOL] = {"bool", NULL, 1},          [MESA_U8] = {"uint8", NULL, 1},
    [MESA_I8] = {"int8", NULL, 1},            [MESA_I16] = {"int16", NULL, 2},
    [MESA_I32] = {"int32", NULL, 4},          [MESA_I64] = {"int64", NULL, 8},
    [MESA_C64] = {"complex64", NULL, 8},      [MESA_C128] = {"complex128", NULL, 16},
    [MESA_DTYPE_OTHER] = {"other", NULL, 0},
};

size_t mesa_dtype_bytes(enum mesa_dtype dtype) {
    return dtypes[dtype].bytes;
}

const char *mesa_dtype_name(enum mesa_dtype dtype) {
    return dtypes[dtype].name;
}

enum mesa_dtype mesa_dtype_find(const char *name) {
    for (int i = 0; i < MESA_DTYPE_OTHER; i++) {
        const char *alias = dtypes[i].short_name;
        if (strcmp(name, dtypes[i].name) == 0 || (alias != NULL && strcmp(name, alias) == 0))
            return (enum mesa_dtype)i;
    }
    return MESA_DTYPE_COUNT;
}

bool mesa_dtype_is_real(enum mesa_dtype dtype) {
    return dtype <= MESA_F64;
}

bool mesa_dtype_is_signed_integer(enum mesa_dtype dtype) {
    return dtype >= MESA_I8 && dtype <= MESA_I64;
}
