/* Memory for the tensors of the program itself. An original that was packed is freed in the middle of
 * the forward pass; malloc hands its bytes out again only for smaller requests (glibc's memalign asks
 * for more than it returns) and cannot give them back to the system from the middle of its heap, so
 * what packing saves would not be seen from outside. Here large tensors come from the arena, and held
 * bytes that are released make room for gradients.
 *
 * Any thread may call anything here.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_VAULT_TENSOR_MEMORY_H
#define MESA_VAULT_TENSOR_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Smaller tensors are left to malloc: holes of their size are filled soon enough. */
#define MESA_TENSOR_MEMORY_LEAST_BYTES ((size_t)128 << 10)

/* Tensors begin behind a record, which begins on a page. */
#define MESA_TENSOR_MEMORY_OFFSET     128
#define MESA_TENSOR_MEMORY_PAGE_BYTES 4096

/* `bytes` >= MESA_TENSOR_MEMORY_LEAST_BYTES at a multiple of 64 bytes, not zeroed; NULL if there is
 * no memory. */
void *mesa_tensor_memory_alloc(size_t bytes);

/* Gives the arena what was freed last and is kept for the next tensors of its size. */
void mesa_tensor_memory_forget_recent(void);

/* False if `at` is not from here. */
bool mesa_tensor_memory_free(void *at);

/* Tells most addresses that are not from here at no cost. */
static inline bool mesa_tensor_memory_may_be(const void *at) {
    return (uintptr_t)at % MESA_TENSOR_MEMORY_PAGE_BYTES == MESA_TENSOR_MEMORY_OFFSET;
}

/* Fork handlers. */
void mesa_tensor_memory_prefork(void);
void mesa_tensor_memory_postfork_parent(void);
void mesa_tensor_memory_postfork_child(void);

#endif
