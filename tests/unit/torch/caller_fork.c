/* A child may ask who its caller is, whatever other threads asked of the dynamic linker and of libunwind
 * at the moment of the fork: it must not find their locks taken.
 *
 * SPDX-License-Identifier: MIT */
#include "classify/site.h"
#include "torch/caller.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 3, FORKS = 300, SECONDS = 20 };

static _Atomic bool is_over;

static void *ask_on(void *unused) {
    while (!is_over)
        (void)mesa_caller_is_program();
    return unused;
}

/* By SIGKILL, because libunwind waits for its lock with all other signals blocked. */
static int wait_or_kill(pid_t child) {
    int status;
    for (int i = 0; i < SECONDS * 1000; i++) {
        if (waitpid(child, &status, WNOHANG) == child)
            return status;
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return status;
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_atfork(mesa_site_prefork, mesa_site_postfork_parent, mesa_site_postfork_child);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, ask_on, NULL);
    int status = 0;
    for (int i = 0; i < FORKS && status == 0; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(mesa_caller_is_program());
        status = wait_or_kill(child);
        if (status != 0)
            fprintf(stderr, "child %d of %d ended with status %d\n", i, FORKS, status);
    }
    is_over = true;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return status != 0;
}
