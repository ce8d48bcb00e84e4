/* Growing, writing and renaming, with the errors that a full or closed world gives.
 *
 * SPDX-License-Identifier: MIT */
#include "report/buffer.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[64];

static void make_directory(void) {
    snprintf(directory, sizeof directory, "/tmp/mesa-buffer-XXXXXX");
    cr_assert(ne(ptr, mkdtemp(directory), NULL));
}

static void remove_directory(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    cr_assert(eq(int, system(command), 0));
}

static const char *path_of(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static int count_files(void) {
    int count = -2; /* "." and ".." */
    DIR *open_directory = opendir(directory);
    while (readdir(open_directory) != NULL)
        count++;
    closedir(open_directory);
    return count;
}

TestSuite(buffer, .init = make_directory, .fini = remove_directory, .timeout = 60);

Test(buffer, grows_by_any_amount) {
    struct mesa_buffer buffer = {0};
    size_t length = 0;
    char *long_text = malloc(100001);
    memset(long_text, 'x', 100000);
    long_text[100000] = '\0';
    for (size_t i = 0; i < 100000; i = i * 3 + 1) {
        mesa_buffer_append(&buffer, long_text, i);
        mesa_buffer_print(&buffer, "%s|%zu", long_text + 100000 - i, i);
        length += 2 * i + 1 + (size_t)snprintf(NULL, 0, "%zu", i);
        cr_assert(eq(sz, buffer.length, length));
        cr_assert(eq(sz, strlen(buffer.bytes), length));
    }
    free(long_text);
    mesa_buffer_done(&buffer);
    cr_assert(eq(ptr, buffer.bytes, NULL));
}

Test(buffer, formats_in_the_c_locale) {
    char text[32];
    cr_assert(eq(str, mesa_print_into(text, sizeof text, "%.2f", 1234.5), "1234.50"));
    cr_assert(eq(str, mesa_print_into(text, 4, "%d", 123456), "123"));
}

Test(buffer, reports_a_full_device) {
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    cr_assert(ge(int, fd, 0));
    cr_assert(eq(int, mesa_write_all(fd, "x", 1), ENOSPC));
    close(fd);
}

/* The default action of both signals would end this test. */
Test(buffer, takes_no_signal_from_a_closed_pipe_or_a_size_limit) {
    int ends[2];
    cr_assert(eq(int, pipe(ends), 0));
    close(ends[0]);
    cr_assert(eq(int, mesa_write_all(ends[1], "x", 1), EPIPE));
    const struct rlimit limit = {4096, 4096};
    cr_assert(eq(int, setrlimit(RLIMIT_FSIZE, &limit), 0));
    char *contents = calloc(1, 10000);
    cr_assert(eq(int, mesa_write_file(path_of("big.json"), contents, 10000), EFBIG));
    cr_assert(eq(int, count_files(), 0));
    cr_assert(eq(int, mesa_write_file(path_of("small.json"), contents, 4096), 0));
    free(contents);
    sigset_t pending, mask;
    sigpending(&pending);
    cr_assert(eq(int, sigismember(&pending, SIGPIPE), 0));
    cr_assert(eq(int, sigismember(&pending, SIGXFSZ), 0));
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    cr_assert(eq(int, sigismember(&mask, SIGPIPE), 0));
}

Test(buffer, leaves_a_pending_signal_to_the_program) {
    int ends[2];
    sigset_t pipe_only, pending;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_only, NULL);
    raise(SIGPIPE);
    cr_assert(eq(int, pipe(ends), 0));
    close(ends[0]);
    cr_assert(eq(int, mesa_write_all(ends[1], "x", 1), EPIPE));
    sigpending(&pending);
    cr_assert(eq(int, sigismember(&pending, SIGPIPE), 1));
}

static atomic_int interruptions;

static void count_interruption(int signal) {
    (void)signal;
    atomic_fetch_add(&interruptions, 1);
}

/* Lets the pipe fill up and the writer be interrupted in it a few times before it reads. */
static void *read_late(void *context) {
    int fd = *(int *)context;
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm_only, NULL); /* the writer is the one to be interrupted */
    while (atomic_load(&interruptions) < 5)
        sched_yield();
    char *all = malloc(1 << 20);
    size_t length = 0;
    for (;;) {
        ssize_t count = read(fd, all + length, 10007);
        if (count <= 0)
            break;
        length += (size_t)count;
    }
    size_t wrong = length == 1000000 ? 0 : 1;
    for (size_t i = 0; i < length; i++)
        wrong += all[i] != (char)(i % 251);
    free(all);
    return (void *)wrong;
}

