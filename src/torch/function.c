/* A node of a class that lies in libtorch_python is a Python function's, and its name() that of the
 * Python type: the function's with "Backward" behind. It asks the interpreter, so it is called by
 * threads that hold the GIL already, as the one that applies a function does, and by no other.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/function.h"

#include "classify/loader.h"
#include "classify/site.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define SUFFIX "Backward"

_Atomic(const struct mesa_object *) mesa_function_native;
_Thread_local bool mesa_function_is_noted __attribute__((tls_model("initial-exec")));

typedef int gil_is_held(void);

/* PyGILState_Check, or NULL. The same for whoever looks first: see preload/operators.c. */
static gil_is_held *find_gil(void) {
    static gil_is_held *_Atomic check;
    static atomic_bool found;
    if (!atomic_load_explicit(&found, memory_order_acquire)) {
        mesa_loader_begin();
        atomic_store_explicit(&check,
                              (gil_is_held *)(uintptr_t)dlsym(RTLD_DEFAULT, "PyGILState_Check"),
                              memory_order_relaxed);
        mesa_loader_end();
        atomic_store_explicit(&found, true, memory_order_release);
    }
    return atomic_load_explicit(&check, memory_order_relaxed);
}

static bool holds_gil(void) {
    gil_is_held *check = find_gil();
    return check != NULL && check() != 0;
}

static const struct mesa_object *object_of(const void *address) {
    mesa_loader_begin();
    const struct mesa_object *object = mesa_symbol_object((uintptr_t)address);
    mesa_loader_end();
    return object;
}

static size_t length_of_class(const char *name) {
    size_t length = strlen(name), suffix = strlen(SUFFIX);
    return length > suffix && strcmp(name + length - suffix, SUFFIX) == 0 ? length - suffix
                                                                          : length;
}

void mesa_function_note_slowly(const void *node) {
    const struct mesa_object *object = node == NULL ? NULL : object_of(mesa_word_at(node, 0));
    char name[MESA_MOST_CLASS_NAME] = "";
    if (object != NULL && !object->is_python_binding)
        atomic_store_explicit(&mesa_function_native, object, memory_order_release);
    else if (object != NULL && holds_gil())
        mesa_node_own_name(node, name, sizeof name);
    mesa_site_function(name, length_of_class(name));
    mesa_function_is_noted = name[0] != '\0';
}
