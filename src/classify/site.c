/* Sites by return address. The first saves from an address are traced up the stack; once its op is sure
 * and its argument told, a look-up is one probe of a hash table. Some addresses serve many ops (the
 * helper for tensor lists, C++ autograd functions): those are traced for each save, and keep a short
 * list of sites.
 *
 * SPDX-License-Identifier: MIT */
#include "classify/site.h"

#include "classify/address_map.h"
#include "classify/loader.h"
#include "classify/order.h"
#include "classify/trace.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_SITES = 4096,
    SURE = 3, /* traces that must agree before an address is believed to serve one op only */
    MOST_CALIBRATED = 2 * MESA_ORDER_MOST,
};

enum spot_state {
    SPOT_NEW,    /* op not known */
    SPOT_DIRECT, /* code of one op */
    SPOT_SHARED, /* code that many ops or functions go through */
    SPOT_PYTHON, /* what all functions written in Python go through */
};

/* A site and where it is chained. Const after publication, but for site.use. */
struct spot_site {
    struct spot_site *next; /* older one of the same spot */
    struct mesa_site site;
    char name[]; /* what site.op points to where that is no string of the op table */
};

/* What is known of one return address. Lives for ever. */
struct spot {
    struct mesa_caller caller;         /* first: spots are handed to order.c as callers */
    _Atomic(struct mesa_site *) ready; /* the answer, once it will not change */
    _Atomic(enum spot_state) state;
    _Atomic(const struct mesa_op *) op; /* DIRECT, or calibrated */
    _Atomic bool is_inplace;
    _Atomic unsigned traces; /* DIRECT: how many agreed */
    _Atomic unsigned visits; /* NEW: saves so far */
    _Atomic(struct spot_site *) sites;
};

static struct mesa_address_map spots = MESA_ADDRESS_MAP_INITIALIZER;

static pthread_mutex_t sites_lock = PTHREAD_MUTEX_INITIALIZER; /* of those who make sites, and of
                                                                  settle() */
static _Atomic(struct mesa_site *) sites[MOST_SITES];
static uint32_t site_count; /* guarded by sites_lock */

/* Saves of the calling thread. */
struct thread {
    struct mesa_order order;
    const struct mesa_op *calibrated; /* op between calibrate_begin and _end, or NULL */
    unsigned count[2];
    struct mesa_caller *callers[2][MOST_CALIBRATED];
    char function[MESA_MOST_CLASS_NAME]; /* not terminated */
    size_t function_length;
};
static _Thread_local struct thread thread __attribute__((tls_model("initial-exec")));

/* ---- making sites ---- */

/* The site of last resort: there was no memory, or there are too many sites. */
static struct mesa_site nowhere = {
    .kind = MESA_SITE_UNKNOWN, .op = "unknown", .argument = "?", .index = UINT32_MAX};

/* Holds sites_lock. The last place is kept for `nowhere`. */
static bool register_site(struct mesa_site *site) {
    if (site_count >= MOST_SITES - (site == &nowhere ? 0 : 1))
        return false;
    site->index = site_count;
    atomic_store_explicit(&sites[site_count++], site, memory_order_release);
    return true;
}

static struct mesa_site *last_resort(void) {
    pthread_mutex_lock(&sites_lock);
    if (nowhere.index == UINT32_MAX)
        register_site(&nowhere);
    pthread_mutex_unlock(&sites_lock);
    return &nowhere;
}

static struct mesa_site *find_site(struct spot *spot, const struct mesa_site *wanted,
                                   size_t length) {
    struct spot_site *entry = atomic_load_explicit(&spot->sites, memory_order_acquire);
    for (; entry; entry = entry->next)
        if (entry->site.kind == wanted->kind && entry->site.row == wanted->row &&
            entry->site.is_inplace == wanted->is_inplace &&
            strncmp(entry->site.op, wanted->op, length) == 0 && entry->site.op[length] == '\0')
            return &entry->site;
    return NULL;
}

