/* Element types of tensors, in our own numbering: libtorch's numbers are translated at the border
 * (src/torch) so that no other module depends on them.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_DTYPE_H
#define MESA_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

enum mesa_dtype {
    MESA_F32,
    MESA_BF16,
    MESA_F16,
    MESA_F64,
    MESA_BOOL,
    MESA_U8,
    MESA_I8,
    MESA_I16,
    MESA_I32,
    MESA_I64,
    MESA_C64,
    MESA_C128,
    MESA_DTYPE_OTHER, /* fp8, quantized, bits, ...: always kept */
    MESA_DTYPE_COUNT,
};

/* Bytes of one element; 0 for MESA_DTYPE_OTHER. */
size_t mesa_dtype_bytes(enum mesa_dtype dtype);

/* As PyTorch prints it without "torch.": "float32", "bfloat16", "int64", ... */
const char *mesa_dtype_name(enum mesa_dtype dtype);

/* The inverse; also takes the short names fp32, bf16, fp16, fp64. MESA_DTYPE_COUNT if unknown. */
enum mesa_dtype mesa_dtype_find(const char *name);

/* f32, bf16, f16 or f64. */
bool mesa_dtype_is_real(enum mesa_dtype dtype);

/* int8 .. int64 (not bool, not uint8: torch types opaque bytes as uint8). */
bool mesa_dtype_is_signed_integer(enum mesa_dtype dtype);

#endif
