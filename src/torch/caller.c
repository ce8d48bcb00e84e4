/* Walks the stack out of libmesa, past SavedVariable::unpack, and looks where that was called from.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/caller.h"

#include "classify/loader.h"
#include "classify/symbol.h"

#define UNW_LOCAL_ONLY
#include <libunwind.h>
#include <stddef.h>
#include <stdint.h>

static const struct mesa_object *object_of(unw_cursor_t *cursor) {
    unw_word_t ip;
    return unw_get_reg(cursor, UNW_REG_IP, &ip) == 0 ? mesa_symbol_object((uintptr_t)ip) : NULL;
}

static bool is_called_by_binding(unw_cursor_t *cursor) {
    const struct mesa_object *own = object_of(cursor);
    do {
        if (unw_step(cursor) <= 0)
            return false;
    } while (object_of(cursor) == own);
    /* Now in SavedVariable::unpack. */
    if (unw_step(cursor) <= 0)
        return false;
    const struct mesa_object *caller = object_of(cursor);
    return caller != NULL && caller->is_python_binding;
}

bool mesa_caller_is_program(void) {
    unw_context_t context;
    unw_cursor_t cursor;
    mesa_loader_begin();
    bool is_program = unw_getcontext(&context) == 0 && unw_init_local(&cursor, &context) == 0 &&
                      is_called_by_binding(&cursor);
    mesa_loader_end();
    return is_program;
}
