/* What this processor can do: which kernels may run, the floating point environment they need, and
 * how large its caches are. Nothing here runs before it is called: libmesa is loaded into every
 * program that its user starts.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/kernels/kernels.h"
#include "codec/kernels/scalar.h"

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

bool mesa_isa_supported(enum mesa_isa isa) {
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
    mesa_kernels_fill_scalar_affine(ret_table);
    mesa_kernels_fill_scalar_mask(ret_table);
    mesa_kernels_fill_scalar_number(ret_table);
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
