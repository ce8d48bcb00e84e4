/* See trial.h.
 *
 * SPDX-License-Identifier: MIT */
#include "trial.h"

#include "codec/kernels/element.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <stdlib.h>

#define GUARD_BYTES 128
#define GUARD       0xa5

/* ---- chance ------------------------------------------------------------------------------------ */

/* splitmix64 */
uint64_t chance_next(struct chance *chance) {
    uint64_t x = chance->state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

size_t chance_below(struct chance *chance, size_t n) {
    return (size_t)(chance_next(chance) % n);
}

bool chance_in(struct chance *chance, size_t n) {
    return chance_below(chance, n) == 0;
}

/* About normal: a sum of uniforms, in (-2, 2). */
static double chance_normal(struct chance *chance) {
    double sum = -2;
    for (int i = 0; i < 4; i++)
        sum += (double)(chance_next(chance) >> 40) * 0x1p-24;
    return sum;
}

/* ---- values ------------------------------------------------------------------------------------ */

static double special_value(struct chance *chance) {
    static const double specials[] = {NAN, INFINITY, -INFINITY, -NAN};
    return specials[chance_below(chance, 4)];
}

static double real_value(struct chance *chance, enum values values, enum mesa_dtype dtype,
                         const double pair[2]) {
    static const int least_exponent[] = {-126, -126, -14, -1022};
    double x = chance_normal(chance);
    switch (values) {
    case VALUES_OFFSET:
        return 100 + x;
    case VALUES_RELU:
        return x > 0 ? x : 0;
    case VALUES_RARE:
        if (!chance_in(chance, 50))
            return 0;
        return chance_in(chance, 20) ? -0.0 : chance_in(chance, 50) ? special_value(chance) : x;
    case VALUES_ZEROS:
        return 0;
    case VALUES_CONSTANT:
        return pair[0];
    case VALUES_TWO:
        return pair[chance_below(chance, 2)];
    case VALUES_WIDE: {
        int least = least_exponent[dtype];
        return ldexp(x, least + (int)chance_below(chance, (size_t)(-2 * least)));
    }
    case VALUES_SUBNORMAL:
        return ldexp(x, least_exponent[dtype] - 3);
    case VALUES_SPECIAL:
        return chance_in(chance, 1000) ? special_value(chance) : x;
    default:
        return x;
    }
}

static void store_real(enum mesa_dtype dtype, void *elements, size_t i, double x) {
    if (dtype == MESA_F64)
        memcpy((char *)elements + i * 8, &x, 8);
    else if (isfinite(x))
        element_store(dtype, elements, i, (float)x);
    else if (dtype == MESA_F32)
        ((float *)elements)[i] = (float)x;
    else
        ((uint16_t *)elements)[i] = dtype == MESA_BF16 ? bf16_round((float)x) : f16_round((float)x);
}

static uint64_t integer_value(struct chance *chance, enum values values, const uint64_t pair[2]) {
    switch (values) {
    case VALUES_NORMAL:
        return chance_below(chance, 200) - 100;
    case VALUES_OFFSET:
        return 100 + chance_below(chance, 7);
    case VALUES_RELU:
        return chance_in(chance, 2) ? 0 : chance_below(chance, 100);
    case VALUES_RARE:
        return chance_in(chance, 50) ? chance_next(chance) : 0;
    case VALUES_ZEROS:
        return 0;
    case VALUES_CONSTANT:
        return pair[0];
    case VALUES_TWO:
        return pair[chance_below(chance, 2)];
    case VALUES_WIDE:
        return chance_below(chance, 40000) - 20000;
    case VALUES_SUBNORMAL:
        return chance_below(chance, 2);
    default:
        return chance_next(chance);
    }
}

void values_fill(struct chance *chance, enum values values, enum mesa_dtype dtype, size_t n,
                 void *ret_elements) {
    double reals[2] = {chance_normal(chance), chance_in(chance, 3) ? NAN : 0};
    uint64_t integers[2] = {chance_next(chance), chance_next(chance)};
    size_t bytes = mesa_dtype_bytes(dtype);
    for (size_t i = 0; i < n; i++) {
        if (mesa_dtype_is_real(dtype) && values != VALUES_BITS) {
            store_real(dtype, ret_elements, i, real_value(chance, values, dtype, reals));
            continue;
        }
        for (size_t part = 0; part < bytes; part += 8) {
            uint64_t x = integer_value(chance, values, integers);
            if (dtype == MESA_BOOL)
                x &= 1;
            memcpy((char *)ret_elements + i * bytes + part, &x, bytes - part < 8 ? bytes : 8);
        }
    }
}

double value_at(enum mesa_dtype dtype, const void *elements, size_t i) {
    return element_load_double(dtype, elements, i);
}

/* ---- tensors ----------------------------------------------------------------------------------- */

/* Element i in dense order, counted out dim by dim. */
static size_t position(const struct mesa_source *source, size_t i) {
    size_t at = 0;
    for (int d = source->ndim - 1; d >= 0; d--) {
        size_t size = (size_t)source->sizes[d];
        at += i % size * (size_t)source->strides[d];
        i /= size;
    }
    return at;
}

void tensor_init_sizes(struct tensor *tensor, struct chance *chance, enum mesa_dtype dtype,
                       enum values values, int ndim, const int64_t *sizes, bool dense) {
    struct mesa_source *source = &tensor->source;
    size_t bytes = mesa_dtype_bytes(dtype);
    *source = (struct mesa_source){.dtype = dtype, .ndim = ndim, .elements = 1};
    int64_t stride = dense || !chance_in(chance, 4) ? 1 : 2;
    for (int d = ndim - 1; d >= 0; d--) {
        source->sizes[d] = sizes[d];
        source->strides[d] = stride;
        source->elements *= (size_t)sizes[d];
        stride *= sizes[d];
        if (!dense && chance_in(chance, 2))
            stride += (int64_t)chance_below(chance, 2 * (size_t)stride);
    }
    size_t lead = chance_below(chance, 64); /* elements before the first */
    size_t span = position(source, source->elements - 1) + 1;
    tensor->memory = malloc((lead + span) * bytes);
    tensor->dense = malloc(source->elements * bytes);
    values_fill(chance, values, dtype, lead + span, tensor->memory);
    source->data = (char *)tensor->memory + lead * bytes;
    for (size_t i = 0; i < source->elements; i++)
        memcpy((char *)tensor->dense + i * bytes,
               (const char *)source->data + position(source, i) * bytes, bytes);
}

void tensor_init(struct tensor *tensor, struct chance *chance, enum mesa_dtype dtype,
                 enum values values, size_t elements) {
    int64_t sizes[4] = {1, 1, 1, 1};
    int ndim = 1 + (int)chance_below(chance, 4);
    for (int d = ndim - 1; d > 0; d--) {
        sizes[d] = 1 + (int64_t)chance_below(chance, chance_in(chance, 2) ? 8 : 300);
        if ((size_t)sizes[d] > elements)
            sizes[d] = 1;
        elements /= (size_t)sizes[d];
    }
    sizes[0] = elements == 0 ? 1 : (int64_t)elements;
    tensor_init_sizes(tensor, chance, dtype, values, ndim, sizes, chance_in(chance, 3));
}

void tensor_done(struct tensor *tensor) {
    free(tensor->memory);
    free(tensor->dense);
}

/* ---- parallel loops ---------------------------------------------------------------------------- */

/* Pieces of grain, grain + 1, ... items, so that they end at unlike places; the odd ones first, and
 * backwards. */
void parallel_odd(size_t count, size_t grain, void (*body)(void *, size_t, size_t), void *context) {
    enum { MOST = 4096 };
    size_t ends[MOST], pieces = 0;
    for (size_t at = 0; at < count; pieces++) {
        size_t size = pieces == MOST - 1 ? count : grain + pieces;
        at = size > count - at ? count : at + size;
        ends[pieces] = at;
    }
    for (size_t odd = 2; odd-- > 0;)
        for (size_t piece = pieces; piece-- > 0;)
            if (piece % 2 == odd)
                body(context, piece == 0 ? 0 : ends[piece - 1], ends[piece]);
}

struct share {
    void (*body)(void *, size_t, size_t);
    void *context;
    size_t begin, end;
};

static void *run_share(void *argument) {
    const struct share *share = argument;
    if (share->begin < share->end)
        share->body(share->context, share->begin, share->end);
    return NULL;
}

void parallel_threads(size_t count, size_t grain, void (*body)(void *, size_t, size_t),
                      void *context) {
    enum { THREADS = 3 };
    (void)grain;
    pthread_t threads[THREADS];
    struct share shares[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        shares[i] = (struct share){body, context, count * i / THREADS, count * (i + 1) / THREADS};
        pthread_create(&threads[i], NULL, run_share, &shares[i]);
    }
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* ---- trials ------------------------------------------------------------------------------------ */

bool same_bytes(const void *a, const void *b, size_t bytes) {
    return memcmp(a, b, bytes) == 0;
}

/* `bytes` of `garbage` between guards. */
static uint8_t *guarded_alloc(size_t bytes, uint8_t garbage) {
    uint8_t *block = NULL;
    cr_assert(eq(int, posix_memalign((void **)&block, 64, bytes + 2 * GUARD_BYTES), 0));
    memset(block, GUARD, bytes + 2 * GUARD_BYTES);
    memset(block + GUARD_BYTES, garbage, bytes);
    return block + GUARD_BYTES;
}

static void guarded_check(const uint8_t *bytes, size_t size) {
    for (size_t i = 0; i < GUARD_BYTES; i++)
        cr_assert(bytes[-1 - (ptrdiff_t)i] == GUARD && bytes[size + i] == GUARD,
                  "a guard byte was overwritten");
}

static void guarded_free(uint8_t *bytes) {
    if (bytes != NULL)
        free(bytes - GUARD_BYTES);
}

static struct trial run_once(struct mesa_plan *plan, const struct tensor *tensor,
                             mesa_parallel_for *parallel, uint8_t garbage) {
    struct trial trial = {.status = MESA_DECLINED, .bound = plan->codec->bound_bytes(plan)};
    if (trial.bound == 0)
        return trial;
    uint8_t *held = guarded_alloc(trial.bound, garbage);
    trial.status = plan->codec->encode(plan, &tensor->source, parallel, held, &trial.used);
    guarded_check(held, trial.bound);
    if (plan->codec->may_fit != NULL && !plan->codec->may_fit(plan, &tensor->source)) {
        cr_assert(trial.status == MESA_DECLINED || !plan->codec->exact,
                  "a way that is exact was ruled out");
        trial.status = MESA_DECLINED;
    }
    if (trial.status != MESA_OK) {
        guarded_free(held);
        return trial;
    }
    cr_assert(trial.used <= trial.bound && trial.used > 0);

    /* What is not used may be gone when decode() runs: no guard, for the address sanitizer. */
    cr_assert(eq(int, posix_memalign((void **)&trial.held, 64, trial.used), 0));
    memcpy(trial.held, held, trial.used);
    guarded_free(held);
    size_t bytes = plan->elements * mesa_dtype_bytes(plan->dtype);
    trial.decoded = guarded_alloc(bytes, garbage);
    plan->codec->decode(plan, trial.held, parallel, trial.decoded);
    guarded_check(trial.decoded, bytes);
    return trial;
}

struct trial trial_run(struct mesa_plan *plan, const struct tensor *tensor) {
    static mesa_parallel_for *const loops[] = {parallel_odd, parallel_threads};
    plan->dtype = tensor->source.dtype;
    plan->elements = tensor->source.elements;
    size_t bytes = plan->elements * mesa_dtype_bytes(plan->dtype);
    struct trial serial = run_once(plan, tensor, NULL, 0x11);
    for (size_t i = 0; i < 2; i++) {
        struct mesa_plan again = *plan;
        memset(again.found, 0xee, sizeof again.found);
        struct trial other = run_once(&again, tensor, loops[i], 0xee);
        cr_assert(eq(int, (int)other.status, (int)serial.status));
        if (serial.status == MESA_OK) {
            cr_assert(eq(sz, other.used, serial.used));
            cr_assert(same_bytes(other.held, serial.held, serial.used), "held bytes differ");
            cr_assert(same_bytes(other.decoded, serial.decoded, bytes), "decoded bytes differ");
        }
        trial_done(&other);
    }
    return serial;
}

void trial_done(struct trial *trial) {
    free(trial->held);
    guarded_free(trial->decoded);
}
