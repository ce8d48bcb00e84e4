/* The ops to calibrate. Each has inputs with different conditions in ops.tsv, and arguments that are
 * easily made; gen_ops.py's table and this one are compared by a test.
 *
 * SPDX-License-Identifier: MIT */
#include "classify/calibration.h"

#include <stdio.h>

static const struct mesa_calibration calibrations[] = {
    {"mm", "", "_ZN2at4_ops2mm4callERKNS_6TensorES4_", .tensors = 2, .shapes = {"22", "22"}},
    {"bmm", "", "_ZN2at4_ops3bmm4callERKNS_6TensorES4_", .tensors = 2, .shapes = {"222", "222"}},
    {"mv", "", "_ZN2at4_ops2mv4callERKNS_6TensorES4_", .tensors = 2, .shapes = {"22", "2"}},
    {"dot", "", "_ZN2at4_ops3dot4callERKNS_6TensorES4_", .tensors = 2, .shapes = {"2", "2"}},
    {"vdot", "", "_ZN2at4_ops4vdot4callERKNS_6TensorES4_", .tensors = 2, .shapes = {"2", "2"}},
    {"addmm", "", "_ZN2at4_ops5addmm4callERKNS_6TensorES4_S4_RKN3c106ScalarES8_", .tensors = 3,
     .shapes = {"22", "22", "22"}, .scalars = 2},
    {"addmm_", "", "_ZN2at4_ops6addmm_4callERNS_6TensorERKS2_S5_RKN3c106ScalarES9_", true,
     .tensors = 3, .shapes = {"22", "22", "22"}, .scalars = 2},
    {"addbmm", "", "_ZN2at4_ops6addbmm4callERKNS_6TensorES4_S4_RKN3c106ScalarES8_", .tensors = 3,
     .shapes = {"22", "222", "222"}, .scalars = 2},
    {"addbmm_", "", "_ZN2at4_ops7addbmm_4callERNS_6TensorERKS2_S5_RKN3c106ScalarES9_", true,
     .tensors = 3, .shapes = {"22", "222", "222"}, .scalars = 2},
    {"baddbmm", "", "_ZN2at4_ops7baddbmm4callERKNS_6TensorES4_S4_RKN3c106ScalarES8_", .tensors = 3,
     .shapes = {"222", "222", "222"}, .scalars = 2},
    {"baddbmm_", "", "_ZN2at4_ops8baddbmm_4callERNS_6TensorERKS2_S5_RKN3c106ScalarES9_", true,
     .tensors = 3, .shapes = {"222", "222", "222"}, .scalars = 2},
    {"addmv", "", "_ZN2at4_ops5addmv4callERKNS_6TensorES4_S4_RKN3c106ScalarES8_", .tensors = 3,
     .shapes = {"2", "22", "2"}, .scalars = 2},
    {"addmv_", "", "_ZN2at4_ops6addmv_4callERNS_6TensorERKS2_S5_RKN3c106ScalarES9_", true,
     .tensors = 3, .shapes = {"2", "22", "2"}, .scalars = 2},
    {"addr", "", "_ZN2at4_ops4addr4callERKNS_6TensorES4_S4_RKN3c106ScalarES8_", .tensors = 3,
     .shapes = {"22", "2", "2"}, .scalars = 2},
    {"addr_", "", "_ZN2at4_ops5addr_4callERNS_6TensorERKS2_S5_RKN3c106ScalarES9_", true,
     .tensors = 3, .shapes = {"22", "2", "2"}, .scalars = 2},
    {"mul", "Tensor", "_ZN2at4_ops10mul_Tensor4callERKNS_6TensorES4_", .tensors = 2,
     .shapes = {"22", "22"}},
    {"mul_", "Tensor", "_ZN2at4_ops11mul__Tensor4callERNS_6TensorERKS2_", true, .tensors = 2,
     .shapes = {"22", "22"}},
    {"div", "Tensor", "_ZN2at4_ops10div_Tensor4callERKNS_6TensorES4_", .tensors = 2,
     .shapes = {"22", "22"}},
    {"div_", "Tensor", "_ZN2at4_ops11div__Tensor4callERNS_6TensorERKS2_", true, .tensors = 2,
     .shapes = {"22", "22"}},
    {"addcmul", "", "_ZN2at4_ops7addcmul4callERKNS_6TensorES4_S4_RKN3c106ScalarE", .tensors = 3,
     .shapes = {"22", "22", "22"}, .scalars = 1},
    {"addcmul_", "", "_ZN2at4_ops8addcmul_4callERNS_6TensorERKS2_S5_RKN3c106ScalarE", true,
     .tensors = 3, .shapes = {"22", "22", "22"}, .scalars = 1},
    {"addcdiv", "", "_ZN2at4_ops7addcdiv4callERKNS_6TensorES4_S4_RKN3c106ScalarE", .tensors = 3,
     .shapes = {"22", "22", "22"}, .scalars = 1},
    {"addcdiv_", "", "_ZN2at4_ops8addcdiv_4callERNS_6TensorERKS2_S5_RKN3c106ScalarE", true,
     .tensors = 3, .shapes = {"22", "22", "22"}, .scalars = 1},
    {"lerp", "Tensor", "_ZN2at4_ops11lerp_Tensor4callERKNS_6TensorES4_S4_", .tensors = 3,
     .shapes = {"22", "22", "22"}},
    {"lerp_", "Tensor", "_ZN2at4_ops12lerp__Tensor4callERNS_6TensorERKS2_S5_", true, .tensors = 3,
     .shapes = {"22", "22", "22"}},
    {"hypot", "", "_ZN2at4_ops5hypot4callERKNS_6TensorES4_", .tensors = 2, .shapes = {"22", "22"}},
    {"hypot_", "", "_ZN2at4_ops6hypot_4callERNS_6TensorERKS2_", true, .tensors = 2,
     .shapes = {"22", "22"}},
    {"complex", "", "_ZN2at4_ops7complex4callERKNS_6TensorES4_", .tensors = 2,
     .shapes = {"22", "22"}},
    {"linalg_cross", "", "_ZN2at4_ops12linalg_cross4callERKNS_6TensorES4_l", .tensors = 2,
     .shapes = {"3", "3"}, .has_integer = true, .integer = -1},
};

const struct mesa_calibration *mesa_calibration_at(size_t index) {
    return index < sizeof calibrations / sizeof calibrations[0] ? &calibrations[index] : NULL;
}

const struct mesa_op *mesa_calibration_op(const struct mesa_calibration *calibration) {
    char spelling[64];
    bool is_inplace;
    int length = snprintf(spelling, sizeof spelling, "%s%s%s", calibration->name,
                          calibration->overload[0] ? "_" : "", calibration->overload);
    return mesa_op_of_symbol(spelling, (size_t)length, &is_inplace);
}
