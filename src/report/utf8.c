/* Table 3-7 of the Unicode standard (well-formed byte sequences) as code.
 *
 * SPDX-License-Identifier: MIT */
#include "report/utf8.h"

#include <stdbool.h>

static bool is_within(unsigned char byte, unsigned char low, unsigned char high) {
    return byte >= low && byte <= high;
}

size_t mesa_utf8_length(const char *text) {
    const unsigned char *bytes = (const unsigned char *)text;
    unsigned char first = bytes[0], low = 0x80, high = 0xbf; /* bounds of the second byte */
    size_t length;
    if (first < 0x80)
        return 1;
    if (is_within(first, 0xc2, 0xdf))
        length = 2;
    else if (is_within(first, 0xe0, 0xef))
        length = 3;
    else if (is_within(first, 0xf0, 0xf4))
        length = 4;
    else
        return 0;
    if (first == 0xe0)
        low = 0xa0; /* below: overlong */
    else if (first == 0xed)
        high = 0x9f; /* above: surrogates */
    else if (first == 0xf0)
        low = 0x90; /* below: overlong */
    else if (first == 0xf4)
        high = 0x8f; /* above: past U+10FFFF */
    if (!is_within(bytes[1], low, high))
        return 0;
    for (size_t i = 2; i < length; i++)
        if (!is_within(bytes[i], 0x80, 0xbf))
            return 0; /* a NUL ends here too */
    return length;
}
