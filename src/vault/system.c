/* The system calls of the vault; see system.h.
 *
 * SPDX-License-Identifier: MIT */
#include "vault/system.h"

#include <sys/mman.h>
#include <unistd.h>

static void *map_memory(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static const struct mesa_system real_system = {map_memory, munmap, madvise};
static struct mesa_system os = {map_memory, munmap, madvise};

void mesa_system_set(const struct mesa_system *system) {
    os = system != NULL ? *system : real_system;
}

size_t mesa_system_page_bytes(void) {
    static size_t bytes; /* the same whoever writes it */
    size_t known = __atomic_load_n(&bytes, __ATOMIC_RELAXED);
    if (known == 0) {
        known = (size_t)sysconf(_SC_PAGESIZE);
        __atomic_store_n(&bytes, known, __ATOMIC_RELAXED);
    }
    return known;
}

void mesa_system_unmap(void *at, size_t bytes) {
    if (os.unmap(at, bytes) != 0)
        (void)os.advise(at, bytes, MADV_DONTNEED);
}

void mesa_system_advise(void *at, size_t bytes, int advice) {
    (void)os.advise(at, bytes, advice);
}

/* Cut out of a longer mapping. */
void *mesa_system_map(size_t bytes, size_t alignment) {
    size_t slack = alignment - mesa_system_page_bytes();
    if (bytes > SIZE_MAX - slack)
        return NULL;
    char *at = os.map(bytes + slack);
    if (at == NULL)
        return NULL;
    char *aligned = (char *)mesa_round_up((uintptr_t)at, alignment);
    size_t head = (size_t)(aligned - at);
    if (head > 0)
        mesa_system_unmap(at, head);
    if (slack > head)
        mesa_system_unmap(aligned + bytes, slack - head);
    return aligned;
}
