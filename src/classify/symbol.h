/* Which exported function an address lies in, for the few kinds of function that tell who saves a
 * tensor. Reads the symbol tables of loaded objects itself: dladdr() passes over every symbol of an
 * object, 0.6 ms a call in libtorch_cpu.so.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CLASSIFY_SYMBOL_H
#define MESA_CLASSIFY_SYMBOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mesa_symbol_kind {
    MESA_SYMBOL_OP,             /* at::_ops::NAME::call or ::redispatch */
    MESA_SYMBOL_SAVE_VARIABLES, /* torch::autograd::AutogradContext::save_variables */
    MESA_SYMBOL_CPP_FUNCTION,   /* torch::autograd::Function<NAME>::anything */
    MESA_SYMBOL_INTERPRETER,    /* Python's evaluation loop */
};

/* A function of these kinds. Const; lives for ever. */
struct mesa_symbol {
    uintptr_t begin, end;
    enum mesa_symbol_kind kind;
    const char *name; /* NAME; borrowed from the object while it is loaded, not terminated */
    size_t length;
};

/* A loaded object. Const; lives for ever. */
struct mesa_object {
    struct mesa_object *next; /* older one */
    uintptr_t begin, end;
    bool is_python_binding; /* libtorch_python.so */
    size_t count;
    struct mesa_symbol symbols[]; /* by address */
};

/* Any thread; may take the dynamic linker's lock. The object that `address` lies in, NULL if none or
 * no memory. */
const struct mesa_object *mesa_symbol_object(uintptr_t address);

/* Any thread. NULL if `address` lies in no function that is told apart. */
const struct mesa_symbol *mesa_symbol_find(const struct mesa_object *object, uintptr_t address);

/* Pure: tells kind and name of a mangled name; false if it is none of the kinds. */
bool mesa_symbol_parse(const char *mangled, struct mesa_symbol *ret_symbol);

#endif
