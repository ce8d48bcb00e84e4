/* From the first SavedVariable to an armed library: bind, read the environment, prove the facts, label
 * the sites. One thread does it while the others pass through; a thread in the middle of a dispatch
 * mode or a functorch transform leaves it to a later save.
 *
 * SPDX-License-Identifier: MIT */
#include "preload/start.h"

#include "classify/site.h"
#include "mesa.h"
#include "preload/leave.h"
#include "preload/settings.h"
#include "preload/tensor_alloc.h"
#include "torch/calibrate.h"
#include "torch/config.h"
#include "torch/hook.h"
#include "torch/saved.h"
#include "vault/registry.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_once_t bound = PTHREAD_ONCE_INIT;
static bool usable; /* bound, and the environment is in order */
static char why_aside[320];
static struct mesa_environment environment;
static struct timespec started;
static pid_t own_process;
static char command[512];

const char *mesa_start_why(void) {
    return why_aside;
}

static void step_aside(const char *why) {
    snprintf(why_aside, sizeof why_aside, "%s", why);
    atomic_store_explicit(&mesa_torch_state, MESA_TORCH_ASIDE, memory_order_release);
    if (environment.strict) {
        mesa_log(MESA_LOG_ERROR, "%s; MESA_STRICT=1: not running without libmesa", why);
        _exit(2);
    }
    mesa_log(MESA_LOG_ERROR, "%s; this process runs as if libmesa were not there", why);
}

/* Without the originals nothing can go on: whoever called us called into a libtorch that we cannot
 * find again. */
static void bind_constructors_alone(void) {
    if (mesa_torch.saved_from_tensor != NULL && mesa_torch.saved_from_optional != NULL &&
        mesa_torch.saved_register_hooks != NULL)
        return;
    mesa_log(MESA_LOG_ERROR, "%s, and no other SavedVariable was found; cannot go on", why_aside);
    abort();
}

static void read_command(void) {
    FILE *file = fopen("/proc/self/cmdline", "re");
    if (file == NULL)
        return;
    size_t length = fread(command, 1, sizeof command - 1, file);
    fclose(file);
    while (length > 0 && command[length - 1] == '\0')
        length--;
    for (size_t i = 0; i < length; i++)
        if (command[i] == '\0')
            command[i] = ' ';
    command[length] = '\0';
}

static void configure(void) {
    mesa_kernels_init(environment.isa);
    mesa_config.policy = environment.policy;
    mesa_config.min_bytes = environment.min_bytes;
    mesa_config.seed = environment.seed;
    mesa_config.verify = environment.verify;
    mesa_config.explain = environment.explain;
    mesa_config.checksums = environment.verify || MESA_CHECKSUMS;
    const struct mesa_storage_calls calls = {mesa_storage_ref_weak, mesa_storage_unref_weak,
                                             mesa_storage_is_alive};
    mesa_registry_init(&calls);
    mesa_hook_init();
    read_command();
    clock_gettime(CLOCK_MONOTONIC, &started);
    own_process = getpid();
}

static void bind(void) {
    char why[256];
    bool in_order = mesa_environment_read(&environment);
    if (mesa_torch_bind(why, sizeof why) != MESA_OK) {
        step_aside(why);
        bind_constructors_alone();
    } else if (!in_order) {
        step_aside("the settings above are not in order");
    } else if (mesa_policy_is_off(environment.policy)) {
        atomic_store_explicit(&mesa_torch_state, MESA_TORCH_ASIDE, memory_order_release);
    } else {
        configure();
        usable = true;
    }
}

static void arm(void) {
    char why[256];
    mesa_torch_inside = true;
    enum mesa_status status = mesa_torch_self_test(why, sizeof why);
    if (status == MESA_OK) {
        /* The op table was compared with these versions; others may save in another order. */
        if (strncmp(mesa_torch.version, "2.13.", 5) != 0 &&
            strncmp(mesa_torch.version, "2.14.", 5) != 0)
            mesa_site_be_careful();
        mesa_calibrate();
    }
    mesa_torch_inside = false;
    if (status != MESA_OK) {
        char line[320];
        snprintf(line, sizeof line, "self-test with torch %s: %s", mesa_torch.version, why);
        step_aside(line);
        return;
    }
    mesa_leave_install();
    if (environment.heap && !mesa_policy_keeps_all(environment.policy))
        mesa_tensor_alloc_start();
    mesa_log(MESA_LOG_INFO, "libmesa " MESA_VERSION " with torch %s, policy %s, %s kernels",
             mesa_torch.version, mesa_policy_name(mesa_config.policy), mesa_kernels.name);
    atomic_store_explicit(&mesa_torch_state, MESA_TORCH_ARMED, memory_order_release);
}

void mesa_start_bind(void) {
    pthread_once(&bound, bind);
}

/* Whether a SavedVariable shows its tensor in its first words: then the program has set no default hooks
 * in this thread, which would be called for the self-test's tensors too. An input is shown itself; an
 * output as a detached copy, another object of the same class over the same storage. Offsets are not
 * known yet, so both are compared by value. */
static bool shows(const void *const *saved, const struct mesa_tensor *tensor) {
    /* In words; a storage is early in an impl. */
    enum { FIRST_FIELDS = 2, IMPL_BEGIN = 2, IMPL_END = 5 };
    const void *const *own = tensor->impl;
    for (int i = 0; i < FIRST_FIELDS; i++) {
        if (saved[i] == tensor->impl)
            return true;
        if (!mesa_looks_like_pointer(saved[i]) || *(const void *const *)saved[i] != own[0])
            continue;
        const void *const *copy = saved[i];
        for (int word = IMPL_BEGIN; word < IMPL_END; word++)
            if (mesa_looks_like_pointer(copy[word]) && copy[word] == own[word])
                return true;
    }
    return false;
}

void mesa_start_try(const void *saved, const struct mesa_tensor *tensor,
                    const struct mesa_save *save) {
    if (mesa_calibrating)
        (void)mesa_site_of(save);
    if (!usable || mesa_torch_inside)
        return;
    int unseen = MESA_TORCH_UNSEEN;
    if (tensor != NULL && shows(saved, tensor) && mesa_torch_thread_is_plain() &&
        atomic_compare_exchange_strong(&mesa_torch_state, &unseen, MESA_TORCH_TESTING))
        arm();
    mesa_site_missed(save);
}

bool mesa_start_is_own_process(void) {
    return own_process == getpid();
}

const struct mesa_report_target *mesa_start_report_target(void) {
    return &environment.report;
}

void mesa_start_describe_run(struct mesa_run *ret_run) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *ret_run = (struct mesa_run){
        .version = MESA_VERSION,
        .torch_version = mesa_torch.version,
        .isa = mesa_kernels.name,
        .policy = mesa_policy_name(mesa_config.policy),
        .command = command,
        .seconds =
            (double)(now.tv_sec - started.tv_sec) + (double)(now.tv_nsec - started.tv_nsec) * 1e-9,
        .threads = (unsigned)mesa_torch.thread_count(),
        .verified = mesa_config.verify,
    };
}
