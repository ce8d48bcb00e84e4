/* The report is written by atexit(), which runs in whatever thread ends the process, while daemon
 * threads may still train: it only reads counters. A forked child (a DataLoader's worker) starts with
 * an empty ledger and reports only if it trains itself.
 *
 * SPDX-License-Identifier: MIT */
#include "preload/leave.h"

#include "classify/site.h"
#include "preload/start.h"
#include "report/report.h"
#include "torch/saved.h"
#include "vault/arena.h"
#include "vault/mapping.h"
#include "vault/registry.h"
#include "vault/tensor_memory.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>

static pthread_mutex_t reporting = PTHREAD_MUTEX_INITIALIZER;

void mesa_leave_report(void) {
    struct mesa_run run;
    pthread_mutex_lock(&reporting);
    mesa_saved_sweep();
    mesa_start_describe_run(&run);
    mesa_report_write(mesa_start_report_target(), &run);
    pthread_mutex_unlock(&reporting);
}

/* A signal handler may not format: it wakes a thread that sleeps for nothing else. */
static sem_t asked;

static void on_signal(int number) {
    (void)number;
    int before = errno;
    sem_post(&asked);
    errno = before;
}

static void *report_when_asked(void *unused) {
    for (;;)
        if (sem_wait(&asked) == 0)
            mesa_leave_report();
    return unused;
}

static void listen_for_signal(void) {
    struct sigaction current, ours = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    if (sigaction(SIGUSR2, NULL, &current) != 0 || (current.sa_flags & SA_SIGINFO) != 0 ||
        current.sa_handler != SIG_DFL || sem_init(&asked, 0, 0) != 0)
        return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* the thread takes no signals of the program's */
    pthread_t thread;
    if (pthread_create(&thread, NULL, report_when_asked, NULL) == 0) {
        pthread_detach(thread);
        sigaction(SIGUSR2, &ours, NULL);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* In the order of the lock ranks: what is taken first is released last. */
static void prefork(void) {
    pthread_mutex_lock(&reporting);
    mesa_site_prefork();
    mesa_registry_prefork();
    mesa_arena_prefork();
    mesa_tensor_memory_prefork();
    mesa_mapping_prefork();
    mesa_ledger_prefork();
}

static void postfork_parent(void) {
    mesa_ledger_postfork_parent();
    mesa_mapping_postfork_parent();
    mesa_tensor_memory_postfork_parent();
    mesa_arena_postfork_parent();
    mesa_registry_postfork_parent();
    mesa_site_postfork_parent();
    pthread_mutex_unlock(&reporting);
}

static void postfork_child(void) {
    mesa_ledger_postfork_child();
    mesa_mapping_postfork_child();
    mesa_tensor_memory_postfork_child();
    mesa_arena_postfork_child();
    mesa_registry_postfork_child();
    mesa_site_postfork_child();
    pthread_mutex_unlock(&reporting);
    signal(SIGUSR2, SIG_DFL); /* the listening thread was not copied */
}

void mesa_leave_install(void) {
    pthread_atfork(prefork, postfork_parent, postfork_child);
    atexit(mesa_leave_report);
    listen_for_signal();
}
