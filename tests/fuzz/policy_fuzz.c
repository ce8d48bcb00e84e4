/* Any bytes as a policy: parsing ends, and ends in a policy whose settings are in range or in a
 * mistake that names a place. Built for libFuzzer with -Dfuzzing=true; replay.c runs it over the
 * seeds in every build.
 *
 * SPDX-License-Identifier: MIT */
#include "fuzz.h"

#include "policy/policy.h"

#include <stdlib.h>
#include <string.h>

/* Not assert: release builds fuzz too. */
static void require(bool holds) {
    if (!holds)
        abort();
}

static void check_settings(const struct mesa_settings *settings) {
    require(settings->way < MESA_WAY_COUNT);
    require(settings->bits >= 1 && settings->bits <= 16);
    require(settings->by <= MESA_BY_TENSOR);
    require(settings->group >= 16 && settings->group <= 1024);
    require(settings->rounding <= MESA_ROUND_STOCHASTIC);
}

static void check_policy(const struct mesa_policy *policy) {
    static const struct mesa_subject subjects[] = {
        {"addmm", "mat1", MESA_F32, 1 << 20, 0, 0},
        {"native_layer_norm", "input", MESA_BF16, 4096, 3, 1},
        {"MyFunction", "saved", MESA_F16, 1, 7, 2},
        {"unknown", "?", MESA_DTYPE_OTHER, 0, 1, 3},
        {"relu", "result", MESA_F64, 65536, 12, UINT32_MAX},
    };
    bool is_off = mesa_policy_is_off(policy);
    require(strcmp(mesa_policy_name(policy), "fuzz") == 0);
    for (size_t i = 0; i < sizeof subjects / sizeof subjects[0]; i++) {
        struct mesa_settings settings;
        struct mesa_place place;
        mesa_policy_match(policy, &subjects[i], &settings, &place);
        check_settings(&settings);
        require(!is_off || settings.way == MESA_WAY_OFF);
        require(place.file == NULL || (place.line >= 1 && place.column >= 1));
    }
}

static void check_mistake(const struct mesa_mistake *mistake) {
    require(mistake->place.file == mistake->file && mistake->file[0] != '\0');
    require(mistake->place.line >= 1 && mistake->place.column >= 1);
    size_t length = strnlen(mistake->text, sizeof mistake->text);
    require(length < sizeof mistake->text);
    require(strncmp(mistake->text, mistake->file, strlen(mistake->file)) == 0);
    for (size_t i = 0; i < length; i++)
        require((unsigned char)mistake->text[i] >= ' ');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct mesa_mistake mistake;
    memset(&mistake, 0xff, sizeof mistake);
    struct mesa_policy *policy = mesa_policy_parse((const char *)data, size, "fuzz", &mistake);
    if (policy != NULL)
        check_policy(policy);
    else
        check_mistake(&mistake);
    mesa_policy_free(policy);
    return 0;
}
