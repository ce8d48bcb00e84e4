/* Matching of globs without recursion: only the last `*` ever needs another try, because a later one
 * can take up whatever an earlier one would have.
 *
 * SPDX-License-Identifier: MIT */
#include "policy/glob.h"

#include <string.h>

bool mesa_glob_is_pattern(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '*' || text[i] == '?' || text[i] == '[')
            return true;
    }
    return false;
}

/* The `]` that closes the `[` at `set`, or NULL. One directly behind `[` or `[!` is a member. */
static const char *set_end(const char *set, const char *end) {
    const char *at = set + 1;
    if (at < end && *at == '!')
        at++;
    if (at < end && *at == ']')
        at++;
    return at < end ? memchr(at, ']', (size_t)(end - at)) : NULL;
}

const char *mesa_glob_fault(const char *text, size_t length) {
    const char *end = text + length;
    for (const char *at = text; at < end; at++) {
        if (*at != '[')
            continue;
        const char *close = set_end(at, end);
        if (close == NULL)
            return at;
        at = close;
    }
    return NULL;
}

static bool set_has(const char *set, const char *close, char c) {
    const char *at = set + 1;
    bool negated = *at == '!';
    at += negated;
    bool found = false;
    while (at < close) {
        bool is_range = at + 2 < close && at[1] == '-';
        unsigned char from = (unsigned char)at[0];
        unsigned char to = (unsigned char)(is_range ? at[2] : at[0]);
        found |= from <= (unsigned char)c && (unsigned char)c <= to;
        at += is_range ? 3 : 1;
    }
    return found != negated;
}

/* Matches one character of the pattern, not `*`. Returns what follows it, or NULL. */
static const char *match_one(const char *pattern, const char *end, char c) {
    if (pattern == end)
        return NULL;
    if (*pattern == '[') {
        const char *close = set_end(pattern, end);
        return close != NULL && set_has(pattern, close, c) ? close + 1 : NULL;
    }
    return *pattern == '?' || *pattern == c ? pattern + 1 : NULL;
}

bool mesa_glob_match(const char *pattern, const char *name) {
    const char *end = pattern + strlen(pattern);
    const char *star = NULL,
               *retry = NULL; /* behind the last `*`, and the name it has yet to take */
    while (*name != '\0') {
        if (pattern < end && *pattern == '*') {
            star = ++pattern;
            retry = name;
            if (star == end) /* takes the rest: the commonest pattern of all */
                return true;
            continue;
        }
        const char *next = match_one(pattern, end, *name);
        if (next != NULL) {
            pattern = next;
            name++;
        } else if (star != NULL) {
            pattern = star;
            name = ++retry;
        } else {
            return false;
        }
    }
    while (pattern < end && *pattern == '*')
        pattern++;
    return pattern == end;
}
