/* What a policy is made of: shared by the parser, which makes rules, and the matcher, which reads
 * them. Private to this folder.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_POLICY_RULE_H
#define MESA_POLICY_RULE_H

#include "policy/policy.h"

#include "policy/group.h"

/* What the op part of a pattern is. */
enum mesa_rule_kind {
    MESA_RULE_OP,     /* one op of the table, or "unknown": the exact name */
    MESA_RULE_GROUP,  /* a group of ops */
    MESA_RULE_GLOB,   /* any name, of custom functions too */
    MESA_RULE_CUSTOM, /* custom functions only, whose class name matches a glob or is the name */
};

#define MESA_RULE_MOST_SPANS 8
#define MESA_MOST_SIGHTS     32

struct mesa_layer_span {
    unsigned first, last; /* inclusive; last is UINT_MAX for "N-" */
};

/* Settings that a rule has; the others stay as earlier rules left them. */
enum {
    MESA_RULE_SETS_WAY = 1u << 0,
    MESA_RULE_SETS_BITS = 1u << 1,
    MESA_RULE_SETS_GROUP = 1u << 2,
    MESA_RULE_SETS_ROUND = 1u << 3,
    /* conditions, marked in the same word so that one told twice is a mistake as well */
    MESA_RULE_HAS_DTYPE = 1u << 4,
    MESA_RULE_HAS_BYTES = 1u << 5,
    MESA_RULE_HAS_LAYER = 1u << 6,
    MESA_RULE_HAS_SEEN = 1u << 7,
};
#define MESA_RULE_SETTINGS                                                                         \
    (MESA_RULE_SETS_WAY | MESA_RULE_SETS_BITS | MESA_RULE_SETS_GROUP | MESA_RULE_SETS_ROUND)
#define MESA_RULE_CONDITIONS                                                                       \
    (MESA_RULE_HAS_DTYPE | MESA_RULE_HAS_BYTES | MESA_RULE_HAS_LAYER | MESA_RULE_HAS_SEEN)

struct mesa_rule {
    struct mesa_place place;
    enum mesa_rule_kind kind;
    bool op_is_glob, argument_is_glob;
    char *op;                          /* owned */
    char *argument;                    /* owned; NULL: any */
    const struct mesa_op_group *group; /* MESA_RULE_GROUP */

    unsigned has;    /* MESA_RULE_SETS_... and MESA_RULE_HAS_... */
    unsigned dtypes; /* bit 1 << enum mesa_dtype */
    size_t least_bytes;
    struct mesa_layer_span spans[MESA_RULE_MOST_SPANS];
    unsigned span_count;
    uint32_t seen; /* those of the policy's sights that it asks for, as bits */

    struct mesa_settings settings; /* those that `has` names */
};

/* One text that rules came from. */
struct mesa_policy_file {
    char *label; /* owned: for places: a path, "policy NAME", "MESA_POLICY" */
    struct mesa_policy_file *next;
};

struct mesa_policy {
    char *name; /* owned */
    struct mesa_rule *rules;
    size_t count, capacity;
    bool uses_layers;               /* some rule has layer= */
    char *sights[MESA_MOST_SIGHTS]; /* owned: what rules ask for with seen= */
    unsigned sight_count;
    struct mesa_policy_file *files;
};

/* The argument that sites of custom functions have (classify/site.h); no op of the table has it. */
#define MESA_CUSTOM_ARGUMENT "saved"

bool mesa_rule_matches(const struct mesa_rule *rule, const struct mesa_subject *subject);

/* True if the rule matches every subject. */
bool mesa_rule_is_universal(const struct mesa_rule *rule);

void mesa_rule_done(struct mesa_rule *rule);

/* Adds the rules of a text to `policy`. False on a mistake; the policy can then only be freed. */
bool mesa_policy_parse_into(struct mesa_policy *policy, const char *label, const char *bytes,
                            size_t length, struct mesa_mistake *ret_mistake);

/* A copy of `label` that lives as long as `policy`; NULL without memory. */
const char *mesa_policy_keep_label(struct mesa_policy *policy, const char *label);

/* A mistake of a whole source: at 1:1. `suggestion` may be NULL. */
__attribute__((format(printf, 4, 5))) void mesa_mistake_fill(struct mesa_mistake *ret_mistake,
                                                             const char *label,
                                                             const char *suggestion,
                                                             const char *format, ...);

/* The policies of policies/, in the order of meson.build; made by gen_policies.py. */
extern const struct mesa_shipped mesa_shipped[];
extern const size_t mesa_shipped_count;

/* False if no shipped policy is called so; `name` need not be terminated. */
bool mesa_shipped_find(const char *name, size_t length, struct mesa_shipped *ret_shipped);
/* Nearest of their names, or NULL. */
const char *mesa_shipped_nearest(const char *name, size_t length);

#endif