/* The spot's site like `wanted`, whose `op` is `length` bytes long; made if there is none. */
static struct mesa_site *site_like(struct spot *spot, const struct mesa_site *wanted,
                                   size_t length) {
    struct mesa_site *found = find_site(spot, wanted, length);
    if (found)
        return found;
    struct spot_site *entry = malloc(sizeof *entry + length + 1);
    if (!entry)
        return last_resort();
    memcpy(entry->name, wanted->op, length);
    entry->name[length] = '\0';
    entry->site = *wanted;
    entry->site.op = wanted->row ? wanted->row->op : entry->name;
    pthread_mutex_lock(&sites_lock);
    found = find_site(spot, wanted, length);
    if (!found && register_site(&entry->site)) {
        found = &entry->site;
        entry->next = atomic_load_explicit(&spot->sites, memory_order_relaxed);
        atomic_store_explicit(&spot->sites, entry, memory_order_release);
    }
    pthread_mutex_unlock(&sites_lock);
    if (found != &entry->site)
        free(entry);
    return found ? found : last_resort();
}

/* `row` may be one that stands for all inputs or results of `op`. */
static struct mesa_site *op_site(struct spot *spot, const struct mesa_op *op, bool is_inplace,
                                 const struct mesa_op_argument *row) {
    struct mesa_site wanted = {
        .op = op->name, .argument = row->argument, .row = row, .is_inplace = is_inplace};
    wanted.kind = mesa_order_is_row_of(row, op) ? MESA_SITE_OP : MESA_SITE_PARTIAL;
    return site_like(spot, &wanted, strlen(op->name));
}

static struct mesa_site *named_site(struct spot *spot, enum mesa_site_kind kind, const char *name,
                                    size_t length) {
    struct mesa_site wanted = {
        .kind = kind, .op = name, .argument = kind == MESA_SITE_CUSTOM ? "saved" : "?"};
    return site_like(spot, &wanted, length);
}

/* What holds for a save of `op` if one cannot tell which. A save that the table does not foresee
 * (a result of an op that saves none) is not described by it. */
static struct mesa_site *partial_site(struct spot *spot, const struct mesa_op *op, bool is_inplace,
                                      const struct mesa_save *save) {
    const struct mesa_op_argument *row = save->is_output ? op->any_result : op->any_input;
    if (!row)
        return named_site(spot, MESA_SITE_UNKNOWN, op->name, strlen(op->name));
    return op_site(spot, op, is_inplace, row);
}

/* ---- telling what a spot is ---- */

static struct spot *spot_at(uintptr_t address) {
    struct spot *spot = mesa_address_map_get(&spots, address);
    if (spot || address == 0)
        return spot;
    struct spot *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    spot = mesa_address_map_put(&spots, address, made);
    if (spot != made)
        free(made);
    return spot;
}

/* The code of one op: order tells the argument. */
static struct mesa_site *resolve_direct(struct spot *spot, const struct mesa_op *op,
                                        bool is_inplace, const struct mesa_save *save) {
    mesa_order_follow(&thread.order, op, is_inplace, save->stack, save->is_output, &spot->caller);
    const struct mesa_op_argument *row = atomic_load(&spot->caller.row);
    if (!row || !mesa_order_is_row_of(row, op) || row->is_result != save->is_output)
        return partial_site(spot, op, is_inplace, save);
    struct mesa_site *site = op_site(spot, op, is_inplace, row);
    if (atomic_load(&spot->state) == SPOT_DIRECT && atomic_load(&spot->traces) >= SURE)
        atomic_store_explicit(&spot->ready, site, memory_order_release);
    return site;
}

/* An op with a tensor list among its inputs. A helper saves the list, from one address for all ops;
 * where the op saves other inputs besides, nothing tells its code from the helper's. */
static struct mesa_site *resolve_with_list(struct spot *spot, const struct mesa_trace *trace,
                                           const struct mesa_save *save) {
    const struct mesa_op *op = trace->op;
    mesa_order_break(&thread.order);
    if (op->inputs == 1)
        return op_site(spot, op, trace->is_inplace, &op->arguments[0]);
    return partial_site(spot, op, trace->is_inplace, save);
}

static bool has_list(const struct mesa_op *op) {
    for (size_t i = 0; i < op->inputs; i++)
        if (op->arguments[i].is_list)
            return true;
    return false;
}

