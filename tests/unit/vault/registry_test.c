/* The registry against fake storages: who is charged, what is shared, what takes whose place, and that
 * every reference is given back.
 *
 * SPDX-License-Identifier: MIT */
#include "vault/registry.h"

#include "classify/layout.h"
#include "vault/arena.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <string.h>

/* Stands for a StorageImpl: its address is what counts. */
struct fake {
    int weak;
    bool alive;
};

static void fake_ref(void *storage) {
    ((struct fake *)storage)->weak++;
}

static void fake_unref(void *storage) {
    ((struct fake *)storage)->weak--;
}

static bool fake_alive(const void *storage) {
    return ((const struct fake *)storage)->alive;
}

static void set_up(void) {
    static const struct mesa_storage_calls calls = {fake_ref, fake_unref, fake_alive};
    mesa_registry_init(&calls);
}

TestSuite(registry, .init = set_up);

static struct mesa_source source_at(const void *data, size_t elements) {
    struct mesa_source source = {.data = data, .dtype = MESA_F32, .ndim = 1, .elements = elements};
    source.sizes[0] = (int64_t)elements;
    source.strides[0] = 1;
    return source;
}

/* A published held buffer of `source` with one reference for the caller. */
static struct mesa_held *held_of(struct mesa_storage *storage, const struct mesa_source *source,
                                 uint32_t version, bool values, bool signs, void *record) {
    struct mesa_held *held = mesa_held_create(storage);
    held->source = *source;
    held->key = mesa_source_key(source);
    held->version = version;
    held->has_values = values;
    held->has_signs = signs;
    held->bytes = mesa_arena_alloc(256);
    held->size = 256;
    held->record = record;
    void *superseded;
    size_t bytes;
    mesa_registry_publish(held, &superseded, &bytes);
    return held;
}

static void release(struct mesa_held *held) {
    void *record;
    size_t bytes;
    mesa_held_release(held, &record, &bytes);
}

Test(registry, a_storage_has_one_record_and_one_weak_reference) {
    struct fake fake = {0, true};
    struct mesa_storage *a = mesa_registry_storage(&fake, 100);
    struct mesa_storage *b = mesa_registry_storage(&fake, 100);
    cr_expect(eq(ptr, a, b));
    cr_expect(eq(int, fake.weak, 1));
    mesa_registry_storage_unref(a);
    cr_expect(eq(int, fake.weak, 1));
    mesa_registry_storage_unref(b);
    cr_expect(eq(int, fake.weak, 0));
}

Test(registry, the_first_save_is_charged_and_the_last_uncharged) {
    struct fake fake = {0, true};
    int first, second;
    struct mesa_storage *storage = mesa_registry_storage(&fake, 100);
    uint64_t bytes;
    mesa_registry_save_begin(storage, &first, &bytes);
    cr_expect(eq(u64, bytes, 100));
    mesa_registry_save_begin(storage, &second, &bytes);
    cr_expect(eq(u64, bytes, 0));
    cr_expect(eq(sz, mesa_registry_save_count(), 2));

    struct mesa_charge charge;
    bool outlived;
    fake.alive = false;
    mesa_registry_save_end(storage, &charge, &outlived);
    cr_expect(eq(ptr, charge.record, NULL));
    mesa_registry_save_end(storage, &charge, &outlived);
    cr_expect(eq(ptr, charge.record, &first));
    cr_expect(eq(u64, charge.bytes, 100));
    cr_expect(not(outlived));
    mesa_registry_storage_unref(storage);
    cr_expect(eq(int, fake.weak, 0));
}

static struct mesa_charge swept;
static void note_charge(const struct mesa_charge *charge) {
    swept = *charge;
}

Test(registry, what_outlives_its_saves_is_remembered_until_it_dies) {
    struct fake fake = {0, true};
    int record;
    struct mesa_storage *storage = mesa_registry_storage(&fake, 100);
    uint64_t bytes;
    mesa_registry_save_begin(storage, &record, &bytes);
    struct mesa_charge charge;
    bool outlived;
    mesa_registry_save_end(storage, &charge, &outlived);
    cr_expect(outlived);
    mesa_registry_storage_unref(storage);

    storage = mesa_registry_storage(&fake, 100);
    cr_expect(mesa_registry_is_kept(storage));
    cr_expect(outlived);
    mesa_registry_storage_unref(storage);

    size_t died;
    fake.alive = false;
    cr_expect(mesa_registry_sweep_is_due());
    mesa_registry_sweep(note_charge, &died);
    cr_expect(eq(int, fake.weak, 0));
    cr_expect(eq(sz, died, 0)); /* it was not charged any more */
}

Test(registry, a_kept_storage_is_charged_until_it_dies) {
    enum { MANY = 200 }; /* more than one batch of the sweep */
    static struct fake fakes[MANY];
    int record;
    for (int i = 0; i < MANY; i++) {
        fakes[i].alive = true;
        uint64_t bytes;
        mesa_registry_keep(mesa_registry_storage(&fakes[i], 7), &record, &bytes);
        cr_assert(eq(u64, bytes, 7));
        mesa_registry_keep(mesa_registry_storage(&fakes[i], 7), &record, &bytes);
        cr_assert(eq(u64, bytes, 0));
    }
    size_t died;
    cr_expect(eq(sz, mesa_registry_sweep(note_charge, &died), MANY));
    for (int i = 0; i < MANY; i += 2)
        fakes[i].alive = false;
    cr_expect(eq(sz, mesa_registry_sweep(note_charge, &died), MANY / 2));
    cr_expect(eq(sz, died, MANY / 2));
    cr_expect(eq(ptr, swept.record, &record));
    cr_expect(eq(u64, swept.bytes, 7));
    for (int i = 0; i < MANY; i++)
        cr_assert(eq(int, fakes[i].weak, i % 2));
}

