/* Threads that save, share, restore and release tensors of the same few storages at once, under the
 * thread sanitizer. A plain program: Criterion's processes and the sanitizer do not go together.
 *
 * SPDX-License-Identifier: MIT */
#include "vault/registry.h"

#include "classify/layout.h"
#include "vault/arena.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STORAGES = 8, THREADS = 4, ROUNDS = 3000, ELEMENTS = 64 };

static struct fake {
    atomic_int weak;
    float data[ELEMENTS];
} fakes[STORAGES];

static void fake_ref(void *storage) {
    atomic_fetch_add(&((struct fake *)storage)->weak, 1);
}

static void fake_unref(void *storage) {
    atomic_fetch_sub(&((struct fake *)storage)->weak, 1);
}

static bool fake_alive(const void *storage) {
    (void)storage;
    return false;
}

static struct mesa_held *hold(struct mesa_storage *storage, const struct mesa_source *source,
                              bool values) {
    uint64_t key = mesa_source_key(source);
    struct mesa_held *held = mesa_registry_find(storage, source, key, 0, values, !values);
    if (held != NULL)
        return held;
    held = mesa_held_create(storage);
    if (held == NULL)
        abort();
    held->source = *source;
    held->key = key;
    held->has_values = values;
    held->has_signs = true;
    held->size = values ? sizeof fakes[0].data : ELEMENTS / 8;
    held->bytes = mesa_arena_alloc(held->size);
    if (held->bytes == NULL)
        abort();
    memset(held->bytes, 1, held->size);
    void *record;
    size_t bytes;
    mesa_registry_publish(held, &record, &bytes);
    return held;
}

static void read_all(struct mesa_held *held) {
    struct mesa_held *reading = mesa_held_read_begin(held);
    for (size_t i = 0; i < reading->size; i++)
        if (((const char *)reading->bytes)[i] != 1)
            abort();
    mesa_held_read_end(reading);
}

static void *work(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    for (int round = 0; round < ROUNDS; round++) {
        struct fake *fake = &fakes[rand_r(&seed) % STORAGES];
        struct mesa_source source = {
            .data = fake->data, .dtype = MESA_F32, .ndim = 1, .elements = ELEMENTS};
        source.sizes[0] = ELEMENTS;
        source.strides[0] = 1;
        struct mesa_storage *storage = mesa_registry_storage(fake, sizeof fake->data);
        if (storage == NULL)
            abort();
        uint64_t charged;
        mesa_registry_save_begin(storage, fake, &charged);
        struct mesa_held *held = hold(storage, &source, rand_r(&seed) % 2 == 0);
        read_all(held);
        void *record;
        size_t bytes;
        struct mesa_charge charge;
        bool outlived;
        mesa_registry_save_end(storage, &charge, &outlived);
        mesa_held_release(held, &record, &bytes);
        mesa_registry_storage_unref(storage);
    }
    return NULL;
}

int main(void) {
    static const struct mesa_storage_calls calls = {fake_ref, fake_unref, fake_alive};
    mesa_registry_init(&calls);
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(i + 1)) != 0)
            return 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < STORAGES; i++)
        if (atomic_load(&fakes[i].weak) != 0) {
            printf("storage %d: %d weak references left\n", i, atomic_load(&fakes[i].weak));
            return 1;
        }
    struct mesa_arena_totals totals;
    mesa_arena_totals(&totals);
    printf("%zu saves and %zu bytes left\n", mesa_registry_save_count(), totals.used_bytes);
    return mesa_registry_save_count() != 0 || totals.used_bytes != 0;
}
