/* Walks the stack out of libmesa, past SavedVariable::unpack, and looks where that was called from.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/caller.h"

#define UNW_LOCAL_ONLY
#include <dlfcn.h>
#include <libunwind.h>
#include <string.h>

static const char *module_of(unw_cursor_t *cursor) {
    unw_word_t ip;
    Dl_info info;
    if (unw_get_reg(cursor, UNW_REG_IP, &ip) != 0 || dladdr((void *)ip, &info) == 0 ||
        info.dli_fname == NULL)
        return "";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash == NULL ? info.dli_fname : slash + 1;
}

bool mesa_caller_is_program(void) {
    unw_context_t context;
    unw_cursor_t cursor;
    if (unw_getcontext(&context) != 0 || unw_init_local(&cursor, &context) != 0)
        return false;
    char own[64];
    strncpy(own, module_of(&cursor), sizeof own - 1);
    own[sizeof own - 1] = '\0';
    do {
        if (unw_step(&cursor) <= 0)
            return false;
    } while (strcmp(module_of(&cursor), own) == 0);
    /* Now in SavedVariable::unpack. */
    return unw_step(&cursor) > 0 && strncmp(module_of(&cursor), "libtorch_python", 15) == 0;
}
