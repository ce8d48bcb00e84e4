/* Counters of saved tensors. The one idea: after a record is made it is only ever touched by relaxed
 * atomic adds and by compare-exchange for peaks, so that saving a tensor takes no lock; the mutex is
 * for making records, closing steps and adding up verified errors. Must not know who saves what.
 *
 * SPDX-License-Identifier: MIT */
#include "report/ledger.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    CHUNK_ENTRIES = 32,
    CHUNK_COUNT = 1024, /* a bound of 32768 records: far more than there are op arguments */
    BUCKET_COUNT = 256,
    SERIES_POINTS = 1024,
};

struct entry {
    struct mesa_record record;
    struct entry *next; /* const: the next older one in its bucket */
};

struct chunk {
    struct entry entries[CHUNK_ENTRIES];
};

/* Guards the making of records, the series and every struct mesa_verify_sums. */
static pthread_mutex_t ledger_lock = PTHREAD_MUTEX_INITIALIZER;

static _Atomic(struct chunk *) chunks[CHUNK_COUNT];
static _Atomic(struct entry *) buckets[BUCKET_COUNT];
static _Atomic uint32_t record_count;

static struct {
    _Atomic int64_t would_bytes, held_bytes;
    _Atomic int64_t would_bytes_peak, held_bytes_peak;
    _Atomic int64_t step_would_bytes_peak, step_held_bytes_peak; /* since the last step ended */
    _Atomic uint64_t tensors, pack_ns, unpack_ns;
    _Atomic uint64_t kept[MESA_KEPT_COUNT];
    _Atomic uint64_t start_ns; /* monotonic time of the first saved tensor; 0 before it */
} totals;

/* Under the lock. */
static struct {
    struct mesa_step_point points[SERIES_POINTS];
    size_t count;
    uint64_t steps;
    uint64_t steps_per_point; /* a power of two; 0 before the first step */
    uint64_t steps_in_last;   /* steps that points[count - 1] stands for so far */
} series;

static const char *const kept_texts[MESA_KEPT_COUNT] = {
    [MESA_KEPT_NOT] = "smaller than MESA_MIN_BYTES",
    [MESA_KEPT_POLICY] = "the policy says keep",
    [MESA_KEPT_PARAMETER] = "a parameter or a view of one",
    [MESA_KEPT_FROZEN] = "a frozen weight or a cast of a weight",
    [MESA_KEPT_ALIVE] = "its storage outlives the backward pass",
    [MESA_KEPT_UNKNOWN_OP] = "the op is not in the table",
    [MESA_KEPT_EXACT] = "the backward pass needs every bit",
    [MESA_KEPT_VALUES] = "its values do not fit the way",
    [MESA_KEPT_LAYOUT] = "its layout overlaps or has too many dims",
    [MESA_KEPT_DTYPE] = "its element type is not handled",
    [MESA_KEPT_NO_MEMORY] = "there was no memory to hold it",
    [MESA_KEPT_LOOKED_AT] = "the program looked at its values",
    [MESA_KEPT_HOOKED] = "the program has hooks of its own on it, or forbids hooks",
    [MESA_KEPT_KIND] = "not a plain dense CPU tensor",
};