Test(registry, sharing_asks_for_the_same_elements_and_version) {
    struct fake fake = {0, true};
    float data[64];
    struct mesa_source all = source_at(data, 64), half = source_at(data, 32);
    uint64_t key_all = mesa_source_key(&all), key_half = mesa_source_key(&half);
    struct mesa_storage *storage = mesa_registry_storage(&fake, sizeof data);
    struct mesa_held *held = held_of(storage, &all, 3, true, false, NULL);

    struct mesa_held *found = mesa_registry_find(storage, &all, key_all, 3, true, false);
    cr_expect(eq(ptr, found, held));
    release(found);
    cr_expect(eq(ptr, mesa_registry_find(storage, &all, key_all, 4, true, false), NULL));
    cr_expect(eq(ptr, mesa_registry_find(storage, &half, key_half, 3, true, false), NULL));
    /* A key that collides is not enough. */
    cr_expect(eq(ptr, mesa_registry_find(storage, &half, key_all, 3, true, false), NULL));
    cr_expect(eq(ptr, mesa_registry_find(storage, &all, key_all, 3, true, true), NULL));
    release(held);
    cr_expect(eq(ptr, mesa_registry_find(storage, &all, key_all, 3, false, false), NULL));
    mesa_registry_storage_unref(storage);
    cr_expect(eq(int, fake.weak, 0));
}

Test(registry, values_with_signs_take_the_place_of_signs) {
    struct fake fake = {0, true};
    float data[64];
    int mask_record, values_record;
    struct mesa_source source = source_at(data, 64);
    uint64_t key = mesa_source_key(&source);
    struct mesa_storage *storage = mesa_registry_storage(&fake, sizeof data);
    struct mesa_held *mask = held_of(storage, &source, 0, false, true, &mask_record);
    cr_expect(mesa_registry_wants_signs(storage, &source, key, 0));
    cr_expect(not(mesa_registry_wants_signs(storage, &source, key, 1)));

    struct mesa_held *values = mesa_held_create(storage);
    values->source = source;
    values->key = key;
    values->has_values = values->has_signs = true;
    values->bytes = mesa_arena_alloc(1024);
    values->size = 1024;
    values->record = &values_record;
    void *record;
    size_t bytes;
    mesa_registry_publish(values, &record, &bytes);
    cr_expect(eq(ptr, record, &mask_record));
    cr_expect(eq(sz, bytes, 256));
    cr_expect(eq(ptr, mask->bytes, NULL));

    /* The values' own hook goes first; the mask's hook still reads them. */
    mesa_held_release(values, &record, &bytes);
    cr_expect(eq(ptr, record, NULL));
    struct mesa_held *reading = mesa_held_read_begin(mask);
    cr_expect(eq(ptr, reading, values));
    mesa_held_read_end(reading);
    mesa_held_release(mask, &record, &bytes);
    cr_expect(eq(ptr, record, &values_record));
    cr_expect(eq(sz, bytes, 1024));
    mesa_registry_storage_unref(storage);
    cr_expect(eq(int, fake.weak, 0));
}

Test(registry, a_mask_that_is_being_read_is_not_superseded) {
    struct fake fake = {0, true};
    float data[64];
    struct mesa_source source = source_at(data, 64);
    struct mesa_storage *storage = mesa_registry_storage(&fake, sizeof data);
    struct mesa_held *mask = held_of(storage, &source, 0, false, true, NULL);
    struct mesa_held *reading = mesa_held_read_begin(mask);
    struct mesa_held *values = held_of(storage, &source, 0, true, true, NULL);
    cr_expect(ne(ptr, mask->bytes, NULL));
    mesa_held_read_end(reading);
    release(values);
    release(mask);
    mesa_registry_storage_unref(storage);
    cr_expect(eq(int, fake.weak, 0));
}

Test(registry, a_restored_copy_is_remembered_weakly) {
    struct fake origin = {0, true}, copy = {0, true}, other = {0, true};
    float data[64];
    struct mesa_source source = source_at(data, 64);
    struct mesa_storage *storage = mesa_registry_storage(&origin, sizeof data);
    struct mesa_held *held = held_of(storage, &source, 0, true, false, NULL);
    cr_expect(eq(ptr, mesa_held_restored(held), NULL));
    mesa_held_set_restored(held, &copy);
    cr_expect(eq(ptr, mesa_held_restored(held), &copy));
    cr_expect(eq(int, copy.weak, 2)); /* the buffer's and the caller's */
    fake_unref(&copy);
    mesa_held_set_restored(held, &other);
    cr_expect(eq(int, copy.weak, 0));
    release(held);
    mesa_registry_storage_unref(storage);
    cr_expect(eq(int, other.weak, 0));
    cr_expect(eq(int, origin.weak, 0));
}