/* A pipe takes 64 KiB at a time; a timer interrupts the writes. */
Test(buffer, writes_through_short_writes_and_signals) {
    int ends[2];
    pthread_t reader;
    char *bytes = malloc(1000000);
    for (size_t i = 0; i < 1000000; i++)
        bytes[i] = (char)(i % 251);
    cr_assert(eq(int, pipe(ends), 0));
    struct sigaction action = {.sa_handler = count_interruption}; /* without SA_RESTART */
    sigaction(SIGALRM, &action, NULL);
    ualarm(1000, 1000);
    cr_assert(eq(int, pthread_create(&reader, NULL, read_late, &ends[0]), 0));
    cr_assert(eq(int, mesa_write_all(ends[1], bytes, 1000000), 0));
    ualarm(0, 0);
    close(ends[1]);
    void *wrong;
    pthread_join(reader, &wrong);
    cr_assert(eq(ptr, wrong, NULL));
    free(bytes);
}

Test(buffer, gives_files_the_mode_that_the_umask_says) {
    struct stat status;
    umask(027);
    cr_assert(eq(int, mesa_write_file(path_of("a.json"), "abc", 3), 0));
    cr_assert(eq(int, stat(path_of("a.json"), &status), 0));
    cr_assert(eq(int, (int)(status.st_mode & 0777), 0640));
    cr_assert(eq(sz, (size_t)status.st_size, 3));
}

Test(buffer, leaves_what_is_there_when_it_fails) {
    cr_assert(eq(int, mesa_write_file(path_of("a.json"), "old", 3), 0));
    const struct rlimit limit = {1024, 1024};
    cr_assert(eq(int, setrlimit(RLIMIT_FSIZE, &limit), 0));
    char contents[4096] = {0}, found[4] = {0};
    cr_assert(eq(int, mesa_write_file(path_of("a.json"), contents, sizeof contents), EFBIG));
    FILE *file = fopen(path_of("a.json"), "r");
    cr_assert(eq(sz, fread(found, 1, 3, file), 3));
    fclose(file);
    cr_assert(eq(str, found, "old"));
    cr_assert(eq(int, count_files(), 1));
    cr_assert(eq(int, mesa_write_file(path_of("nowhere/a.json"), "x", 1), ENOENT));
    cr_assert(eq(int, mkdir(path_of("b.json"), 0777), 0));
    cr_assert(ne(int, mesa_write_file(path_of("b.json"), "x", 1), 0));
    cr_assert(eq(int, count_files(), 2));
}

static char rewritten[128]; /* path */

static void *rewrite(void *context) {
    const char *contents = context;
    for (int i = 0; i < 300; i++)
        if (mesa_write_file(rewritten, contents, 8192) != 0)
            return (void *)1;
    return NULL;
}

/* A reader sees one of the two contents and never a part of one. */
Test(buffer, shows_whole_files_only) {
    static char a[8193], b[8193];
    memset(a, 'a', 8192);
    memset(b, 'b', 8192);
    snprintf(rewritten, sizeof rewritten, "%s", path_of("a.json"));
    cr_assert(eq(int, mesa_write_file(rewritten, a, 8192), 0));
    pthread_t writers[2];
    pthread_create(&writers[0], NULL, rewrite, a);
    pthread_create(&writers[1], NULL, rewrite, b);
    for (int i = 0; i < 300; i++) {
        char found[8193];
        int fd = open(rewritten, O_RDONLY | O_CLOEXEC);
        ssize_t length = read(fd, found, sizeof found);
        close(fd);
        cr_assert(eq(i64, (int64_t)length, 8192));
        cr_assert(eq(int, memcmp(found, found[0] == 'a' ? a : b, 8192), 0));
    }
    for (int i = 0; i < 2; i++) {
        void *failed;
        pthread_join(writers[i], &failed);
        cr_assert(eq(ptr, failed, NULL));
    }
    cr_assert(eq(int, count_files(), 1));
}
