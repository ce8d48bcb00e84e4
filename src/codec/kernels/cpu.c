/* What this processor can do: which kernels may run, the floating point environment they need, and
 * how large its caches are. Nothing here runs before it is called: libmesa is loaded into every
 * program that its user starts.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/fill.h"
#include "codec/kernels/kernels.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif !defined(__aarch64__)
#include <fenv.h>
#endif

struct mesa_kernels mesa_kernels;

static const char *const isa_names[MESA_ISA_COUNT] = {
    [MESA_ISA_SCALAR] = "scalar",
    [MESA_ISA_AVX2] = "avx2",
    [MESA_ISA_AVX512] = "avx512",
    [MESA_ISA_NEON] = "neon",
};

const char *mesa_isa_name(enum mesa_isa isa) {
    return isa_names[isa];
}

enum mesa_isa mesa_isa_find(const char *name) {
    int isa = 0;
    while (isa < MESA_ISA_COUNT && strcmp(name, isa_names[isa]) != 0)
        isa++;
    return (enum mesa_isa)isa;
}

/* What the compiler was allowed to use for an ISA's files in meson.build, and that the system saves
 * these registers: __builtin_cpu_supports() looks at that too. */
bool mesa_isa_supported(enum mesa_isa isa) {
#if defined(__x86_64__)
    unsigned a, b, c, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
    bool avx2 = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
    if (isa == MESA_ISA_AVX2)
        return avx2;
    if (isa == MESA_ISA_AVX512)
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
#elif defined(__aarch64__)
    if (isa == MESA_ISA_NEON) /* part of the architecture */
        return true;
#endif
    return isa == MESA_ISA_SCALAR;
}

enum mesa_isa mesa_isa_best(void) {
    enum mesa_isa best = MESA_ISA_SCALAR;
    for (int isa = 0; isa < MESA_ISA_COUNT; isa++)
        if (mesa_isa_supported((enum mesa_isa)isa))
            best = (enum mesa_isa)isa;
    return best;
}

void mesa_kernels_fill(struct mesa_kernels *ret_table, enum mesa_isa isa) {
    *ret_table = (struct mesa_kernels){.name = isa_names[isa]};
    mesa_kernels_fill_affine_scalar(ret_table);
    mesa_kernels_fill_exponent_scalar(ret_table);
    mesa_kernels_fill_mask_scalar(ret_table);
    mesa_kernels_fill_number_scalar(ret_table);
#if defined(__x86_64__)
    if (isa == MESA_ISA_AVX2 || isa == MESA_ISA_AVX512) {
        mesa_kernels_fill_affine_avx2(ret_table);
        mesa_kernels_fill_exponent_avx2(ret_table);
        mesa_kernels_fill_mask_avx2(ret_table);
        mesa_kernels_fill_number_avx2(ret_table);
    }
    if (isa == MESA_ISA_AVX512) {
        mesa_kernels_fill_affine_avx512(ret_table);
        mesa_kernels_fill_exponent_avx512(ret_table);
        mesa_kernels_fill_mask_avx512(ret_table);
        mesa_kernels_fill_number_avx512(ret_table);
    }
#elif defined(__aarch64__)
    if (isa == MESA_ISA_NEON) {
        mesa_kernels_fill_affine_neon(ret_table);
        mesa_kernels_fill_mask_neon(ret_table);
        mesa_kernels_fill_number_neon(ret_table);
    }
#endif
}

void mesa_kernels_init(enum mesa_isa isa) {
    mesa_kernels_fill(&mesa_kernels, isa);
}

/* ---- floating point environment -------------------------------------------------------------- */

#if defined(__x86_64__)

/* All exceptions masked, round to nearest, no FTZ, no DAZ: the state in which a process starts. */
#define MXCSR_DEFAULT 0x1f80u

mesa_float_state mesa_float_state_enter(void) {
    unsigned before = _mm_getcsr();
    _mm_setcsr(MXCSR_DEFAULT);
    return before;
}

void mesa_float_state_leave(mesa_float_state state) {
    _mm_setcsr((unsigned)state);
}

#elif defined(__aarch64__)

/* FPCR holds modes and FPSR flags; both have 32 bits in use. */
mesa_float_state mesa_float_state_enter(void) {
    uint64_t control, status;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    __asm__ volatile("mrs %0, fpsr" : "=r"(status));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0) : "memory");
    return status << 32 | (control & UINT32_MAX);
}

void mesa_float_state_leave(mesa_float_state state) {
    __asm__ volatile("msr fpcr, %0" : : "r"(state & UINT32_MAX) : "memory");
    __asm__ volatile("msr fpsr, %0" : : "r"(state >> 32) : "memory");
}

#else

mesa_float_state mesa_float_state_enter(void) {
    int before = fegetround();
    fesetround(FE_TONEAREST);
    return (mesa_float_state)before;
}

void mesa_float_state_leave(mesa_float_state state) {
    fesetround((int)state);
}

#endif

/* ---- caches ---------------------------------------------------------------------------------- */

/* Half of the last-level cache: the other half is for what the program reads meanwhile. Asked once,
 * as under a hypervisor the question costs tens of microseconds; two threads that ask at the same
 * time find the same answer. */
size_t mesa_cache_bytes(void) {
    static atomic_size_t known;
    size_t bytes = atomic_load_explicit(&known, memory_order_relaxed);
    if (bytes != 0)
        return bytes;

    long found = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    found = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (found <= 0)
        found = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    bytes = found > 0 ? (size_t)found / 2 : (size_t)8 << 20;
    atomic_store_explicit(&known, bytes, memory_order_relaxed);
    return bytes;
}
