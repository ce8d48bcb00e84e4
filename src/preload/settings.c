/* Reads the environment once, when libtorch appears.
 *
 * SPDX-License-Identifier: MIT */
#include "preload/settings.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

extern char **environ;

static enum mesa_log_level log_level = MESA_LOG_WARN;

void mesa_log(enum mesa_log_level level, const char *format, ...) {
    if (level > log_level)
        return;
    char line[1024] = "mesa: ";
    const size_t head = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line + head, sizeof line - head - 1, format, arguments);
    va_end(arguments);
    size_t length = strnlen(line, sizeof line - 2);
    line[length++] = '\n';
    if (n < 0 || write(STDERR_FILENO, line, length) < 0)
        return; /* stderr is closed: there is nobody to tell */
}

static const char *const names[] = {
    "MESA_POLICY", "MESA_REPORT",  "MESA_MIN_BYTES", "MESA_VERIFY", "MESA_LOG", "MESA_STRICT",
    "MESA_SEED",   "MESA_EXPLAIN", "MESA_ISA",       "MESA_HEAP",   NULL};

/* A name that nobody reads is a typing error that would go unnoticed. Names of the Mesa graphics
 * library (MESA_GL_..., MESA_GLSL_..., MESA_LOADER_..., MESA_VK_...) are not ours to judge. */
static void warn_of_unknown_names(void) {
    for (char **variable = environ; variable != NULL && *variable != NULL; variable++) {
        if (strncmp(*variable, "MESA_", 5) != 0)
            continue;
        size_t length = strcspn(*variable, "=");
        bool known = false;
        for (const char *const *name = names; *name != NULL; name++)
            known |= strlen(*name) == length && strncmp(*name, *variable, length) == 0;
        if (known)
            continue;
        const char *nearest = mesa_policy_nearest(*variable, length, names);
        if (nearest != NULL)
            mesa_log(MESA_LOG_WARN, "unknown variable %.*s; did you mean %s?", (int)length,
                     *variable, nearest);
    }
}

static bool read_flag(const char *name, bool *ret_flag) {
    const char *text = getenv(name);
    if (text == NULL || *text == '\0')
        return true;
    if (strcmp(text, "0") == 0 || strcmp(text, "1") == 0) {
        *ret_flag = *text == '1';
        return true;
    }
    mesa_log(MESA_LOG_ERROR, "%s=%s: expected 0 or 1", name, text);
    return false;
}

static bool read_number(const char *name, uint64_t *ret_number) {
    const char *text = getenv(name);
    if (text == NULL || *text == '\0')
        return true;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 0);
    if (errno == 0 && *end == '\0' && *text != '-') {
        *ret_number = number;
        return true;
    }
    mesa_log(MESA_LOG_ERROR, "%s=%s: expected a whole number", name, text);
    return false;
}

static bool read_bytes(const char *name, size_t *ret_bytes) {
    const char *text = getenv(name);
    if (text == NULL || *text == '\0')
        return true;
    char *end;
    errno = 0;
    unsigned long long bytes = strtoull(text, &end, 0);
    const char *const units = "KMG";
    const char *unit = *end == '\0' ? NULL : strchr(units, *end);
    unsigned shift = unit == NULL ? 0 : 10u * (unsigned)(unit - units + 1);
    if (errno == 0 && end != text && *text != '-' && (unit != NULL ? end[1] : *end) == '\0' &&
        bytes <= SIZE_MAX >> shift) {
        *ret_bytes = (size_t)bytes << shift;
        return true;
    }
    mesa_log(MESA_LOG_ERROR, "%s=%s: expected bytes, like 4096, 64K or 1M", name, text);
    return false;
}

static bool read_log(void) {
    static const char *const levels[] = {"error", "warn", "info", "debug", NULL};
    const char *text = getenv("MESA_LOG");
    if (text == NULL || *text == '\0')
        return true;
    for (int i = 0; levels[i] != NULL; i++)
        if (strcmp(text, levels[i]) == 0) {
            log_level = (enum mesa_log_level)i;
            return true;
        }
    mesa_log(MESA_LOG_ERROR, "MESA_LOG=%s: expected error, warn, info or debug", text);
    return false;
}

static bool read_isa(enum mesa_isa *ret_isa) {
    const char *text = getenv("MESA_ISA");
    *ret_isa = mesa_isa_best();
    if (text == NULL || *text == '\0')
        return true;
    enum mesa_isa isa = mesa_isa_find(text);
    if (isa != MESA_ISA_COUNT && mesa_isa_supported(isa)) {
        *ret_isa = isa;
        return true;
    }
    mesa_log(MESA_LOG_ERROR, "MESA_ISA=%s: %s", text,
             isa == MESA_ISA_COUNT ? "expected scalar, avx2, avx512 or neon"
                                   : "this processor does not have it");
    return false;
}

static bool read_policy(struct mesa_policy **ret_policy) {
    const char *text = getenv("MESA_POLICY");
    struct mesa_mistake mistake;
    *ret_policy = mesa_policy_load(text == NULL || *text == '\0' ? "default" : text, &mistake);
    if (*ret_policy != NULL)
        return true;
    mesa_log(MESA_LOG_ERROR, "%s", mistake.text);
    return false;
}

static bool read_report(struct mesa_report_target *ret_target) {
    const char *text = getenv("MESA_REPORT");
    char mistake[256];
    if (mesa_report_parse(text == NULL || *text == '\0' ? "text" : text, ret_target, mistake,
                          sizeof mistake))
        return true;
    mesa_log(MESA_LOG_ERROR, "MESA_REPORT: %s", mistake);
    return false;
}

bool mesa_environment_read(struct mesa_environment *e) {
    memset(e, 0, sizeof *e);
    e->min_bytes = 4096;
    e->heap = true;
    bool good = read_log();
    good &= read_flag("MESA_STRICT", &e->strict);
    warn_of_unknown_names();
    good &= read_flag("MESA_VERIFY", &e->verify);
    good &= read_flag("MESA_EXPLAIN", &e->explain);
    good &= read_flag("MESA_HEAP", &e->heap);
    good &= read_bytes("MESA_MIN_BYTES", &e->min_bytes);
    good &= read_number("MESA_SEED", &e->seed);
    good &= read_isa(&e->isa);
    good &= read_report(&e->report);
    good &= read_policy(&e->policy);
    return good;
}
