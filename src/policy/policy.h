/* Policies: which way to hold a saved tensor. A policy is a list of rules, later ones override
 * earlier ones setting by setting; docs/policies.md describes the language. Pure: reads files only
 * when asked to load one, prints nothing, looks at no environment variable. Mistakes are data.
 *
 * Parsing is init only; a parsed policy is immutable and may be matched in any thread.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_POLICY_POLICY_H
#define MESA_POLICY_POLICY_H

#include "classify/layout.h"
#include "dtype.h"
#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The words for ways in the language. */
enum mesa_way {
    MESA_WAY_OFF,      /* do not even look: no hook, not counted (policy `off`) */
    MESA_WAY_KEEP,     /* the framework's own */
    MESA_WAY_EXACT,    /* the cheapest way that gives bit-identical gradients (see op table), else keep */
    MESA_WAY_AUTO,     /* the cheapest way that is good enough for what the backward reads */
    MESA_WAY_SHAPE,    /* geometry only */
    MESA_WAY_MASK,     /* 1 bit (2 for signs) */
    MESA_WAY_NARROW,   /* integers in fewer bits */
    MESA_WAY_SPARSE,   /* mask of nonzero elements and those elements */
    MESA_WAY_AFFINE,   /* b-bit codes */
    MESA_WAY_FLOAT16,
    MESA_WAY_BFLOAT16,
    MESA_WAY_COUNT,
};
const char *mesa_way_name(enum mesa_way way);

#define MESA_SHORT_FLOAT_BITS 16

struct mesa_settings {
    enum mesa_way way;
    unsigned bits;               /* 1..12 of codes, or MESA_SHORT_FLOAT_BITS: a short float */
    enum mesa_group_by by;       /* group=N is MESA_BY_BLOCK with group N; row, head, channel, tensor */
    size_t group;                /* 16..1024 */
    enum mesa_rounding rounding; /* round=nearest | stochastic */
    size_t min_bytes;            /* smaller tensors are kept: setting min_bytes= of a rule's condition
                                    is not this; this one comes from MESA_MIN_BYTES */
};

/* Where a rule stands, for explain and mistakes. */
struct mesa_place {
    const char *file; /* a path, "policy NAME" or "MESA_POLICY"; owned by the policy */
    unsigned line, column; /* 1-based */
};

/* A mistake: everything a message needs. Owns its texts, nothing to free; place.file points to
 * `file`, so it stays where it is. */
struct mesa_mistake {
    struct mesa_place place;
    char file[256];
    /* "FILE:LINE:COLUMN: unknown setting 'bit='; expected ...; did you mean 'bits'?" */
    char text[512];
};

struct mesa_policy;

/* What a rule's pattern and conditions are matched against. */
struct mesa_subject {
    const char *op;       /* as PyTorch names it: "native_layer_norm" */
    const char *argument; /* "input" */
    enum mesa_dtype dtype;
    size_t bytes;
    unsigned layer; /* order of occurrence of op.argument within the step, from 0 */
    uint32_t seen;  /* mesa_policy_sights() of all that the program has shown so far */
};

/* Parses `source`: a shipped name, a path (contains '/' or '.', or the file exists), or rules inline
 * separated by ';' (contains a blank, '=' or ';'). NULL on a mistake, then *ret_mistake is written. */
struct mesa_policy *mesa_policy_load(const char *source, struct mesa_mistake *ret_mistake);

/* Parses text that is `length` bytes long (need not be terminated); file is the name for mistakes. */
struct mesa_policy *mesa_policy_parse(const char *text, size_t length, const char *file,
                                      struct mesa_mistake *ret_mistake);
void mesa_policy_free(struct mesa_policy *policy); /* takes NULL */

/* Settings for a subject: those of all matching rules, later over earlier, starting from
 * {KEEP, 8, BY_BLOCK, 128, NEAREST}. *ret_place, if not NULL, is that of the last rule that matched. */
void mesa_policy_match(const struct mesa_policy *policy, const struct mesa_subject *subject,
                       struct mesa_settings *ret_settings, struct mesa_place *ret_place);

/* The conditions seen= that hold once this op has saved a tensor, as bits; 0 for most. Or, in place of an
 * op: once a matrix product or a convolution has saved weights that are not trained. */
#define MESA_FROZEN_WEIGHTS "frozen_weights"
uint32_t mesa_policy_sights(const struct mesa_policy *policy, const char *op);

/* True if any rule has a layer= condition (the caller then cannot cache by site alone). */
bool mesa_policy_uses_layers(const struct mesa_policy *policy);
/* Sizes from *ret_least on, up to *ret_end, that no min_bytes= of a rule for this op and argument tells
 * apart from subject->bytes: what was matched for one of them holds for all. */
void mesa_policy_span(const struct mesa_policy *policy, const struct mesa_subject *subject,
                      size_t *ret_least, size_t *ret_end);
/* True if every tensor gets MESA_WAY_OFF: the library need not arm itself at all. */
bool mesa_policy_is_off(const struct mesa_policy *policy);
/* True if no rule asks for anything but to keep tensors: the library only looks on. */
bool mesa_policy_keeps_all(const struct mesa_policy *policy);
/* Name to show in reports: the shipped name, path, or the inline text. */
const char *mesa_policy_name(const struct mesa_policy *policy);

/* The shipped policies, built into the library: index from 0 until false. */
struct mesa_shipped {
    const char *name, *summary, *text; /* summary: first comment line of the text */
    size_t length;
};
bool mesa_policy_shipped(size_t index, struct mesa_shipped *ret_shipped);

/* Nearest of `words` (NULL-terminated) to `word` by edit distance, if near enough; else NULL. */
const char *mesa_policy_nearest(const char *word, size_t length, const char *const *words);

#endif
