/* A policy may be named by a user's typing slip: directories, pipes and endless devices must end in a
 * mistake, not in a program that hangs.
 *
 * SPDX-License-Identifier: MIT */
#include "policy/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES ((size_t)1 << 20)

static _Thread_local char reason_text[128];

static const char *error_reason(int error) {
    return strerror_r(error, reason_text, sizeof reason_text); /* the GNU one returns the text */
}

/* Size is not asked for: files under /proc say 0. */
static char *read_all(int fd, size_t *ret_length, const char **ret_reason) {
    char *text = NULL;
    size_t length = 0, capacity = 0;
    ssize_t n;
    do {
        if (length == capacity) {
            capacity = capacity == 0 ? 4096 : capacity * 2;
            char *grown = realloc(text, capacity);
            if (grown == NULL) {
                *ret_reason = "out of memory";
                goto fail;
            }
            text = grown;
        }
        n = read(fd, text + length, capacity - length);
        if (n > 0)
            length += (size_t)n;
        if (length > MOST_BYTES) {
            *ret_reason = "longer than 1 MiB";
            goto fail;
        }
    } while (n > 0 || (n < 0 && errno == EINTR));
    if (n == 0) {
        *ret_length = length;
        return text;
    }
    *ret_reason = error_reason(errno);
fail:
    free(text);
    return NULL;
}

char *mesa_file_read(const char *path, size_t *ret_length, const char **ret_reason) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        *ret_reason = error_reason(errno);
        return NULL;
    }
    struct stat status;
    char *text = NULL;
    if (fstat(fd, &status) != 0)
        *ret_reason = error_reason(errno);
    else if (S_ISDIR(status.st_mode))
        *ret_reason = error_reason(EISDIR);
    else if (!S_ISREG(status.st_mode))
        *ret_reason = "not a regular file";
    else
        text = read_all(fd, ret_length, ret_reason);
    close(fd);
    return text;
}

bool mesa_file_exists(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISREG(status.st_mode);
}

char *mesa_file_beside(const char *from, const char *path, size_t path_length) {
    const char *slash = strrchr(from, '/');
    size_t folder = slash == NULL || path[0] == '/' ? 0 : (size_t)(slash + 1 - from);
    char *joined = malloc(folder + path_length + 1);
    if (joined == NULL)
        return NULL;
    memcpy(joined, from, folder);
    memcpy(joined + folder, path, path_length);
    joined[folder + path_length] = '\0';
    return joined;
}

bool mesa_file_is_same(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}
