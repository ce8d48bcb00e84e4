/* Builds messages in a stack buffer and raises them. libtorch copies the text.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/message.h"

#include "classify/loader.h"
#include "torch/config.h"
#include "torch/decision.h"

#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

/* As at::Tensor::toString() names CPU tensors: dtypes that Torch7 had by its names, later ones not. */
static const char *legacy_type(enum mesa_dtype dtype) {
    static const char *const names[MESA_DTYPE_COUNT] = {
        [MESA_F32] = "torch.FloatTensor",     [MESA_BF16] = "CPUBFloat16Type",
        [MESA_F16] = "torch.HalfTensor",      [MESA_F64] = "torch.DoubleTensor",
        [MESA_BOOL] = "CPUBoolType",          [MESA_U8] = "torch.ByteTensor",
        [MESA_I8] = "torch.CharTensor",       [MESA_I16] = "torch.ShortTensor",
        [MESA_I32] = "torch.IntTensor",       [MESA_I64] = "torch.LongTensor",
        [MESA_C64] = "CPUComplexFloatType",   [MESA_C128] = "CPUComplexDoubleType",
        [MESA_DTYPE_OTHER] = "UndefinedType",
    };
    return names[dtype];
}

#define HINT                                                                                       \
    " Hint: enable anomaly detection to find the operation that failed to compute its gradient"

/* Looks for libtorch's own wording among its constants: it differs between versions. */
static int find_hint(struct dl_phdr_info *module, size_t size, void *ret_hint) {
    (void)size;
    if (strstr(module->dlpi_name, "libtorch_cpu.so") == NULL)
        return 0;
    for (int i = 0; i < module->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &module->dlpi_phdr[i];
        if (segment->p_type != PT_LOAD || (segment->p_flags & PF_R) == 0 ||
            (segment->p_flags & PF_W) != 0)
            continue;
        const char *start = (const char *)module->dlpi_addr + segment->p_vaddr;
        const char *found = memmem(start, segment->p_filesz, HINT, strlen(HINT));
        if (found != NULL) {
            *(const char **)ret_hint = found;
            return 1;
        }
    }
    return 1;
}

static const char *hint_of_libtorch(void) {
    const char *hint = HINT ", with torch.autograd.set_detect_anomaly(True).";
    mesa_loader_begin();
    dl_iterate_phdr(find_hint, &hint);
    mesa_loader_end();
    return hint;
}

/* What libtorch says of a view that it cannot give a new node after its base was written to. */
static void raise_if_view_is_spoilt(const struct mesa_hook *hook) {
    static const struct {
        const char *of, *how, *advice;
    } words[MESA_VIEW_KINDS] = {
        [MESA_VIEW_OF_FUNCTION] =
            {"", "",
             " This view was created inside a custom Function (or because an input was returned "
             "as-is) and the autograd logic to handle view+inplace would override the custom "
             "backward associated with the custom Function, leading to incorrect gradients. This "
             "behavior is forbidden. You can fix this by cloning the output of the custom "
             "Function."},
        [MESA_VIEW_OF_MANY] =
            {"", "",
             " This view is the output of a function that returns multiple views. Such functions "
             "do not allow the output views to be modified inplace. You should replace the "
             "inplace operation by an out-of-place one."},
        [MESA_VIEW_NO_GRAD] =
            {"created in no_grad mode", " with grad mode enabled",
             " Given that this use case is ambiguous and error-prone, it is forbidden. You can "
             "clarify your code by moving both the view and the inplace either both inside the "
             "no_grad block (if you don't want the inplace to be tracked) or both outside (if you "
             "want the inplace to be tracked)."},
        [MESA_VIEW_INFERENCE] =
            {"created in inference mode", " in normal mode",
             " Given that this use case is ambiguous and error-prone, it is forbidden. You can "
             "clarify your code by moving both the view and the inplace either both inside the "
             "inference_mode block (if you don't want the inplace to be tracked) or both outside "
             "(if you want the inplace to be tracked)."},
    };
    if (!hook->is_view || hook->view_kind == MESA_VIEW_PLAIN)
        return;
    struct message message = {.length = 0};
    char name[256];
    mesa_node_name(hook->node, name, sizeof name);
    const char *of = words[hook->view_kind].of;
    if (name[0] == '\0')
        add(&message, "A view was %s", of);
    else
        add(&message, "Output %lld of %s is a view%s%s", (long long)hook->output_nr, name,
            of[0] == '\0' ? "" : " of a view which was ", of);
    add(&message, " and its base or another view of its base has been modified inplace%s.%s",
        words[hook->view_kind].how, words[hook->view_kind].advice);
    raise(&message);
}

void mesa_raise_modified(const struct mesa_hook *hook) {
    raise_if_view_is_spoilt(hook);
    struct message message = {.length = 0};
    add(&message,
        "one of the variables needed for gradient computation has been modified by an "
        "inplace operation: [%s [",
        legacy_type(hook->dtype));
    for (int i = 0; i < hook->ndim; i++)
        add(&message, "%s%lld", i == 0 ? "" : ", ", (long long)hook->dims[i]);
    add(&message, "]]");
    char name[256];
    /* Once it was written to, libtorch gives a view a new node that takes it from its base. */
    if (hook->is_view)
        snprintf(name, sizeof name, "%s",
                 mesa_torch.node_forward_op_name != NULL ? "AsStrided" : "AsStridedBackward0");
    else
        mesa_node_name(hook->node, name, sizeof name);
    if (name[0] != '\0')
        add(&message, ", which is output %lld of %s,", (long long)hook->output_nr, name);
    add(&message, " is at version %u; expected version %u instead.",
        mesa_counter_version(hook->counter), hook->version);
    if (mesa_torch.anomaly_enabled == NULL || !*mesa_torch.anomaly_enabled)
        add(&message, "%s", hint_of_libtorch());
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
        "gone, so its values cannot be shown. It is kept from now on; to look at those of the first "
        "step too add the rule '%s.%s keep' to MESA_POLICY.",
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
