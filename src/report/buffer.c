/* Growing, formatting and writing. Formatting switches this thread to the "C" locale for one call: a
 * program that set LC_NUMERIC to German must not turn 0.5 into 0,5 in our JSON.
 *
 * SPDX-License-Identifier: MIT */
#include "report/buffer.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Room for `more` bytes and a NUL. */
static bool grow(struct mesa_buffer *buffer, size_t more) {
    size_t wanted = buffer->length + more + 1;
    if (buffer->failed)
        return false;
    if (wanted <= buffer->room)
        return true;
    size_t room = buffer->room < 2048 ? 4096 : buffer->room * 2;
    if (room < wanted)
        room = wanted;
    char *bytes = realloc(buffer->bytes, room);
    if (bytes == NULL) {
        buffer->failed = true;
        return false;
    }
    buffer->bytes = bytes;
    buffer->room = room;
    return true;
}

void mesa_buffer_append(struct mesa_buffer *buffer, const char *bytes, size_t length) {
    if (!grow(buffer, length))
        return;
    memcpy(buffer->bytes + buffer->length, bytes, length);
    buffer->length += length;
    buffer->bytes[buffer->length] = '\0';
}

void mesa_buffer_text(struct mesa_buffer *buffer, const char *text) {
    mesa_buffer_append(buffer, text, strlen(text));
}

__attribute__((format(printf, 3, 0))) static int
print_in_c_locale(char *ret, size_t size, const char *format, va_list arguments) {
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* glibc: a static object */
    locale_t saved = c_locale == (locale_t)0 ? (locale_t)0 : uselocale(c_locale);
    int length = vsnprintf(ret, size, format, arguments);
    if (saved != (locale_t)0)
        uselocale(saved);
    if (c_locale != (locale_t)0)
        freelocale(c_locale);
    return length;
}

void mesa_buffer_print(struct mesa_buffer *buffer, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    char small[256];
    int length = print_in_c_locale(small, sizeof small, format, arguments);
    if (length < 0) {
        buffer->failed = true;
    } else if ((size_t)length < sizeof small) {
        mesa_buffer_append(buffer, small, (size_t)length);
    } else if (grow(buffer, (size_t)length)) {
        print_in_c_locale(buffer->bytes + buffer->length, (size_t)length + 1, format, again);
        buffer->length += (size_t)length;
    }
    va_end(again);
    va_end(arguments);
}

void mesa_buffer_done(struct mesa_buffer *buffer) {
    free(buffer->bytes);
    *buffer = (struct mesa_buffer){0};
}

char *mesa_print_into(char *ret, size_t size, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (print_in_c_locale(ret, size, format, arguments) < 0)
        ret[0] = '\0';
    va_end(arguments);
    return ret;
}

static int write_loop(int fd, const char *bytes, size_t length) {
    while (length != 0) {
        ssize_t written = write(fd, bytes, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return errno;
        bytes += written;
        length -= (size_t)written;
    }
    return 0;
}

/* SIGPIPE and SIGXFSZ are sent to the thread that writes: block them, write, and take away the one
 * that our write caused. One that was pending before belongs to the program and stays. */
int mesa_write_all(int fd, const char *bytes, size_t length) {
    sigset_t ours, blocked_before, pending_before;
    sigemptyset(&ours);
    sigaddset(&ours, SIGPIPE);
    sigaddset(&ours, SIGXFSZ);
    sigemptyset(&pending_before);
    sigpending(&pending_before);
    pthread_sigmask(SIG_BLOCK, &ours, &blocked_before);
    int error = write_loop(fd, bytes, length);
    int caused = error == EPIPE ? SIGPIPE : error == EFBIG ? SIGXFSZ : 0;
    if (caused != 0 && !sigismember(&pending_before, caused)) {
        sigset_t only;
        sigemptyset(&only);
        sigaddset(&only, caused);
        const struct timespec at_once = {0};
        while (sigtimedwait(&only, NULL, &at_once) < 0 && errno == EINTR)
            continue;
    }
    pthread_sigmask(SIG_SETMASK, &blocked_before, NULL);
    return error;
}

static int write_and_rename(int fd, const char *temporary, const char *path, const char *bytes,
                            size_t length) {
    int error = mesa_write_all(fd, bytes, length);
    if (close(fd) != 0 && error == 0)
        error = errno; /* a full disk or quota may show only here */
    if (error == 0 && rename(temporary, path) != 0)
        error = errno;
    if (error != 0)
        unlink(temporary);
    return error;
}

int mesa_write_file(const char *path, const char *bytes, size_t length) {
    static _Atomic unsigned serial; /* two threads may report at the same time */
    struct mesa_buffer temporary = {0};
    mesa_buffer_print(&temporary, "%s.%ld-%u.tmp", path, (long)getpid(),
                      atomic_fetch_add(&serial, 1));
    int error = ENOMEM;
    if (!temporary.failed) {
        int fd = open(temporary.bytes, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        error = fd < 0 ? errno : write_and_rename(fd, temporary.bytes, path, bytes, length);
    }
    mesa_buffer_done(&temporary);
    return error;
}
