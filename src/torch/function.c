/* A node of a class that lies in libtorch_python is a Python function's, and its name() that of the
 * Python type: the function's with "Backward" behind. It asks the interpreter, so it is called by
 * threads that hold the GIL already, as the one that applies a function does, and by no other.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/function.h"

#include "classify/loader.h"
#include "classify/site.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#define SUFFIX "Backward"

_Atomic(const struct mesa_object *) mesa_function_native;
_Thread_local bool mesa_function_is_noted __attribute__((tls_model("initial-exec")));

static int (*gil_is_held)(void); /* PyGILState_Check */

static void find_gil(void) {
    mesa_loader_begin();
    *(void **)&gil_is_held = dlsym(RTLD_DEFAULT, "PyGILState_Check");
    mesa_loader_end();
}

static bool holds_gil(void) {
    static pthread_once_t found = PTHREAD_ONCE_INIT;
    pthread_once(&found, find_gil);
    return gil_is_held != NULL && gil_is_held() != 0;
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
