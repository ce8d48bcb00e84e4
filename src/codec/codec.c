/* The table of codecs. A new codec is a file, its declaration in codec.h and a row here.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/codec.h"

#include <string.h>

const struct mesa_codec *const mesa_codecs[] = {
    &mesa_codec_affine,   &mesa_codec_mask,
    &mesa_codec_interval, &mesa_codec_two,
    &mesa_codec_sign,     &mesa_codec_window,
    &mesa_codec_narrow,   &mesa_codec_sparse,
    &mesa_codec_exponent, &mesa_codec_sparse_affine,
    &mesa_codec_bfloat16, &mesa_codec_float16,
    &mesa_codec_copy,     &mesa_codec_compare,
    NULL,
};

const struct mesa_codec *mesa_codec_find(const char *name) {
    for (const struct mesa_codec *const *codec = mesa_codecs; *codec != NULL; codec++)
        if (strcmp((*codec)->name, name) == 0)
            return *codec;
    return NULL;
}
