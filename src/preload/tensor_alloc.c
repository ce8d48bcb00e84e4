/* c10::alloc_cpu and c10::free_cpu, below torch's own CPU allocator (so that its profiler still counts):
 * while libmesa is at work, large tensors come from the vault's mappings. All else goes on to the
 * originals.
 *
 * SPDX-License-Identifier: MIT */
#include "preload/tensor_alloc.h"

#include "preload/export.h"
#include "vault/tensor_memory.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* What c10 aligns to (c10::gAlignment). */
#define ALIGNMENT 64

static atomic_bool on;

typedef void *alloc_cpu(size_t bytes);
typedef void free_cpu(void *at);

/* Where there is no original under that name (a libtorch in one piece), what it does in essence. */
static void *alloc_plainly(size_t bytes) {
    void *at;
    return bytes != 0 && posix_memalign(&at, ALIGNMENT, bytes) == 0 ? at : NULL;
}

static alloc_cpu *_Atomic original_alloc;
static free_cpu *_Atomic original_free;

/* The same for whoever comes first. No pthread_once: the constructor of a library that is being loaded
 * may allocate, and holds the linker's lock that another first caller waits for. Never RTLD_DEFAULT:
 * libtorch is loaded RTLD_LOCAL, and our own definition would be found. */
static void bind(void) {
    alloc_cpu *alloc = NULL;
    free_cpu *release = NULL;
    void *library = dlopen("libc10.so", RTLD_NOLOAD | RTLD_LAZY);
    if (library != NULL) {
        *(void **)&alloc = dlsym(library, "_ZN3c109alloc_cpuEm");
        *(void **)&release = dlsym(library, "_ZN3c108free_cpuEPv");
    }
    if (alloc == NULL || release == NULL) {
        alloc = alloc_plainly;
        release = free;
    }
    atomic_store_explicit(&original_free, release, memory_order_release);
    atomic_store_explicit(&original_alloc, alloc, memory_order_release);
}

EXPORT void *mesa_alloc_cpu(size_t bytes) __asm__("_ZN3c109alloc_cpuEm");
void *mesa_alloc_cpu(size_t bytes) {
    if (bytes >= MESA_TENSOR_MEMORY_LEAST_BYTES &&
        atomic_load_explicit(&on, memory_order_relaxed)) {
        void *at = mesa_tensor_memory_alloc(bytes);
        if (at != NULL)
            return at;
    }
    alloc_cpu *alloc = atomic_load_explicit(&original_alloc, memory_order_acquire);
    if (__builtin_expect(alloc == NULL, 0)) {
        bind();
        alloc = atomic_load_explicit(&original_alloc, memory_order_acquire);
    }
    return alloc(bytes);
}

EXPORT void mesa_free_cpu(void *at) __asm__("_ZN3c108free_cpuEPv");
void mesa_free_cpu(void *at) {
    if (mesa_tensor_memory_may_be(at) && mesa_tensor_memory_free(at))
        return;
    free_cpu *release = atomic_load_explicit(&original_free, memory_order_acquire);
    if (__builtin_expect(release == NULL, 0)) {
        bind();
        release = atomic_load_explicit(&original_free, memory_order_acquire);
    }
    release(at);
}

/* Somebody who preloads an allocator or a sanitizer wants it to see every tensor. */
static bool malloc_is_of_libc(void) {
    Dl_info found;
    void *function = dlsym(RTLD_DEFAULT, "posix_memalign");
    return function != NULL && dladdr(function, &found) != 0 && found.dli_fname != NULL &&
           strstr(found.dli_fname, "/libc.so") != NULL;
}

void mesa_tensor_alloc_start(void) {
    const char *huge_pages = getenv("THP_MEM_ALLOC_ENABLE"); /* c10's own way to large pages */
    if (malloc_is_of_libc() && (huge_pages == NULL || strcmp(huge_pages, "0") == 0))
        atomic_store_explicit(&on, true, memory_order_relaxed);
}