/* The first trace that shows an op of the table settles what a new spot is. */
static void settle(struct spot *spot, const struct mesa_trace *trace) {
    pthread_mutex_lock(&sites_lock);
    if (atomic_load(&spot->state) == SPOT_NEW) {
        if (atomic_load(&spot->op) !=
            trace->op) /* never calibrated, or with other code than meant */
            atomic_store(&spot->caller.row, NULL);
        atomic_store(&spot->op, trace->op);
        atomic_store(&spot->is_inplace, trace->is_inplace);
        atomic_store(&spot->traces, 0);
        atomic_store(&spot->state, SPOT_DIRECT);
    }
    pthread_mutex_unlock(&sites_lock);
}

static struct mesa_site *resolve_table_op(struct spot *spot, const struct mesa_trace *trace,
                                          const struct mesa_save *save) {
    const struct mesa_op *op = trace->op;
    if (!save->is_output && has_list(op)) {
        atomic_store(&spot->state, SPOT_SHARED);
        return resolve_with_list(spot, trace, save);
    }
    if (atomic_load(&spot->state) == SPOT_NEW)
        settle(spot, trace);
    if (atomic_load(&spot->op) != op || atomic_load(&spot->is_inplace) != trace->is_inplace) {
        atomic_store(&spot->state, SPOT_SHARED);
        atomic_store(&spot->ready, NULL);
    }
    if (atomic_load(&spot->state) == SPOT_SHARED) {
        mesa_order_lose(&thread.order, save->stack);
        return partial_site(spot, op, trace->is_inplace, save);
    }
    atomic_fetch_add(&spot->traces, 1);
    return resolve_direct(spot, op, trace->is_inplace, save);
}

/* A function written in Python, or a compiled graph. */
static struct mesa_site *resolve_python(struct spot *spot) {
    mesa_order_break(&thread.order);
    if (thread.function_length == 0)
        return named_site(spot, MESA_SITE_CUSTOM, "custom", strlen("custom"));
    return named_site(spot, MESA_SITE_CUSTOM, thread.function, thread.function_length);
}

static struct mesa_site *resolve_trace(struct spot *spot, const struct mesa_trace *trace,
                                       const struct mesa_save *save) {
    const struct mesa_op *known = atomic_load(&spot->op);
    if (trace->kind == MESA_TRACE_OP && trace->op)
        return resolve_table_op(spot, trace, save);
    if (trace->kind == MESA_TRACE_NOTHING && known && atomic_load(&spot->state) != SPOT_SHARED)
        return resolve_direct(spot, known, atomic_load(&spot->is_inplace), save);
    if (trace->kind == MESA_TRACE_NOTHING) {
        mesa_order_lose(&thread.order, save->stack);
        return named_site(spot, MESA_SITE_UNKNOWN, "unknown", strlen("unknown"));
    }
    if (trace->kind == MESA_TRACE_PYTHON) {
        atomic_store(&spot->state, SPOT_PYTHON);
        return resolve_python(spot);
    }
    mesa_order_break(&thread.order);
    atomic_store(&spot->state, SPOT_SHARED);
    if (trace->kind == MESA_TRACE_OP)
        return named_site(spot, MESA_SITE_UNKNOWN, trace->name, trace->length);
    if (trace->length == 0)
        return named_site(spot, MESA_SITE_CUSTOM, "custom", strlen("custom"));
    return named_site(spot, MESA_SITE_CUSTOM, trace->name, trace->length);
}

/* Whether this save should be traced. Addresses that only the boxed interface calls never show an op:
 * after some visits only the 2nd, 4th, 8th ... is worth another look. */
static bool is_worth_tracing(struct spot *spot) {
    switch (atomic_load(&spot->state)) {
    case SPOT_SHARED:
        return true;
    case SPOT_DIRECT:
        return atomic_load(&spot->traces) < SURE;
    case SPOT_PYTHON:
        return false;
    case SPOT_NEW:
        break;
    }
    unsigned visits = atomic_fetch_add(&spot->visits, 1) + 1;
    return (visits & (visits - 1)) == 0;
}

static struct mesa_site *resolve(const struct mesa_save *save) {
    struct spot *spot = spot_at(save->return_address);
    if (!spot)
        return last_resort();
    if (atomic_load(&spot->state) == SPOT_PYTHON)
        return resolve_python(spot);
    struct mesa_trace trace = {.kind = MESA_TRACE_NOTHING};
    if (is_worth_tracing(spot))
        trace = mesa_trace_of(save->return_address);
    return resolve_trace(spot, &trace, save);
}

