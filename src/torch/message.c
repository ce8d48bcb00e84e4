/* Builds messages in a stack buffer and raises them. libtorch copies the text.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/message.h"

#include "torch/saved.h"

#include <stdarg.h>
#include <stdio.h>

struct message {
    char text[1536];
    size_t length;
};

__attribute__((format(printf, 2, 3))) static void add(struct message *message, const char *format,
                                                      ...) {
    va_list arguments;
    va_start(arguments, format);
    size_t room = sizeof message->text - message->length;
    int n = vsnprintf(message->text + message->length, room, format, arguments);
    va_end(arguments);
    if (n > 0)
        message->length += (size_t)n < room ? (size_t)n : room - 1;
}

static void raise(const struct message *message) __attribute__((noreturn));
static void raise(const struct message *message) {
    mesa_torch.check_fail("unpack", "libmesa", 0, message->text);
}

/* As at::Tensor::toString() names CPU tensors. */
static const char *legacy_type(enum mesa_dtype dtype) {
    static const char *const names[MESA_DTYPE_COUNT] = {
        [MESA_F32] = "Float",
        [MESA_BF16] = "BFloat16",
        [MESA_F16] = "Half",
        [MESA_F64] = "Double",
        [MESA_BOOL] = "Bool",
        [MESA_U8] = "Byte",
        [MESA_I8] = "Char",
        [MESA_I16] = "Short",
        [MESA_I32] = "Int",
        [MESA_I64] = "Long",
        [MESA_C64] = "ComplexFloat",
        [MESA_C128] = "ComplexDouble",
        [MESA_DTYPE_OTHER] = "Undefined",
    };
    return names[dtype];
}

void mesa_raise_modified(const struct mesa_hook *hook) {
    struct message message = {.length = 0};
    add(&message,
        "one of the variables needed for gradient computation has been modified by an "
        "inplace operation: [torch.%sTensor [",
        legacy_type(hook->dtype));
    for (int i = 0; i < hook->ndim; i++)
        add(&message, "%s%lld", i == 0 ? "" : ", ", (long long)hook->dims[i]);
    add(&message, "]]");
    char name[256];
    mesa_node_name(hook->node, name, sizeof name);
    if (name[0] != '\0')
        add(&message, ", which is output %lld of %s,", (long long)hook->output_nr, name);
    add(&message, " is at version %u; expected version %u instead.",
        mesa_counter_version(hook->counter), hook->version);
    if (mesa_torch.anomaly_enabled == NULL || !*mesa_torch.anomaly_enabled)
        add(&message,
            " Hint: enable anomaly detection to find the operation that failed to compute "
            "its gradient, with torch.autograd.set_detect_anomaly(True).");
    else
        add(&message,
            " Hint: the backtrace further above shows the operation that failed to compute "
            "its gradient. The variable in question was changed in there or anywhere "
            "later. Good luck!");
    raise(&message);
}

void mesa_raise_not_held(const struct mesa_hook *hook) {
    const struct mesa_site *site = hook->decision->site;
    struct message message = {.length = 0};
    add(&message,
        "libmesa holds only what the backward of %s reads of '%s' (%s), and the tensor itself is "
        "gone, so its values cannot be shown. To look at them add the rule '%s.%s keep' to "
        "MESA_POLICY.",
        site->op, site->argument, hook->held == NULL ? "its shape" : "a mask", site->op,
        site->argument);
    raise(&message);
}

void mesa_raise_no_memory(void) {
    mesa_torch.check_fail("unpack", "libmesa", 0,
                          "libmesa: not enough memory to restore a saved tensor");
}

void mesa_raise_if_damaged(const struct mesa_hook *hook, const struct mesa_held *held) {
    if (!mesa_config.checksums || held->checksum == 0 || held->bytes == NULL)
        return;
    mesa_float_state state = mesa_float_state_enter();
    uint64_t checksum = mesa_kernels.fingerprint(held->bytes, held->size);
    mesa_float_state_leave(state);
    if (checksum == held->checksum)
        return;
    const struct mesa_site *site = hook->decision->site;
    struct message message = {.length = 0};
    add(&message,
        "libmesa: the %zu bytes held for %s.%s were overwritten by something else in this process "
        "(checksum %016llx, expected %016llx); refusing to compute a gradient from them",
        held->size, site->op, site->argument, (unsigned long long)checksum,
        (unsigned long long)held->checksum);
    raise(&message);
}
