/* Runs a fuzz target over the files of folders, without libFuzzer: each file, each of its beginnings,
 * and each with one byte gone. A target that fails aborts.
 *
 * SPDX-License-Identifier: MIT */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES 8192 /* seeds are small */

/* Exactly as long as the input, so that a sanitizer sees a read behind its end. */
static void run(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size == 0 ? 1 : size);
    if (copy == NULL)
        abort();
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void replay(const uint8_t *data, size_t size) {
    for (size_t length = 0; length <= size; length++)
        run(data, length);
    uint8_t shorter[MOST_BYTES];
    for (size_t gone = 0; gone < size; gone++) {
        memcpy(shorter, data, gone);
        memcpy(shorter + gone, data + gone + 1, size - gone - 1);
        run(shorter, size - 1);
    }
}

static int replay_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return 0;
    uint8_t data[MOST_BYTES];
    size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    replay(data, size);
    return 1;
}

int main(int argc, char **argv) {
    int files = 0;
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        if (folder == NULL) {
            perror(argv[i]);
            return 1;
        }
        for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
            char path[4096];
            int n = snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            if (entry->d_name[0] != '.' && n > 0 && (size_t)n < sizeof path)
                files += replay_file(path);
        }
        closedir(folder);
    }
    printf("%d files\n", files);
    return files == 0;
}
