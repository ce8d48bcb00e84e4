/* MESA_REPORT: a comma list of `text`, `none` and file names whose extension says the format. Names
 * are made absolute when they are parsed, at the start of the program: training scripts like to
 * change their directory, and a report should be where the user stood.
 *
 * SPDX-License-Identifier: MIT */
#include "report/target.h"

#include "report/json.h"
#include "report/text.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct mesa_report_format formats[] = {
    {".json", mesa_json_render},
    {".txt", mesa_text_render},
};

const struct mesa_report_format *mesa_report_format_of(const char *path) {
    size_t length = strlen(path);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        size_t extension = strlen(formats[i].extension);
        if (length > extension && strcmp(path + length - extension, formats[i].extension) == 0)
            return &formats[i];
    }
    return NULL;
}

void mesa_report_expand(const char *pattern, const struct mesa_account *account,
                        struct mesa_buffer *buffer) {
    for (const char *at = pattern; *at != '\0'; at++) {
        if (*at != '%') {
            mesa_buffer_append(buffer, at, 1);
            continue;
        }
        switch (*++at) {
        case 'p':
            mesa_buffer_print(buffer, "%ld", account->pid);
            break;
        case 'r':
            mesa_buffer_print(buffer, "%u", account->rank);
            break;
        case 'h':
            mesa_buffer_text(buffer, account->host);
            break;
        default: /* "%%": the parser lets nothing else through */
            mesa_buffer_text(buffer, "%");
            break;
        }
    }
}

/* The first "%" that no known letter follows; NULL if there is none. */
static const char *find_bad_letter(const char *pattern) {
    for (const char *at = pattern; (at = strchr(at, '%')) != NULL; at += 2)
        if (at[1] == '\0' || strchr("prh%", at[1]) == NULL)
            return at;
    return NULL;
}

/* The pattern, absolute; a '%' in the current directory's own name is doubled. NULL without memory. */
static char *make_absolute(const char *pattern) {
    struct mesa_buffer whole = {0};
    char *directory = *pattern == '/' ? NULL : getcwd(NULL, 0);
    if (directory != NULL) { /* a directory that is gone leaves the name relative */
        for (const char *at = directory; *at != '\0'; at++)
            mesa_buffer_text(&whole, *at == '%' ? "%%" : (char[]){*at, '\0'});
        mesa_buffer_text(&whole, "/");
        free(directory);
    }
    mesa_buffer_text(&whole, pattern);
    if (whole.failed)
        mesa_buffer_done(&whole);
    return whole.bytes;
}

static bool add_file(const char *name, struct mesa_report_target *target, char *ret_mistake,
                     size_t mistake_size) {
    const char *bad_letter = find_bad_letter(name);
    if (mesa_report_format_of(name) == NULL) {
        mesa_print_into(ret_mistake, mistake_size,
                        "unknown report '%s'; expected text, none, FILE.json or FILE.txt", name);
        return false;
    }
    if (bad_letter != NULL) {
        mesa_print_into(ret_mistake, mistake_size,
                        "unknown '%.2s' in report name '%s'; expected %%p (process), %%r (rank), "
                        "%%h (host) or %%%%",
                        bad_letter, name);
        return false;
    }
    if (target->file_count == sizeof target->files / sizeof *target->files) {
        mesa_print_into(ret_mistake, mistake_size, "more than %zu report files",
                        target->file_count);
        return false;
    }
    char *path = make_absolute(name);
    if (path == NULL) {
        mesa_print_into(ret_mistake, mistake_size, "no memory for report names");
        return false;
    }
    target->files[target->file_count++] = path;
    return true;
}

static const char *skip_blanks(const char *text) {
    return text + strspn(text, " \t\n");
}

/* Takes one item of the list, [begin, end), blanks around it included. */
static bool add_item(const char *begin, const char *end, struct mesa_report_target *target,
                     bool *none, char *ret_mistake, size_t mistake_size) {
    begin = skip_blanks(begin);
    while (end > begin && strchr(" \t\n", end[-1]) != NULL)
        end--;
    if (begin >= end)
        return true;
    char *item = strndup(begin, (size_t)(end - begin));
    if (item == NULL) {
        mesa_print_into(ret_mistake, mistake_size, "no memory for report names");
        return false;
    }
    bool good = true;
    if (strcmp(item, "text") == 0)
        target->text = true;
    else if (strcmp(item, "none") == 0)
        *none = true;
    else
        good = add_file(item, target, ret_mistake, mistake_size);
    free(item);
    return good;
}

bool mesa_report_parse(const char *text, struct mesa_report_target *ret_target, char *ret_mistake,
                       size_t mistake_size) {
    struct mesa_report_target target = {0};
    bool none = false, good = true;
    for (const char *begin = text, *end; good; begin = end + 1) {
        end = strchrnul(begin, ',');
        good = add_item(begin, end, &target, &none, ret_mistake, mistake_size);
        if (*end == '\0')
            break;
    }
    if (good && none && (target.text || target.file_count != 0)) {
        mesa_print_into(ret_mistake, mistake_size, "'none' stands beside other reports in '%s'",
                        text);
        good = false;
    }
    if (!good) {
        mesa_report_target_done(&target);
        return false;
    }
    if (!none && target.file_count == 0) /* nothing at all was named: the default */
        target.text = true;
    *ret_target = target;
    return true;
}

void mesa_report_target_done(struct mesa_report_target *target) {
    for (size_t i = 0; i < target->file_count; i++)
        free(target->files[i]);
    *target = (struct mesa_report_target){0};
}
