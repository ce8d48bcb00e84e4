// `main [LIBRARY]`: trains; with a LIBRARY that has train(), loads it with dlopen(RTLD_LOCAL), so
// that libtorch comes into the process late and out of the global scope.
//
// SPDX-License-Identifier: MIT
#include <cstdio>
#include <dlfcn.h>

#ifdef LINKED
extern "C" int train(void);
#endif

int main(int count, char **arguments) {
#ifdef LINKED
    (void)count;
    (void)arguments;
    return train();
#else
    void *library = count > 1 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
    auto train = library ? reinterpret_cast<int (*)(void)>(dlsym(library, "train")) : nullptr;
    if (!train) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    return train();
#endif
}