const char *mesa_kept_text(enum mesa_kept why) {
    return kept_texts[why];
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* FNV-1a, over the NUL as well so that ("ab", "c") and ("a", "bc") differ. */
static uint64_t hash_string(uint64_t hash, const char *text) {
    do
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    while (*text++ != '\0');
    return hash;
}

static uint64_t hash_key(const char *op, const char *argument, enum mesa_dtype dtype,
                         const char *way, enum mesa_kept kept) {
    uint64_t hash = hash_string(hash_string(hash_string(0xcbf29ce484222325u, op), argument), way);
    hash = (hash ^ (uint64_t)dtype) * 0x100000001b3u;
    hash = (hash ^ (uint64_t)kept) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

static struct mesa_record *find_record(struct entry *bucket, const char *op, const char *argument,
                                       enum mesa_dtype dtype, const char *way,
                                       enum mesa_kept kept) {
    for (struct entry *entry = bucket; entry != NULL; entry = entry->next) {
        struct mesa_record *record = &entry->record;
        if (record->dtype == dtype && record->kept == kept && strcmp(record->op, op) == 0 &&
            strcmp(record->argument, argument) == 0 && strcmp(record->way, way) == 0)
            return record;
    }
    return NULL;
}

/* The next free entry, zeroed; NULL if there is no memory. Holds the lock. */
static struct entry *next_entry(uint32_t index) {
    if (index >= CHUNK_ENTRIES * CHUNK_COUNT)
        return NULL;
    _Atomic(struct chunk *) *slot = &chunks[index / CHUNK_ENTRIES];
    struct chunk *chunk = atomic_load_explicit(slot, memory_order_relaxed);
    if (chunk == NULL) {
        chunk = calloc(1, sizeof *chunk);
        if (chunk == NULL)
            return NULL;
        atomic_store_explicit(slot, chunk, memory_order_release);
    }
    return &chunk->entries[index % CHUNK_ENTRIES];
}

/* Holds the lock. */
static struct mesa_record *make_record(_Atomic(struct entry *) *bucket, const char *op,
                                       const char *argument, enum mesa_dtype dtype, const char *way,
                                       enum mesa_kept kept) {
    uint32_t index = atomic_load_explicit(&record_count, memory_order_relaxed);
    struct entry *entry = next_entry(index);
    size_t op_size = strlen(op) + 1, argument_size = strlen(argument) + 1;
    size_t way_size = strlen(way) + 1;
    char *strings = entry == NULL ? NULL : malloc(op_size + argument_size + way_size);
    if (strings == NULL)
        return NULL;
    entry->record.index = index;
    entry->record.op = memcpy(strings, op, op_size);
    entry->record.argument = memcpy(strings + op_size, argument, argument_size);
    entry->record.way = memcpy(strings + op_size + argument_size, way, way_size);
    entry->record.dtype = dtype;
    entry->record.kept = kept;
    entry->next = atomic_load_explicit(bucket, memory_order_relaxed);
    atomic_store_explicit(bucket, entry, memory_order_release);
    atomic_store_explicit(&record_count, index + 1, memory_order_release);
    return &entry->record;
}

struct mesa_record *mesa_ledger_record(const char *op, const char *argument, enum mesa_dtype dtype,
                                       const char *way, enum mesa_kept kept) {
    uint64_t hash = hash_key(op, argument, dtype, way, kept);
    _Atomic(struct entry *) *bucket = &buckets[hash % BUCKET_COUNT];
    struct mesa_record *record = find_record(atomic_load_explicit(bucket, memory_order_acquire), op,
                                             argument, dtype, way, kept);
    if (record != NULL)
        return record;
    pthread_mutex_lock(&ledger_lock);
    /* Another thread may have made it since. */
    record = find_record(atomic_load_explicit(bucket, memory_order_relaxed), op, argument, dtype,
                         way, kept);
    if (record == NULL)
        record = make_record(bucket, op, argument, dtype, way, kept);
    pthread_mutex_unlock(&ledger_lock);
    return record;
}

static void add(_Atomic uint64_t *counter, uint64_t count) {
    atomic_fetch_add_explicit(counter, count, memory_order_relaxed);
}

static void raise_peak(_Atomic int64_t *peak, int64_t bytes) {
    int64_t seen = atomic_load_explicit(peak, memory_order_relaxed);
    while (bytes > seen && !atomic_compare_exchange_weak_explicit(
                               peak, &seen, bytes, memory_order_relaxed, memory_order_relaxed))
        continue;
}

/* Adds to a level that goes up and down; returns where it stands now. */
static int64_t add_bytes(_Atomic int64_t *level, _Atomic int64_t *peak, uint64_t bytes) {
    if (bytes == 0)
        return atomic_load_explicit(level, memory_order_relaxed);
    int64_t stands =
        atomic_fetch_add_explicit(level, (int64_t)bytes, memory_order_relaxed) + (int64_t)bytes;
    raise_peak(peak, stands);
    return stands;
}

static void note_start(void) {
    if (atomic_load_explicit(&totals.start_ns, memory_order_relaxed) != 0)
        return;
    uint64_t unset = 0;
    atomic_compare_exchange_strong_explicit(&totals.start_ns, &unset, now_ns(),
                                            memory_order_relaxed, memory_order_relaxed);
}

void mesa_ledger_held(struct mesa_record *record, uint64_t bytes) {
    raise_peak(&totals.step_held_bytes_peak,
               add_bytes(&totals.held_bytes, &totals.held_bytes_peak, bytes));
    if (record == NULL)
        return;
    add(&record->held_bytes_total, bytes);
    add_bytes(&record->held_bytes, &record->held_bytes_peak, bytes);
}

void mesa_ledger_saved(struct mesa_record *record, uint64_t elements, uint64_t would_bytes,
                       uint64_t held_bytes, bool shared, uint64_t pack_ns) {
    note_start();
    add(&totals.tensors, 1);
    add(&totals.pack_ns, pack_ns);
    raise_peak(&totals.step_would_bytes_peak,
               add_bytes(&totals.would_bytes, &totals.would_bytes_peak, would_bytes));
    mesa_ledger_held(record, held_bytes);
    if (record == NULL)
        return;
    add(&record->tensors, 1);
    if (shared)
        add(&record->shared, 1);
    else
        add(&record->elements, elements);
    add(&record->would_bytes_total, would_bytes);
    add(&record->pack_ns, pack_ns);
    add_bytes(&record->would_bytes, &record->would_bytes_peak, would_bytes);
}

static void remove_bytes(_Atomic int64_t *level, uint64_t bytes) {
    if (bytes != 0)
        atomic_fetch_sub_explicit(level, (int64_t)bytes, memory_order_relaxed);
}

void mesa_ledger_released(struct mesa_record *record, uint64_t would_bytes, uint64_t held_bytes) {
    remove_bytes(&totals.would_bytes, would_bytes);
    remove_bytes(&totals.held_bytes, held_bytes);
    if (record == NULL)
        return;
    remove_bytes(&record->would_bytes, would_bytes);
    remove_bytes(&record->held_bytes, held_bytes);
}

void mesa_ledger_unpacked(struct mesa_record *record, uint64_t unpack_ns) {
    add(&totals.unpack_ns, unpack_ns);
    if (record == NULL)
        return;
    add(&record->unpacks, 1);
    add(&record->unpack_ns, unpack_ns);
}

void mesa_ledger_verified(struct mesa_record *record, const struct mesa_verify_sums *sums) {
    if (record == NULL)
        return;
    pthread_mutex_lock(&ledger_lock);
    struct mesa_verify_sums *sum = atomic_load_explicit(&record->verify, memory_order_relaxed);
    if (sum == NULL) {
        sum = calloc(1, sizeof *sum);
        atomic_store_explicit(&record->verify, sum, memory_order_release);
    }
    if (sum != NULL) {
        sum->error2 += sums->error2;
        sum->value2 += sums->value2;
        sum->dot += sums->dot;
        sum->restored2 += sums->restored2;
        if (!(sums->largest <= sum->largest)) /* a NaN must not get lost */
            sum->largest = sums->largest;
        sum->elements += sums->elements;
        sum->sign_flips += sums->sign_flips;
        sum->zero_changes += sums->zero_changes;
    }
    pthread_mutex_unlock(&ledger_lock);
}

bool mesa_ledger_verify_sums(struct mesa_record *record, struct mesa_verify_sums *ret_sums) {
    if (atomic_load_explicit(&record->verify, memory_order_acquire) == NULL)
        return false;
    pthread_mutex_lock(&ledger_lock);
    *ret_sums = *atomic_load_explicit(&record->verify, memory_order_relaxed);
    pthread_mutex_unlock(&ledger_lock);
    return ret_sums->elements != 0;
}

void mesa_ledger_count_kept(enum mesa_kept why) {
    add(&totals.kept[why], 1);
}

/* What a reader is told of a level: bytes that were held before a fork are released after it too, so
 * a child's level may stand below zero. */
static int64_t level_of(const _Atomic int64_t *level) {
    int64_t bytes = atomic_load_explicit(level, memory_order_relaxed);
    return bytes < 0 ? 0 : bytes;
}

static uint64_t max_of(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* `later` follows `point` in time: the higher peaks, the later end. */
static void merge_point(struct mesa_step_point *point, const struct mesa_step_point *later) {
    point->seconds = later->seconds;
    point->would_bytes_peak = max_of(point->would_bytes_peak, later->would_bytes_peak);
    point->held_bytes_peak = max_of(point->held_bytes_peak, later->held_bytes_peak);
    point->would_bytes_end = later->would_bytes_end;
    point->held_bytes_end = later->held_bytes_end;
}

/* Halves the number of points; from now on each point stands for twice as many steps. */
static void merge_pairs(void) {
    for (size_t i = 0; i < SERIES_POINTS / 2; i++) {
        series.points[i] = series.points[2 * i];
        merge_point(&series.points[i], &series.points[2 * i + 1]);
    }
    series.count = SERIES_POINTS / 2;
    series.steps_per_point *= 2;
    series.steps_in_last = series.steps_per_point;
}

/* Ends a peak: it starts again from where the level stands. */
static uint64_t take_peak(_Atomic int64_t *peak, const _Atomic int64_t *level) {
    int64_t bytes = atomic_exchange_explicit(peak, level_of(level), memory_order_relaxed);
    return bytes < 0 ? 0 : (uint64_t)bytes;
}

void mesa_ledger_step(void) {
    uint64_t start_ns = atomic_load_explicit(&totals.start_ns, memory_order_relaxed);
    struct mesa_step_point point = {
        .seconds = start_ns == 0 ? 0 : (double)(now_ns() - start_ns) * 1e-9,
        .would_bytes_peak = take_peak(&totals.step_would_bytes_peak, &totals.would_bytes),
        .held_bytes_peak = take_peak(&totals.step_held_bytes_peak, &totals.held_bytes),
        .would_bytes_end = (uint64_t)level_of(&totals.would_bytes),
        .held_bytes_end = (uint64_t)level_of(&totals.held_bytes),
    };
    pthread_mutex_lock(&ledger_lock);
    series.steps++;
    if (series.steps_per_point == 0)
        series.steps_per_point = 1;
    if (series.count != 0 && series.steps_in_last < series.steps_per_point) {
        merge_point(&series.points[series.count - 1], &point);
        series.steps_in_last++;
    } else {
        series.points[series.count++] = point;
        series.steps_in_last = 1;
    }
    if (series.count == SERIES_POINTS && series.steps_in_last == series.steps_per_point)
        merge_pairs();
    pthread_mutex_unlock(&ledger_lock);
}

size_t mesa_ledger_series(struct mesa_step_point *ret_points, size_t room) {
    pthread_mutex_lock(&ledger_lock);
    size_t count = series.count, copied = room < count ? room : count;
    if (copied != 0)
        memcpy(ret_points, &series.points[count - copied], copied * sizeof *ret_points);
    pthread_mutex_unlock(&ledger_lock);
    return count;
}

void mesa_ledger_totals(struct mesa_ledger_totals *ret_totals) {
    *ret_totals = (struct mesa_ledger_totals){
        .would_bytes = level_of(&totals.would_bytes),
        .held_bytes = level_of(&totals.held_bytes),
        .would_bytes_peak = level_of(&totals.would_bytes_peak),
        .held_bytes_peak = level_of(&totals.held_bytes_peak),
        .tensors = atomic_load_explicit(&totals.tensors, memory_order_relaxed),
        .pack_ns = atomic_load_explicit(&totals.pack_ns, memory_order_relaxed),
        .unpack_ns = atomic_load_explicit(&totals.unpack_ns, memory_order_relaxed),
    };
    for (int why = 0; why < MESA_KEPT_COUNT; why++)
        ret_totals->kept[why] = atomic_load_explicit(&totals.kept[why], memory_order_relaxed);
    ret_totals->declined_no_memory = ret_totals->kept[MESA_KEPT_NO_MEMORY];
    pthread_mutex_lock(&ledger_lock);
    ret_totals->steps = series.steps;
    ret_totals->steps_per_point = series.steps_per_point;
    pthread_mutex_unlock(&ledger_lock);
}

struct mesa_record *mesa_ledger_at(uint32_t index) {
    if (index >= atomic_load_explicit(&record_count, memory_order_acquire))
        return NULL;
    struct chunk *chunk =
        atomic_load_explicit(&chunks[index / CHUNK_ENTRIES], memory_order_acquire);
    return &chunk->entries[index % CHUNK_ENTRIES].record;
}

void mesa_ledger_prefork(void) {
    pthread_mutex_lock(&ledger_lock);
}

void mesa_ledger_postfork_parent(void) {
    pthread_mutex_unlock(&ledger_lock);
}

static void empty_record(struct mesa_record *record) {
    record->tensors = 0;
    record->shared = 0;
    record->elements = 0;
    record->would_bytes_total = 0;
    record->held_bytes_total = 0;
    record->would_bytes = 0;
    record->held_bytes = 0;
    record->would_bytes_peak = 0;
    record->held_bytes_peak = 0;
    record->pack_ns = 0;
    record->unpack_ns = 0;
    record->unpacks = 0;
    struct mesa_verify_sums *sums = record->verify;
    if (sums != NULL)
        *sums = (struct mesa_verify_sums){0};
}

/* Records stay where they are, with nothing in them: callers have cached their addresses. The child
 * has one thread, so plain sequence is enough. */
void mesa_ledger_postfork_child(void) {
    struct mesa_record *record;
    for (uint32_t i = 0; (record = mesa_ledger_at(i)) != NULL; i++)
        empty_record(record);
    totals.would_bytes = 0;
    totals.held_bytes = 0;
    totals.would_bytes_peak = 0;
    totals.held_bytes_peak = 0;
    totals.step_would_bytes_peak = 0;
    totals.step_held_bytes_peak = 0;
    totals.tensors = 0;
    totals.pack_ns = 0;
    totals.unpack_ns = 0;
    totals.start_ns = 0;
    for (int why = 0; why < MESA_KEPT_COUNT; why++)
        totals.kept[why] = 0;
    series.count = 0;
    series.steps = 0;
    series.steps_per_point = 0;
    series.steps_in_last = 0;
    pthread_mutex_unlock(&ledger_lock);
}
