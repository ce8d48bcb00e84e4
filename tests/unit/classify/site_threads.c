/* Sites under threads and forks: every thread meets every place for the first time at once, and must be
 * given the same sites, rightly named. A plain program, so that the thread sanitizer can watch it.
 *
 * SPDX-License-Identifier: MIT */
#include "classify/site.h"
#include "fake_torch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 400, FORKS = 20, ALL = 31 };

static _Atomic bool is_over;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static void check_site(int k, const char *op, const char *argument) {
    struct mesa_site *site = fake_saves.sites[k];
    if (strcmp(site->op, op) != 0 || strcmp(site->argument, argument) != 0) {
        fprintf(stderr, "%s.%s is taken for %s.%s\n", op, argument, site->op, site->argument);
        _exit(1);
    }
    CHECK(mesa_site_at(site->index) == site);
}

static void run(void (*op)(unsigned), unsigned saved) {
    fake_reset();
    op(saved);
    __asm__ volatile("" : : : "memory");
}

static void do_round(void) {
    static const char *const arguments[] = {"bias", "input", "weight", "result1", "result2"};
    run(fake_layer_norm, ALL);
    for (int k = 0; k < 5; k++)
        check_site(k, "native_layer_norm", arguments[k]);
    run(fake_relu, ALL);
    check_site(0, "relu", "result");
    run(fake_mm, 1);
    check_site(0, "mm", "mat2"); /* calibrated before the threads started */
    run(fake_mm, 2);
    check_site(0, "mm", "self");
    run(fake_mul, 3);
    check_site(0, "mul", "?");
    run(fake_index, 2);
    check_site(1, "index", "indices");
    run(fake_index_put, 1);
    check_site(0, "index_put", "indices");
    run(fake_cpp_function, 1);
    check_site(0, "MyNorm", "saved");
    run(fake_unheard_of, 1);
    check_site(0, "frobnicate_Tensor", "?");
    run(fake_max_dim, 1);
    check_site(0, "max", "indices");
}

/* The caller's own record is set once, by whoever comes first. */
static void claim(struct mesa_site *site) {
    void *none = NULL;
    atomic_compare_exchange_strong(&site->use, &none, site);
    CHECK(atomic_load(&site->use) == site);
}

static void *work(void *unused) {
    for (int i = 0; i < ROUNDS; i++) {
        do_round();
        for (uint32_t k = 0; mesa_site_at(k); k++)
            claim(mesa_site_at(k));
    }
    return unused;
}

static void *work_until_over(void *unused) {
    while (!atomic_load(&is_over))
        do_round();
    return unused;
}

static void start_all(pthread_t *threads, void *(*body)(void *)) {
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, body, NULL) == 0);
}

static void join_all(pthread_t *threads) {
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_atfork(mesa_site_prefork, mesa_site_postfork_parent, mesa_site_postfork_child);
    mesa_site_calibrate_begin(mesa_op_find("mm", 2));
    run(fake_mm, 3);
    mesa_site_calibrate_end();
    /* libunwind makes its tables when it is first used, in a way that TSan cannot follow. */
    run(fake_unheard_of, 1);

    start_all(threads, work);
    join_all(threads);
    uint32_t count = 0;
    while (mesa_site_at(count))
        count++;
    CHECK(count == 15);

    start_all(threads, work_until_over);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            do_round();
            run(fake_div, 1); /* new to the child */
            check_site(0, "div", "?");
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    atomic_store(&is_over, true);
    join_all(threads);
    return 0;
}
