/* Finds libtorch in this process and resolves every function of the table. Must not look into any
 * object: that is the self-test's part.
 *
 * The handle of libtorch_cpu.so is asked, never RTLD_DEFAULT: Python loads libtorch with RTLD_LOCAL,
 * and the names that libmesa itself exports would be found first.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/torch.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct mesa_torch mesa_torch;
_Atomic int mesa_torch_state = MESA_TORCH_UNSEEN;
_Thread_local bool mesa_torch_inside __attribute__((tls_model("initial-exec")));

/* GLOBAL: found as libtorch's own calls find it, in what is preloaded first (an allocator or a
 * sanitizer that brings its own operator new), then in libtorch and what that is linked to. */
enum need { REQUIRED, OPTIONAL, GLOBAL };

#define FIELD(field) offsetof(struct mesa_torch, field)
static const struct {
    size_t field;
    enum need need;
    const char *symbol;
} symbols[] = {
    /* First those that libmesa defines itself: found even where another is missing. */
    {FIELD(set_gradient_edge), OPTIONAL,
     "_ZN5torch8autograd4impl17set_gradient_edgeERKN2at6TensorENS0_4EdgeE"},
    {FIELD(saved_from_tensor), REQUIRED, "_ZN5torch8autograd13SavedVariableC1ERKN2at6TensorEbb"},
    {FIELD(saved_from_optional), REQUIRED,
     "_ZN5torch8autograd13SavedVariableC1ERKSt8optionalIN2at6TensorEEbb"},
    {FIELD(saved_register_hooks), REQUIRED,
     "_ZN5torch8autograd13SavedVariable14register_hooksEOSt10unique_ptrINS0_18SavedVariableHooksE"
     "St14default_deleteIS3_EE"},
    {FIELD(saved_reset_data), REQUIRED, "_ZN5torch8autograd13SavedVariable10reset_dataEv"},
    {FIELD(saved_unpack), OPTIONAL, /* Node held by shared_ptr */
     "_ZNK5torch8autograd13SavedVariable6unpackESt10shared_ptrINS0_4NodeEE"},
    {FIELD(saved_unpack), OPTIONAL, /* since 2.13: by intrusive_ptr */
     "_ZNK5torch8autograd13SavedVariable6unpackEN3c1013intrusive_ptrINS0_4NodeENS2_6detail34"
     "intrusive_target_default_null_typeIS4_EEEE"},
    {FIELD(tensor_is_leaf), REQUIRED, "_ZNK2at10TensorBase7is_leafEv"},
    {FIELD(tensor_is_view), REQUIRED, "_ZNK2at10TensorBase7is_viewEv"},
    {FIELD(tensor_base), REQUIRED, "_ZNK2at10TensorBase5_baseEv"},
    {FIELD(tensor_view_meta), OPTIONAL,
     "_ZN5torch8autograd4impl22get_view_autograd_metaERKN2at10TensorBaseE"},
    {FIELD(tensor_version), REQUIRED, "_ZNK2at10TensorBase8_versionEv"},
    {FIELD(tensor_output_nr), REQUIRED, "_ZNK2at10TensorBase9output_nrEv"},
    {FIELD(tensor_grad_fn), REQUIRED, "_ZNK2at10TensorBase7grad_fnEv"},
    {FIELD(impl_requires_grad), REQUIRED, "_ZNK3c1010TensorImpl13requires_gradEv"},
    {FIELD(impl_set_requires_grad), REQUIRED, "_ZN3c1010TensorImpl17set_requires_gradEb"},
    {FIELD(get_sizes), REQUIRED, "aoti_torch_get_sizes"},
    {FIELD(get_strides), REQUIRED, "aoti_torch_get_strides"},
    {FIELD(get_dim), REQUIRED, "aoti_torch_get_dim"},
    {FIELD(get_numel), REQUIRED, "aoti_torch_get_numel"},
    {FIELD(get_dtype), REQUIRED, "aoti_torch_get_dtype"},
    {FIELD(get_storage_offset), REQUIRED, "aoti_torch_get_storage_offset"},
    {FIELD(get_storage_size), REQUIRED, "aoti_torch_get_storage_size"},
    {FIELD(get_data_ptr), REQUIRED, "aoti_torch_get_data_ptr"},
    {FIELD(empty_strided_cpu), REQUIRED,
     "_ZN2at6detail17empty_strided_cpuEN3c108ArrayRefIlEES3_NS1_10ScalarTypeEb"},
    {FIELD(reinterpret_tensor), REQUIRED, "aoti_torch__reinterpret_tensor"},
    {FIELD(new_handle), REQUIRED, "aoti_torch_new_tensor_handle"},
    {FIELD(delete_handle), REQUIRED, "aoti_torch_delete_tensor_object"},
    {FIELD(any_modes_set), REQUIRED, "_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb"},
    {FIELD(functorch_stack), REQUIRED, "_ZN2at9functorch20getDynamicLayerStackEv"},
    {FIELD(saved_hooks_allowed), REQUIRED, "_ZN2at23SavedTensorDefaultHooks10is_enabledEv"},
    {FIELD(grad_mode_enabled), REQUIRED, "_ZN3c108GradMode10is_enabledEv"},
    {FIELD(grad_mode_set), REQUIRED, "_ZN3c108GradMode11set_enabledEb"},
    {FIELD(thread_count), REQUIRED, "_ZN2at15get_num_threadsEv"},
    {FIELD(in_parallel_region), REQUIRED, "_ZN2at18in_parallel_regionEv"},
    {FIELD(parallel_for), OPTIONAL, "torch_parallel_for"},
    {FIELD(anomaly_enabled), OPTIONAL, "_ZN5torch8autograd11AnomalyMode8_enabledE"},
    {FIELD(node_forward_op_name), OPTIONAL, "_ZNK5torch8autograd4Node15forward_op_nameB5cxx11Ev"},
    {FIELD(check_fail), REQUIRED, "_ZN3c106detail14torchCheckFailEPKcS2_jS2_"},
    {FIELD(cxx_new), GLOBAL, "_Znwm"},
    {FIELD(cxx_delete), GLOBAL, "_ZdlPv"},
    {FIELD(op_detach), REQUIRED, "_ZN2at4_ops6detach4callERKNS_6TensorE"},
    {FIELD(op_neg_view), REQUIRED, "_ZN2at4_ops9_neg_view4callERKNS_6TensorE"},
    {FIELD(op_zero), REQUIRED, "_ZN2at4_ops5zero_4callERNS_6TensorE"},
};