/* The end of the fast path: keeps the order of saves right. */
static inline void follow_ready(struct spot *spot, const struct mesa_site *site,
                                const struct mesa_save *save) {
    const struct mesa_op *op = atomic_load_explicit(&spot->op, memory_order_relaxed);
    if (site->kind == MESA_SITE_OP)
        mesa_order_follow(&thread.order, op, site->is_inplace, save->stack, save->is_output,
                          &spot->caller);
    else
        mesa_order_break(&thread.order);
}

/* ---- calibration ---- */

static void calibrate_save(const struct mesa_save *save) {
    struct spot *spot = spot_at(save->return_address);
    unsigned *count = &thread.count[save->is_output];
    /* One too many makes the number wrong, so that nothing is labelled. */
    if (spot && *count < MOST_CALIBRATED)
        thread.callers[save->is_output][(*count)++] = &spot->caller;
    else
        *count = MOST_CALIBRATED;
}

void mesa_site_calibrate_begin(const struct mesa_op *op) {
    thread.calibrated = op;
    thread.count[0] = thread.count[1] = 0;
}

void mesa_site_calibrate_end(void) {
    const struct mesa_op *op = thread.calibrated;
    thread.calibrated = NULL;
    if (!op)
        return;
    for (int is_output = 0; is_output < 2; is_output++) {
        for (unsigned k = 0; k < thread.count[is_output]; k++) {
            struct spot *spot = (struct spot *)thread.callers[is_output][k];
            const struct mesa_op *none = NULL;
            atomic_compare_exchange_strong(&spot->op, &none, op);
        }
        mesa_order_label_all(op, is_output, thread.callers[is_output], thread.count[is_output]);
    }
}

/* ---- the interface ---- */

struct mesa_site *mesa_site_of(const struct mesa_save *save) {
    if (thread.calibrated) {
        calibrate_save(save);
        return &nowhere;
    }
    struct spot *spot = mesa_address_map_get(&spots, save->return_address);
    if (spot) {
        struct mesa_site *site = atomic_load_explicit(&spot->ready, memory_order_acquire);
        if (site) {
            follow_ready(spot, site, save);
            return site;
        }
    }
    int saved_errno = errno;
    struct mesa_site *site = resolve(save);
    errno = saved_errno;
    return site;
}

void mesa_site_note(const struct mesa_save *save) {
    if (thread.calibrated) {
        calibrate_save(save);
        return;
    }
    /* The first saves from an address are traced here as well: of which op they are counts for the
     * saves that follow. A shared one takes no part in any order. */
    struct spot *spot = mesa_address_map_get(&spots, save->return_address);
    enum spot_state state =
        spot ? atomic_load_explicit(&spot->state, memory_order_relaxed) : SPOT_NEW;
    if (state == SPOT_SHARED)
        mesa_order_lose(&thread.order, save->stack);
    else if (state == SPOT_PYTHON)
        mesa_order_break(&thread.order);
    else
        mesa_site_of(save);
}

void mesa_site_missed(const struct mesa_save *save) {
    mesa_order_lose(&thread.order, save->stack);
}

void mesa_site_function(const char *name, size_t length) {
    thread.function_length = length < sizeof thread.function ? length : sizeof thread.function;
    memcpy(thread.function, name, thread.function_length);
}

void mesa_site_be_careful(void) {
    mesa_order_be_careful();
}

struct mesa_site *mesa_site_at(uint32_t index) {
    return index < MOST_SITES ? atomic_load_explicit(&sites[index], memory_order_acquire) : NULL;
}

void mesa_site_prefork(void) {
    mesa_loader_prefork();
    pthread_mutex_lock(&spots.lock);
    pthread_mutex_lock(&sites_lock);
}

static void unlock_all(void) {
    pthread_mutex_unlock(&sites_lock);
    pthread_mutex_unlock(&spots.lock);
}

void mesa_site_postfork_parent(void) {
    unlock_all();
    mesa_loader_postfork_parent();
}

void mesa_site_postfork_child(void) {
    unlock_all();
    mesa_loader_postfork_child();
}
