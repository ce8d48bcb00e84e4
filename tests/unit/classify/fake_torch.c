/* See fake_torch.h. Kernels must not be merged, cloned or inlined, and no call may be a tail call: each
 * save must have a return address and a frame of its own.
 *
 * SPDX-License-Identifier: MIT */
#include "fake_torch.h"

_Thread_local struct fake_saves fake_saves;
_Thread_local unsigned fake_noted, fake_missed;

/* Distinct text for each place keeps compilers from merging equal code. */
#define KEEP() __asm__ volatile("# place %0" : : "i"(__COUNTER__) : "memory")

#define EXPORTED __attribute__((visibility("default"), noinline))
#define KERNEL   static __attribute__((noinline))

void fake_reset(void) {
    fake_saves = (struct fake_saves){0};
    fake_noted = fake_missed = 0;
}

__attribute__((noinline)) void fake_construct(bool is_output) {
    struct mesa_save save = {
        .return_address = (uintptr_t)__builtin_return_address(0),
        .stack = (uintptr_t)__builtin_dwarf_cfa(),
        .is_output = is_output,
        .is_defined = true,
    };
    int place = fake_saves.count++ % FAKE_MOST_SAVES;
    if (fake_missed >> place & 1) {
        mesa_site_missed(&save);
    } else if (fake_noted >> place & 1) {
        save.is_defined = false;
        mesa_site_note(&save);
    } else {
        fake_saves.sites[place] = mesa_site_of(&save);
    }
    KEEP();
}

#define SAVE(bit, is_output)                                                                       \
    do {                                                                                           \
        if (saved >> (bit)&1) {                                                                    \
            fake_construct(is_output);                                                             \
            KEEP();                                                                                \
        }                                                                                          \
    } while (0)

/* An op's function, which calls its kernel. */
#define OP(name, kernel)                                                                           \
    EXPORTED void name(unsigned saved) {                                                           \
        KEEP();                                                                                    \
        kernel(saved);                                                                             \
        KEEP();                                                                                    \
    }

#define KERNEL_OF_TWO_INPUTS(name)                                                                 \
    KERNEL void name(unsigned saved) {                                                             \
        SAVE(0, false);                                                                            \
        SAVE(1, false);                                                                            \
    }

#define KERNEL_OF_ONE_RESULT(name)                                                                 \
    KERNEL void name(unsigned saved) {                                                             \
        SAVE(0, true);                                                                             \
    }

KERNEL void layer_norm_kernel(unsigned saved) {
    SAVE(0, false);
    SAVE(1, false);
    SAVE(2, false);
    SAVE(3, true);
    SAVE(4, true);
}
OP(fake_layer_norm, layer_norm_kernel)

KERNEL_OF_TWO_INPUTS(mm_kernel)
OP(fake_mm, mm_kernel)

KERNEL_OF_TWO_INPUTS(mul_kernel)
OP(fake_mul, mul_kernel)

KERNEL_OF_TWO_INPUTS(mul_inplace_kernel)
OP(fake_mul_inplace, mul_inplace_kernel)

KERNEL_OF_TWO_INPUTS(div_kernel)
OP(fake_div, div_kernel)

KERNEL_OF_ONE_RESULT(relu_kernel)
OP(fake_relu, relu_kernel)

KERNEL_OF_ONE_RESULT(relu_inplace_kernel)
OP(fake_relu_inplace, relu_inplace_kernel)

KERNEL_OF_ONE_RESULT(max_dim_kernel)
OP(fake_max_dim, max_dim_kernel)

KERNEL_OF_TWO_INPUTS(unheard_of_kernel)
OP(fake_unheard_of, unheard_of_kernel)

KERNEL void shared_kernel(unsigned saved) {
    SAVE(0, false);
}
OP(fake_gelu, shared_kernel)
OP(fake_silu, shared_kernel)

KERNEL void save_list(unsigned length) {
    for (unsigned i = 0; i < length; i++) {
        fake_construct(false);
        KEEP();
    }
}

#define KERNEL_OF_LIST(name)                                                                       \
    KERNEL void name(unsigned length) {                                                            \
        save_list(length);                                                                         \
        KEEP();                                                                                    \
    }

KERNEL_OF_LIST(index_kernel)
OP(fake_index, index_kernel)

KERNEL_OF_LIST(index_put_kernel)
OP(fake_index_put, index_put_kernel)

KERNEL_OF_LIST(foreach_kernel)
OP(fake_foreach, foreach_kernel)

EXPORTED void fake_mm_boxed(unsigned saved) {
    mm_kernel(saved);
    KEEP();
}

OP(fake_evaluate, mm_kernel)
OP(fake_mm_from_python, fake_evaluate)

EXPORTED void fake_save_variables(unsigned saved) {
    SAVE(0, false);
    SAVE(1, false);
}

OP(fake_cpp_function, fake_save_variables)
OP(fake_other_cpp_function, fake_save_variables)