static const struct {
    enum mesa_dtype dtype;
    const char *symbol;
} dtype_symbols[] = {
    {MESA_F32, "aoti_torch_dtype_float32"},   {MESA_BF16, "aoti_torch_dtype_bfloat16"},
    {MESA_F16, "aoti_torch_dtype_float16"},   {MESA_F64, "aoti_torch_dtype_float64"},
    {MESA_BOOL, "aoti_torch_dtype_bool"},     {MESA_U8, "aoti_torch_dtype_uint8"},
    {MESA_I8, "aoti_torch_dtype_int8"},       {MESA_I16, "aoti_torch_dtype_int16"},
    {MESA_I32, "aoti_torch_dtype_int32"},     {MESA_I64, "aoti_torch_dtype_int64"},
    {MESA_C64, "aoti_torch_dtype_complex64"}, {MESA_C128, "aoti_torch_dtype_complex128"},
};

static bool bind_dtypes(void) {
    memset(mesa_torch.dtype_of, MESA_DTYPE_OTHER, sizeof mesa_torch.dtype_of);
    for (size_t i = 0; i < sizeof dtype_symbols / sizeof *dtype_symbols; i++) {
        int32_t (*number)(void);
        *(void **)&number = dlsym(mesa_torch.library, dtype_symbols[i].symbol);
        int32_t n = number == NULL ? -1 : number();
        if (n < 0 || n >= (int32_t)sizeof mesa_torch.dtype_of)
            return false;
        mesa_torch.dtype_of[n] = (int8_t)dtype_symbols[i].dtype;
        mesa_torch.torch_dtype[dtype_symbols[i].dtype] = n;
    }
    return true;
}

/* aoti_torch_abi_version() is 0xMMmmpp... with the version's parts in its upper bytes. */
static void bind_version(void) {
    uint64_t (*abi_version)(void);
    *(void **)&abi_version = dlsym(mesa_torch.library, "aoti_torch_abi_version");
    if (abi_version == NULL)
        return;
    uint64_t v = abi_version();
    snprintf(mesa_torch.version, sizeof mesa_torch.version, "%u.%u.%u", (unsigned)(v >> 56),
             (unsigned)(v >> 48 & 255), (unsigned)(v >> 40 & 255));
}

enum mesa_status mesa_torch_bind(char *ret_why, size_t why_size) {
    mesa_torch.library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    if (mesa_torch.library == NULL) {
        snprintf(ret_why, why_size, "libtorch_cpu.so is not loaded under that name");
        return MESA_BROKEN;
    }
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *address = symbols[i].need == GLOBAL ? dlsym(RTLD_DEFAULT, symbols[i].symbol) : NULL;
        if (address == NULL)
            address = dlsym(mesa_torch.library, symbols[i].symbol);
        if (address == NULL && symbols[i].need != OPTIONAL) {
            snprintf(ret_why, why_size, "this libtorch does not have %s", symbols[i].symbol);
            return MESA_BROKEN;
        }
        if (address != NULL)
            *(void **)((char *)&mesa_torch + symbols[i].field) = address;
    }
    if (mesa_torch.saved_unpack == NULL) {
        snprintf(ret_why, why_size,
                 "this libtorch does not have SavedVariable::unpack as expected");
        return MESA_BROKEN;
    }
    if (!bind_dtypes()) {
        snprintf(ret_why, why_size, "this libtorch does not show its dtypes");
        return MESA_BROKEN;
    }
    bind_version();
    return MESA_OK;
}
