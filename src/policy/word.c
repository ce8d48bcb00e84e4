/* Words of a line.
 *
 * SPDX-License-Identifier: MIT */
#include "policy/parse.h"

#include <string.h>

bool mesa_word_is(struct mesa_word word, const char *text) {
    return strlen(text) == word.length && memcmp(text, word.text, word.length) == 0;
}

char *mesa_word_copy(struct mesa_word word) {
    return strndup(word.text, word.length);
}

const char *mesa_word_nearest(struct mesa_word word, const char *const *words) {
    return mesa_policy_nearest(word.text, word.length, words);
}

bool mesa_word_unquote(const struct mesa_line *line, struct mesa_word *word) {
    if (word->length == 0 || word->text[0] != '"')
        return true;
    const char *close = memchr(word->text + 1, '"', word->length - 1);
    if (close != word->text + word->length - 1)
        return mesa_line_fail(line, close + 1, NULL, "expected a blank after the closing quote");
    if (word->length == 2)
        return mesa_line_fail(line, word->text, NULL, "expected a name between the quotes");
    *word = (struct mesa_word){word->text + 1, word->length - 2};
    return true;
}
