/* A fixed table under a lock: tests only, never on by itself.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/trace.h"

#include <pthread.h>
#include <stdio.h>

#define TRACE_ROOM 8192

static struct {
    const struct mesa_site *site;
    const void *data;
    bool is_output;
} saves[TRACE_ROOM];
static size_t count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
_Atomic bool mesa_trace_on;

void mesa_trace_switch(bool on) {
    pthread_mutex_lock(&lock);
    count = 0;
    pthread_mutex_unlock(&lock);
    atomic_store(&mesa_trace_on, on);
}

void mesa_trace_save(const struct mesa_site *site, const struct mesa_tensor *tensor,
                     const struct mesa_save *save) {

    if (!mesa_trace_is_on() || site == NULL || tensor == NULL || mesa_torch_inside)
        return;
    void *data = NULL;
    if (mesa_impl_is_plain(tensor->impl) &&
        mesa_torch.get_data_ptr((struct mesa_tensor *)(uintptr_t)tensor, &data) != 0)
        data = NULL;
    pthread_mutex_lock(&lock);
    if (count < TRACE_ROOM) {
        saves[count].site = site;
        saves[count].data = data;
        saves[count].is_output = save->is_output;
        count++;
    }
    pthread_mutex_unlock(&lock);
}

size_t mesa_trace_text(char *ret, size_t size) {
    size_t needed = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        char *at = needed < size ? ret + needed : NULL;
        int n = snprintf(at, at == NULL ? 0 : size - needed, "%s %s %p %d\n", saves[i].site->op,
                         saves[i].site->argument, saves[i].data, saves[i].is_output);
        needed += n > 0 ? (size_t)n : 0;
    }
    pthread_mutex_unlock(&lock);
    return needed;
}
