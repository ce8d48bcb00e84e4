#!/bin/sh
# Builds the kernels and kernelcheck for aarch64 and runs them under qemu: the NEON kernels against the
# scalar ones on a machine without NEON. Skipped (77) where a cross compiler or qemu is missing.
#
#   neon_qemu.sh SOURCE_ROOT WORK_DIRECTORY
#
# SPDX-License-Identifier: MIT
set -eu
root=$1 work=$2
compiler=${CROSS_CC:-aarch64-linux-gnu-gcc}
for tool in "$compiler" qemu-aarch64; do
    if ! command -v "$tool" >/dev/null 2>&1; then
        echo "skipped: no $tool"
        exit 77
    fi
done
mkdir -p "$work"
cd "$root"
"$compiler" -std=c17 -D_GNU_SOURCE -O2 -g -static -fvisibility=hidden -ffp-contract=off \
    -Wall -Wextra -Wshadow -Wconversion -Wundef -Wvla -Werror -Isrc -Iinclude \
    src/dtype.c src/codec/kernels/affine_word.c src/codec/kernels/cpu.c \
    src/codec/kernels/*_scalar.c src/codec/kernels/*_neon.c \
    tests/unit/kernels/kernelcheck.c tests/unit/kernels/kernelbench.c \
    -o "$work/kernelcheck" -lm
qemu-aarch64 "$work/kernelcheck" neon --rounds 400
qemu-aarch64 "$work/kernelcheck" scalar --rounds 50
