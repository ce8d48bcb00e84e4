/* Walks up the stack with libunwind. Generated code of an op is called by at::_ops::NAME::call or
 * ::redispatch, of the same object; the first one above the constructor names the op. Seen with
 * PyTorch 2.13: one to three frames up, none at all for calls through the boxed interface.
 *
 * SPDX-License-Identifier: MIT */
#include "classify/trace.h"

#include "classify/loader.h"
#include "classify/symbol.h"

#define UNW_LOCAL_ONLY
#include <libunwind.h>

enum {
    MOST_OWN_FRAMES = 16, /* of this library, below the constructor's caller */
    MOST_FRAMES = 40,
};

static uintptr_t frame_address(unw_cursor_t *cursor) {
    unw_word_t ip = 0;
    unw_get_reg(cursor, UNW_REG_IP, &ip);
    return (uintptr_t)ip;
}

/* Moves the cursor to the frame that will go on at `return_address`. */
static bool find_frame(unw_cursor_t *cursor, uintptr_t return_address) {
    for (int i = 0; i < MOST_OWN_FRAMES; i++) {
        if (frame_address(cursor) == return_address)
            return true;
        if (unw_step(cursor) <= 0)
            return false;
    }
    return false;
}

static void set_name(struct mesa_trace *trace, const struct mesa_symbol *symbol) {
    trace->name = symbol->name;
    trace->length = symbol->length;
}

/* The kind of code that the constructor's caller is, as far as its own frame tells. */
static void judge_caller(struct mesa_trace *trace, const struct mesa_object *object,
                         uintptr_t address) {
    const struct mesa_symbol *symbol = mesa_symbol_find(object, address);
    if (object->is_python_binding)
        trace->kind = MESA_TRACE_PYTHON;
    else if (symbol && symbol->kind == MESA_SYMBOL_SAVE_VARIABLES)
        trace->kind = MESA_TRACE_CUSTOM;
}

/* Looks at one frame further up. True if it settled the matter. */
static bool judge_frame(struct mesa_trace *trace, const struct mesa_object *caller,
                        uintptr_t address) {
    const struct mesa_object *object = mesa_symbol_object(address);
    const struct mesa_symbol *symbol = object ? mesa_symbol_find(object, address) : NULL;
    if (!symbol)
        return false;
    if (symbol->kind == MESA_SYMBOL_CPP_FUNCTION && trace->kind == MESA_TRACE_CUSTOM) {
        set_name(trace, symbol);
        return true;
    }
    if (symbol->kind == MESA_SYMBOL_OP && trace->kind == MESA_TRACE_CUSTOM)
        return true; /* the op that the function stands behind: nobody's class */
    if (symbol->kind == MESA_SYMBOL_OP && object != caller) {
        trace->kind = MESA_TRACE_CUSTOM; /* an extension's own kernel: the table does not hold */
        return true;
    }
    if (symbol->kind == MESA_SYMBOL_OP) {
        trace->kind = MESA_TRACE_OP;
        trace->op = mesa_op_of_symbol(symbol->name, symbol->length, &trace->is_inplace);
        set_name(trace, symbol);
        return true;
    }
    return symbol->kind == MESA_SYMBOL_INTERPRETER;
}

static void walk(struct mesa_trace *trace, unw_cursor_t *cursor) {
    /* A return address may lie behind a function that ends in a call: look at the call instead. */
    uintptr_t call = frame_address(cursor) - 1;
    const struct mesa_object *caller = mesa_symbol_object(call);
    if (!caller)
        return;
    judge_caller(trace, caller, call);
    if (trace->kind == MESA_TRACE_PYTHON)
        return;
    for (int i = 0; i < MOST_FRAMES && unw_step(cursor) > 0; i++)
        if (judge_frame(trace, caller, frame_address(cursor) - 1))
            return;
}

struct mesa_trace mesa_trace_of(uintptr_t return_address) {
    struct mesa_trace trace = {0};
    unw_context_t context;
    unw_cursor_t cursor;
    mesa_loader_begin();
    if (unw_getcontext(&context) == 0 && unw_init_local(&cursor, &context) == 0 &&
        find_frame(&cursor, return_address))
        walk(&trace, &cursor);
    mesa_loader_end();
    return trace;
}
