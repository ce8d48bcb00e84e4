/* The policy language: what rules mean, what mistakes say, what is shipped.
 *
 * SPDX-License-Identifier: MIT */
#include "policy/policy.h"

#include "classify/op.h"
#include "policy/glob.h"
#include "policy/group.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t seed = 0x9e3779b97f4a7c15u;

static uint64_t draw(uint64_t below) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (seed >> 11) % below;
}

static struct mesa_policy *parse(const char *text) {
    struct mesa_mistake mistake = {.text = ""};
    struct mesa_policy *policy = mesa_policy_parse(text, strlen(text), "test", &mistake);
    cr_assert_not_null(policy, "%s", mistake.text);
    return policy;
}

static void expect_mistake_of(const char *text, size_t length, const char *expected) {
    struct mesa_mistake mistake;
    memset(&mistake, '#', sizeof mistake);
    struct mesa_policy *policy = mesa_policy_parse(text, length, "test", &mistake);
    cr_assert_null(policy, "no mistake in: %s", text);
    cr_assert_str_eq(mistake.text, expected);
    unsigned line, column;
    cr_assert_eq(sscanf(mistake.text, "test:%u:%u: ", &line, &column), 2);
    cr_assert_eq(mistake.place.line, line);
    cr_assert_eq(mistake.place.column, column);
    cr_assert_str_eq(mistake.place.file, "test");
}

static void expect_mistake(const char *text, const char *expected) {
    expect_mistake_of(text, strlen(text), expected);
}

static struct mesa_settings match_all(const struct mesa_policy *policy, const char *op,
                                      const char *argument, enum mesa_dtype dtype, size_t bytes,
                                      unsigned layer) {
    struct mesa_settings settings;
    mesa_policy_match(policy, &(struct mesa_subject){op, argument, dtype, bytes, layer, 0},
                      &settings, NULL);
    return settings;
}

static struct mesa_settings match(const struct mesa_policy *policy, const char *op,
                                  const char *argument) {
    return match_all(policy, op, argument, MESA_F32, 1 << 20, 0);
}

static bool takes(const char *rules, const char *op, const char *argument) {
    struct mesa_policy *policy = parse(rules);
    enum mesa_way way = match(policy, op, argument).way;
    mesa_policy_free(policy);
    cr_assert(way == MESA_WAY_KEEP || way == MESA_WAY_AFFINE);
    return way == MESA_WAY_AFFINE;
}

/* ---- globs ------------------------------------------------------------------------------------- */

Test(glob, matches) {
    static const struct {
        const char *pattern, *name;
        bool matches;
    } cases[] = {
        {"", "", true},
        {"", "a", false},
        {"a", "", false},
        {"*", "", true},
        {"*", "abc", true},
        {"**", "abc", true},
        {"a*", "abc", true},
        {"*c", "abc", true},
        {"*b*", "abc", true},
        {"*d*", "abc", false},
        {"a?c", "abc", true},
        {"a?c", "ac", false},
        {"?", "", false},
        {"[ab]c", "bc", true},
        {"[ab]c", "cc", false},
        {"[a-c]*", "beta", true},
        {"[a-c]*", "zeta", false},
        {"[!a-c]*", "zeta", true},
        {"[!a-c]", "b", false},
        {"[]x]", "]", true},
        {"[!]x]", "y", true},
        {"[!]x]", "]", false},
        {"[a-]", "-", true},
        {"[-a]", "-", true},
        {"*_norm", "native_layer_norm", true},
        {"*a*b*c", "xaxbxbxc", true},
        {"a*a*a*b", "aaaaaaaaaaaaaaaa", false},
        {"*ab", "aab", true},
        {"\xff*", "\xff", true},
        {"[\x80-\xff]", "\xc3", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_expect_eq(mesa_glob_match(cases[i].pattern, cases[i].name), cases[i].matches,
                     "'%s' and '%s'", cases[i].pattern, cases[i].name);
}

/* The definition, by recursion; sets are left to the cases above. */
static bool slow_match(const char *pattern, const char *name) {
    if (*pattern == '\0')
        return *name == '\0';
    if (*pattern == '*')
        return slow_match(pattern + 1, name) || (*name != '\0' && slow_match(pattern, name + 1));
    return *name != '\0' && (*pattern == '?' || *pattern == *name) &&
           slow_match(pattern + 1, name + 1);
}

Test(glob, is_as_defined) {
    int matched = 0;
    for (int i = 0; i < 200000; i++) {
        char pattern[8] = "", name[8] = "";
        for (uint64_t n = draw(7), at = 0; at < n; at++)
            pattern[at] = "ab*?*"[draw(5)];
        for (uint64_t n = draw(7), at = 0; at < n; at++)
            name[at] = "ab"[draw(2)];
        bool expected = slow_match(pattern, name);
        cr_assert_eq(mesa_glob_match(pattern, name), expected, "'%s' and '%s'", pattern, name);
        matched += expected;
    }
    cr_assert_gt(matched, 1000);
}

Test(glob, is_not_exponential) {
    char pattern[201], name[2001];
    for (int i = 0; i < 200; i++)
        pattern[i] = i % 2 == 0 ? 'a' : '*';
    pattern[199] = 'b';
    pattern[200] = '\0';
    memset(name, 'a', 2000);
    name[2000] = '\0';
    cr_assert(!mesa_glob_match(pattern, name));
}

/* ---- patterns ---------------------------------------------------------------------------------- */

Test(policy, empty_keeps) {
    struct mesa_policy *policy = parse("# nothing but a comment\n\n   ;;  ; # more\n\t\r\n");
    struct mesa_settings settings;
    struct mesa_place place = {"x", 1, 1};
    struct mesa_subject subject = {"relu", "result", MESA_F32, 1, 0, 0};
    mesa_policy_match(policy, &subject, &settings, &place);
    cr_assert_eq(settings.way, MESA_WAY_KEEP);
    cr_assert_eq(settings.bits, 8);
    cr_assert_eq(settings.by, MESA_BY_BLOCK);
    cr_assert_eq(settings.group, 128);
    cr_assert_eq(settings.rounding, MESA_ROUND_NEAREST);
    cr_assert_null(place.file);
    mesa_policy_free(policy);
    mesa_policy_free(NULL);

    struct mesa_mistake mistake;
    policy = mesa_policy_parse(NULL, 0, "test", &mistake);
    cr_assert_not_null(policy);
    mesa_policy_free(policy);
}

Test(policy, patterns) {
    cr_expect(takes("* affine", "relu", "result"));
    cr_expect(takes("* affine", "MyFunction", "saved"));
    cr_expect(takes("* affine", "unknown", "?"));
    cr_expect(takes("*.* affine", "addmm", "mat1"));
    cr_expect(takes("relu affine", "relu", "result"));
    cr_expect(!takes("relu affine", "gelu", "self"));
    cr_expect(!takes("relu affine", "relu", "saved")); /* a custom class of that name */
    cr_expect(takes("addmm.mat1 affine", "addmm", "mat1"));
    cr_expect(!takes("addmm.mat1 affine", "addmm", "mat2"));
    cr_expect(!takes("addmm.mat1 affine", "addmm", "?")); /* argument not known yet */
    cr_expect(takes("addmm.mat? affine", "addmm", "mat2"));
    cr_expect(takes("*mm.mat[12] affine", "addmm", "mat1"));
    cr_expect(!takes("*mm.mat[12] affine", "mm", "self"));
    cr_expect(takes("*_norm*.input affine", "native_layer_norm", "input"));
    cr_expect(takes("*.saved affine", "MyFunction", "saved"));
    cr_expect(takes("[g]elu.self affine", "gelu", "self"));
}

Test(policy, groups) {
    cr_expect(takes("layer_norm affine", "native_layer_norm", "input"));
    cr_expect(takes("layer_norm.input affine", "native_layer_norm", "input"));
    cr_expect(takes("layer_norm.mean affine", "native_layer_norm", "result1"));
    cr_expect(!takes("layer_norm.mean affine", "native_layer_norm", "result2"));
    cr_expect(takes("layer_norm.result2 affine", "native_layer_norm", "result2"));
    cr_expect(!takes("layer_norm affine", "native_group_norm", "input"));
    cr_expect(!takes("layer_norm affine", "layer_norm", "saved"));
    cr_expect(takes("linear.input affine", "addmm", "mat1"));
    cr_expect(takes("linear.input affine", "mm", "self"));
    cr_expect(takes("linear.input affine", "linear", "input"));
    cr_expect(!takes("linear.input affine", "addmm", "mat2"));
    cr_expect(!takes("linear.input affine", "bmm", "self"));
    cr_expect(takes("linear.weight affine", "mm", "mat2"));
    cr_expect(takes("linear.in* affine", "addmm", "mat1"));
    cr_expect(takes("linear.mat* affine", "addmm", "mat1"));
    cr_expect(!takes("linear.mat* affine", "mm", "self"));
    cr_expect(takes("matmul.right affine", "bmm", "mat2"));
    cr_expect(takes("conv.input affine", "cudnn_convolution", "self"));
    cr_expect(
        takes("attention.query affine", "_scaled_dot_product_flash_attention_for_cpu", "query"));
    cr_expect(!takes("attention affine", "_softmax", "result"));
    cr_expect(takes("softmax.output affine", "_softmax", "result"));
    cr_expect(!takes("softmax.output affine", "_log_softmax", "result"));
    cr_expect(takes("dropout.mask affine", "native_dropout", "result1"));
    cr_expect(takes("max_pool.indices affine", "max_pool2d_with_indices", "result1"));
}

Test(policy, custom_functions) {
    cr_expect(takes("custom affine", "MyFunction", "saved"));
    cr_expect(takes("custom affine", "custom", "saved"));
    cr_expect(takes("custom.saved affine", "MyFunction", "saved"));
    cr_expect(!takes("custom affine", "relu", "result"));
    cr_expect(!takes("custom affine", "unknown", "?"));
    cr_expect(takes("custom:MyFunction affine", "MyFunction", "saved"));
    cr_expect(takes("custom:My* affine", "MyFunction", "saved"));
    cr_expect(takes("custom:package.My* affine", "package.MyFunction", "saved"));
    cr_expect(!takes("custom:MyFunction affine", "MyFunction2", "saved"));
    cr_expect(!takes("custom:relu affine", "relu", "result"));
    cr_expect(takes("\"ns::My Function<int>\" affine", "ns::My Function<int>", "saved"));
    cr_expect(takes("\"a;b # c\" affine", "a;b # c", "saved"));
    cr_expect(!takes("\"My*\" affine", "MyFunction", "saved")); /* quotes take `*` for itself */
    cr_expect(takes("custom:\"My*\" affine", "My*", "saved"));
    cr_expect(takes("unknown affine", "unknown", "?"));
    cr_expect(takes("unknown.? affine", "unknown", "?"));
    cr_expect(!takes("unknown affine", "relu", "result"));
}

/* ---- conditions and settings ------------------------------------------------------------------- */

static unsigned bits_when(const struct mesa_policy *policy, uint32_t seen) {
    struct mesa_subject subject = {"mm", "self", MESA_F32, 1 << 20, 0, seen};
    struct mesa_settings settings;
    mesa_policy_match(policy, &subject, &settings, NULL);
    return settings.bits;
}

Test(policy, what_was_seen) {
    struct mesa_policy *policy =
        parse("* affine; mm bits=9 seen=linear; mm bits=10 seen=silu seen=batch_norm; "
              "mm bits=11 seen=linear seen=frozen_weights; addmm bits=3 seen=silu");
    uint32_t linear = mesa_policy_sights(policy, "addmm");
    uint32_t silu = mesa_policy_sights(policy, "silu");
    uint32_t norm = mesa_policy_sights(policy, "native_batch_norm");
    uint32_t frozen = mesa_policy_sights(policy, MESA_FROZEN_WEIGHTS);
    cr_assert_eq(mesa_policy_sights(policy, "relu"), 0);
    cr_assert_eq(mesa_policy_sights(policy, "mm"), linear);
    cr_assert_eq(__builtin_popcount(linear | silu | norm | frozen), 4);

    cr_assert_eq(bits_when(policy, 0), 8);
    cr_assert_eq(bits_when(policy, linear), 9);
    cr_assert_eq(bits_when(policy, silu), 8);
    cr_assert_eq(bits_when(policy, silu | norm), 10);
    cr_assert_eq(bits_when(policy, linear | silu | norm), 10);
    cr_assert_eq(bits_when(policy, linear | frozen), 11);
    cr_assert_eq(bits_when(policy, frozen), 8);
    mesa_policy_free(policy);
}

/* All rules share 32 bits of a set. */
Test(policy, what_was_seen_has_room_for_32_names) {
    char text[8192] = "";
    for (size_t i = 0; i < 40; i++) { /* overloads have the same name */
        char rule[160];
        snprintf(rule, sizeof rule, "* keep seen=%s\n* keep seen=mm\n", mesa_op_at(i)->name);
        strncat(text, rule, sizeof text - strlen(text) - 1);
    }
    struct mesa_mistake mistake;
    cr_assert_null(mesa_policy_parse(text, strlen(text), "test", &mistake));
    cr_assert_not_null(strstr(mistake.text, "expected at most 32 different names"));
}

Test(policy, conditions) {
    struct mesa_policy *policy = parse("* dtype=float32,bf16 min_bytes=64K layer=1,4-6,10- mask");
    cr_assert(mesa_policy_uses_layers(policy));
    for (unsigned layer = 0; layer < 14; layer++) {
        bool in = layer == 1 || (layer >= 4 && layer <= 6) || layer >= 10;
        for (int dtype = 0; dtype < MESA_DTYPE_COUNT; dtype++) {
            bool of = dtype == MESA_F32 || dtype == MESA_BF16;
            for (size_t bytes = 65535; bytes <= 65537; bytes++) {
                struct mesa_settings settings =
                    match_all(policy, "relu", "result", (enum mesa_dtype)dtype, bytes, layer);
                cr_assert_eq(settings.way == MESA_WAY_MASK, in && of && bytes >= 65536);
            }
        }
    }
    mesa_policy_free(policy);

    policy = parse("* keep; relu bits=3 min_bytes=2");
    cr_assert(!mesa_policy_uses_layers(policy));
    cr_assert_eq(match_all(policy, "relu", "result", MESA_F32, 1, 0).bits, 8);
    cr_assert_eq(match_all(policy, "relu", "result", MESA_F32, 2, 0).bits, 3);
    mesa_policy_free(policy);
    policy = parse("* min_bytes=3m keep; * min_bytes=2G bits=7");
    cr_assert_eq(match_all(policy, "relu", "result", MESA_F32, (size_t)2 << 30, 0).bits, 7);
    cr_assert_eq(match_all(policy, "relu", "result", MESA_F32, ((size_t)2 << 30) - 1, 0).bits, 8);
    mesa_policy_free(policy);
    policy = parse("* keep");
    cr_assert(!mesa_policy_uses_layers(policy));
    mesa_policy_free(policy);
}

static void expect_span(const struct mesa_policy *policy, const char *op, const char *argument,
                        size_t bytes, size_t least, size_t end) {
    struct mesa_subject subject = {op, argument, MESA_F32, bytes, 0, 0};
    size_t found_least, found_end;
    mesa_policy_span(policy, &subject, &found_least, &found_end);
    cr_expect(found_least == least && found_end == end, "%s.%s of %zu bytes: %zu to %zu", op,
              argument, bytes, found_least, found_end);
}

Test(policy, spans_of_sizes) {
    struct mesa_policy *policy =
        parse("* keep; relu bits=3 min_bytes=100; relu.result bits=4 min_bytes=200; "
              "linear.input bits=5 min_bytes=1k");
    expect_span(policy, "relu", "result", 0, 0, 100);
    expect_span(policy, "relu", "result", 99, 0, 100);
    expect_span(policy, "relu", "result", 100, 100, 200);
    expect_span(policy, "relu", "result", 200, 200, SIZE_MAX);
    expect_span(policy, "relu", "self", 200, 100, SIZE_MAX);
    expect_span(policy, "addmm", "mat1", 1023, 0, 1024);
    expect_span(policy, "addmm", "mat2", 1023, 0, SIZE_MAX);
    expect_span(policy, "gelu", "self", 1, 0, SIZE_MAX);
    mesa_policy_free(policy);
}

Test(policy, every_setting) {
    for (int way = 0; way < MESA_WAY_COUNT; way++) {
        char rule[64];
        snprintf(rule, sizeof rule, "* %s", mesa_way_name((enum mesa_way)way));
        struct mesa_policy *policy = parse(rule);
        cr_assert_eq((int)match(policy, "relu", "result").way, way);
        mesa_policy_free(policy);
    }
    struct mesa_policy *policy = parse("* affine bits=3 group=row round=stochastic");
    struct mesa_settings settings = match(policy, "relu", "result");
    cr_assert_eq(settings.way, MESA_WAY_AFFINE);
    cr_assert_eq(settings.bits, 3);
    cr_assert_eq(settings.by, MESA_BY_ROW);
    cr_assert_eq(settings.group, 128); /* what blocks fall back to */
    cr_assert_eq(settings.rounding, MESA_ROUND_STOCHASTIC);
    mesa_policy_free(policy);

    policy = parse("* group=head; relu group=channel; gelu group=tensor; addmm group=16; "
                   "mm group=1024; bmm group=row; bmm group=64 round=nearest bits=1");
    cr_assert_eq(match(policy, "tanh", "result").by, MESA_BY_HEAD);
    cr_assert_eq(match(policy, "relu", "result").by, MESA_BY_CHANNEL);
    cr_assert_eq(match(policy, "gelu", "self").by, MESA_BY_TENSOR);
    cr_assert_eq(match(policy, "addmm", "mat1").by, MESA_BY_BLOCK);
    cr_assert_eq(match(policy, "addmm", "mat1").group, 16);
    cr_assert_eq(match(policy, "mm", "self").group, 1024);
    cr_assert_eq(match(policy, "bmm", "self").by, MESA_BY_BLOCK);
    cr_assert_eq(match(policy, "bmm", "self").group, 64);
    cr_assert_eq(match(policy, "bmm", "self").bits, 1);
    mesa_policy_free(policy);
}

Test(policy, later_rules_override_setting_by_setting) {
    struct mesa_policy *policy = parse("*            affine bits=4 group=64\n"
                                       "linear.input bits=8\n"
                                       "addmm        round=stochastic # way and bits stay\n"
                                       "mm           keep; mm.self mask\n");
    struct mesa_settings settings;
    struct mesa_place place;
    struct mesa_subject subject = {"addmm", "mat1", MESA_F32, 1 << 20, 0, 0};
    mesa_policy_match(policy, &subject, &settings, &place);
    cr_assert_eq(settings.way, MESA_WAY_AFFINE);
    cr_assert_eq(settings.bits, 8);
    cr_assert_eq(settings.group, 64);
    cr_assert_eq(settings.rounding, MESA_ROUND_STOCHASTIC);
    cr_assert_str_eq(place.file, "test");
    cr_assert_eq(place.line, 3);
    cr_assert_eq(place.column, 1);
    subject = (struct mesa_subject){"mm", "self", MESA_F32, 1 << 20, 0, 0};
    mesa_policy_match(policy, &subject, &settings, &place);
    cr_assert_eq(settings.way, MESA_WAY_MASK);
    cr_assert_eq(place.line, 4);
    cr_assert_eq(place.column, 20);
    cr_assert_eq(match(policy, "mm", "mat2").way, MESA_WAY_KEEP);
    cr_assert_eq(match(policy, "gelu", "self").bits, 4);
    mesa_policy_free(policy);
}

/* Random lists of rules against a model that knows for each rule which of four subjects it takes. */
Test(policy, precedence_is_order) {
    static const struct {
        const char *op, *argument;
    } subjects[] = {{"relu", "result"}, {"addmm", "mat1"}, {"mm", "self"}, {"Mine", "saved"}};
    static const struct {
        const char *pattern;
        unsigned takes; /* bit i: subject i */
    } patterns[] = {
        {"*", 15},           {"relu", 1},
        {"linear", 6},       {"linear.input", 6},
        {"addmm.mat1", 2},   {"addmm.mat2", 0},
        {"m*", 4},           {"*.self", 4},
        {"custom", 8},       {"custom:Mine", 8},
        {"[!r]*", 14},       {"* layer=3", 0},
        {"* layer=0-2", 15}, {"* dtype=float32", 15},
    };
    for (int i = 0; i < 2000; i++) {
        char text[2048] = "";
        struct mesa_settings expected[4];
        for (int s = 0; s < 4; s++)
            expected[s] = (struct mesa_settings){.way = MESA_WAY_KEEP, .bits = 8, .group = 128};
        for (uint64_t rules = draw(12); rules > 0; rules--) {
            size_t p = draw(sizeof patterns / sizeof patterns[0]);
            enum mesa_way way = (enum mesa_way)draw(MESA_WAY_COUNT);
            unsigned bits = (unsigned)draw(9), group = (unsigned)draw(1025); /* some: not set */
            bool has_way = draw(2) == 0 || (bits == 0 && group < 16);
            char rule[128], part[32];
            strcpy(rule, patterns[p].pattern);
            if (has_way)
                strcat(strcat(rule, " "), mesa_way_name(way));
            if (bits > 0) {
                snprintf(part, sizeof part, " bits=%u", bits);
                strcat(rule, part);
            }
            if (group >= 16) {
                snprintf(part, sizeof part, "\tgroup=%u", group);
                strcat(rule, part);
            }
            strcat(strcat(text, rule), draw(2) == 0 ? "\n" : " ; ");
            for (int s = 0; s < 4; s++) {
                if ((patterns[p].takes >> s & 1) == 0)
                    continue;
                expected[s].way = has_way ? way : expected[s].way;
                expected[s].bits = bits > 0 ? bits : expected[s].bits;
                expected[s].group = group >= 16 ? group : expected[s].group;
            }
        }
        struct mesa_policy *policy = parse(text);
        for (int s = 0; s < 4; s++) {
            struct mesa_settings got = match(policy, subjects[s].op, subjects[s].argument);
            cr_assert(got.way == expected[s].way && got.bits == expected[s].bits &&
                          got.group == expected[s].group,
                      "subject %d of %s", s, text);
        }
        mesa_policy_free(policy);
    }
}

Test(policy, keeps_all) {
    static const struct {
        const char *text;
        bool keeps_all;
    } cases[] = {
        {"", true},
        {"* keep", true},
        {"* keep; relu off; gelu bits=4", true},
        {"* auto", false},
        {"* auto; * keep", false}, /* said too seldom to be worth more */
        {"* dtype=float32 mask", false},
        {"include observe", true},
        {"include default", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mesa_policy *policy = parse(cases[i].text);
        cr_expect_eq(mesa_policy_keeps_all(policy), cases[i].keeps_all, "%s", cases[i].text);
        mesa_policy_free(policy);
    }
}

Test(policy, is_off) {
    static const struct {
        const char *text;
        bool is_off;
    } cases[] = {
        {"", false},
        {"* off", true},
        {"*.* off", true},
        {"* off; relu keep", false},
        {"* off; relu off", true},
        {"relu keep; * off", true},
        {"* dtype=float32 off", false},
        {"* min_bytes=0 off", false},
        {"* layer=0- off", false},
        {"*a* off", false},
        {"*.*f off", false},
        {"* off; relu bits=4", true},
        {"* off; * auto; * off", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mesa_policy *policy = parse(cases[i].text);
        cr_expect_eq(mesa_policy_is_off(policy), cases[i].is_off, "%s", cases[i].text);
        mesa_policy_free(policy);
    }
}

/* ---- mistakes ---------------------------------------------------------------------------------- */

#define EXPECTED_OP                                                                                \
    "expected an op of PyTorch's, a group like linear, a pattern with *, custom:CLASS or include"
#define EXPECTED_KEY "bits=, group=, round=, dtype=, min_bytes=, layer= or seen="
#define EXPECTED_SETTING                                                                           \
    "expected off, keep, exact, auto, shape, mask, narrow, sparse, affine, float16, "              \
    "bfloat16, " EXPECTED_KEY

Test(mistake, in_patterns) {
    expect_mistake("layer_nrom keep", "test:1:1: unknown op 'layer_nrom'; " EXPECTED_OP
                                      "; did you mean 'layer_norm'?");
    expect_mistake("* keep\n  LayerNorm keep",
                   "test:2:3: unknown op 'LayerNorm'; " EXPECTED_OP "; did you mean 'layer_norm'?");
    expect_mistake("* keep; qqqqqqqqqqqqq keep",
                   "test:1:9: unknown op 'qqqqqqqqqqqqq'; " EXPECTED_OP);
    expect_mistake("MyFunction keep", "test:1:1: unknown op 'MyFunction'; " EXPECTED_OP);
    expect_mistake("default; relu keep", "test:1:1: unknown op 'default'; " EXPECTED_OP
                                         "; did you mean 'include default'?");
    expect_mistake("inclde default",
                   "test:1:1: unknown op 'inclde'; " EXPECTED_OP "; did you mean 'include'?");
    expect_mistake("relu.reslt keep",
                   "test:1:6: 'relu' saves no argument 'reslt'; expected result; "
                   "did you mean 'result'?");
    expect_mistake("linear.inptu keep",
                   "test:1:8: 'linear' saves no argument 'inptu'; expected input, weight, mat1, "
                   "mat2 or self; did you mean 'input'?");
    expect_mistake("relu.s* keep", "test:1:6: 'relu' saves no argument 's*'; expected result");
    expect_mistake("gel*.slef keep", "test:1:6: 'gel*' saves no argument 'slef'; expected self or "
                                     "saved; did you mean 'self'?");
    expect_mistake("custom.input keep",
                   "test:1:8: 'custom' saves no argument 'input'; expected saved");
    expect_mistake("unknown.input keep",
                   "test:1:9: 'unknown' saves no argument 'input'; expected ?");
    expect_mistake(".input keep", "test:1:1: expected an op before '.'");
    expect_mistake("relu. keep", "test:1:6: expected an argument after '.'");
    expect_mistake("re[l keep", "test:1:3: '[' without its ']'");
    expect_mistake("*.[!] keep", "test:1:3: '[' without its ']'");
    expect_mistake("custom: keep",
                   "test:1:8: expected the class of an autograd function after 'custom:'");
    expect_mistake("custom:[a keep", "test:1:8: '[' without its ']'");
    expect_mistake("\"\" keep", "test:1:1: expected a name between the quotes");
    expect_mistake("\"My Function keep", "test:1:1: no closing quote on this line; expected '\"'");
    expect_mistake("\"My\".saved keep", "test:1:5: expected a blank after the closing quote");
    expect_mistake("re\x01lu\x7f keep",
                   "test:1:1: unknown op 're?lu?'; " EXPECTED_OP "; did you mean 'relu'?");
}

Test(mistake, in_settings) {
    expect_mistake("relu",
                   "test:1:5: no setting for 'relu'; expected a way such as keep or affine, "
                   "bits=, group= or round=");
    expect_mistake(
        "relu layer=2 # off",
        "test:1:14: no setting for 'relu'; expected a way such as keep or affine, bits=, "
        "group= or round=");
    expect_mistake("* afine", "test:1:3: unknown setting 'afine'; " EXPECTED_SETTING
                              "; did you mean 'affine'?");
    expect_mistake("* bits",
                   "test:1:3: unknown setting 'bits'; " EXPECTED_SETTING "; did you mean 'bits'?");
    expect_mistake("* affine bit=4", "test:1:10: unknown setting 'bit='; expected " EXPECTED_KEY
                                     "; did you mean 'bits'?");
    expect_mistake("* =4", "test:1:3: unknown setting '='; expected " EXPECTED_KEY);
    expect_mistake("* bits=13", "test:1:8: '13' bits; expected 1 to 12, or 16");
    expect_mistake("* bits=15", "test:1:8: '15' bits; expected 1 to 12, or 16");
    expect_mistake("* bits=17", "test:1:8: '17' bits; expected 1 to 12, or 16");
    expect_mistake("* bits=0", "test:1:8: '0' bits; expected 1 to 12, or 16");
    expect_mistake("* bits=", "test:1:8: '' bits; expected 1 to 12, or 16");
    expect_mistake("* bits=4x", "test:1:8: '4x' bits; expected 1 to 12, or 16");
    expect_mistake("* bits=99999999999999999999", "test:1:8: '99999999999999999999' bits; expected "
                                                  "1 to 12, or 16");
    expect_mistake("* group=8", "test:1:9: unknown group '8'; expected 16 to 1024, row, head, "
                                "channel or tensor");
    expect_mistake("* group=1025",
                   "test:1:9: unknown group '1025'; expected 16 to 1024, row, head, "
                   "channel or tensor");
    expect_mistake("* group=chanel", "test:1:9: unknown group 'chanel'; expected 16 to 1024, row, "
                                     "head, channel or tensor; did you mean 'channel'?");
    expect_mistake("* group=",
                   "test:1:9: unknown group ''; expected 16 to 1024, row, head, channel "
                   "or tensor");
    expect_mistake("* round=nearst", "test:1:9: unknown rounding 'nearst'; expected nearest or "
                                     "stochastic; did you mean 'nearest'?");
    expect_mistake("* bits=4 bits=5", "test:1:10: 'bits=' twice in one rule; expected it once");
    expect_mistake("* keep mask", "test:1:8: 'mask' after 'keep'; expected one way in a rule");
}

Test(mistake, in_conditions) {
    expect_mistake("* seen=slu keep",
                   "test:1:8: unknown op 'slu'; expected an op of PyTorch's, a group like linear, "
                   "or frozen_weights; did you mean 'elu'?");
    expect_mistake(
        "* seen=frozen_weight keep",
        "test:1:8: unknown op 'frozen_weight'; expected an op of PyTorch's, a group like "
        "linear, or frozen_weights; did you mean 'frozen_weights'?");
    expect_mistake("* dtype=flaot32 keep",
                   "test:1:9: unknown dtype 'flaot32'; expected a type of PyTorch's, as float32 or "
                   "bfloat16, or several with commas; did you mean 'float32'?");
    expect_mistake("* dtype=float32, keep",
                   "test:1:17: unknown dtype ''; expected a type of PyTorch's, as float32 or "
                   "bfloat16, or several with commas");
    expect_mistake("* dtype=a_very_long_name_of_a_dtype keep",
                   "test:1:9: unknown dtype 'a_very_long_name_of_a_dtype'; expected a type of "
                   "PyTorch's, as float32 or bfloat16, or several with commas");
    expect_mistake("* min_bytes=4T keep",
                   "test:1:13: '4T' bytes; expected a number, or one with K, "
                   "M or G behind it");
    expect_mistake("* min_bytes=4KB keep",
                   "test:1:13: '4KB' bytes; expected a number, or one with K, M or G behind it");
    expect_mistake("* min_bytes=99999999999G keep",
                   "test:1:13: '99999999999G' bytes; expected a number, or one with K, M or G "
                   "behind it");
    expect_mistake("* min_bytes=-1 keep",
                   "test:1:13: '-1' bytes; expected a number, or one with K, "
                   "M or G behind it");
#define NO_LAYER " is no layer; expected N, N-M with N <= M, N- or several with commas"
    expect_mistake("* layer= keep", "test:1:9: ''" NO_LAYER);
    expect_mistake("* layer=3-1 keep", "test:1:9: '3-1'" NO_LAYER);
    expect_mistake("* layer=1,x keep", "test:1:11: 'x'" NO_LAYER);
    expect_mistake("* layer=1-2-3 keep", "test:1:9: '1-2-3'" NO_LAYER);
    expect_mistake("* layer=4294967295 keep", "test:1:9: '4294967295'" NO_LAYER);
    expect_mistake("* layer=1,2,3,4,5,6,7,8,9 keep",
                   "test:1:25: too many layers; expected at most 8 ranges");
    expect_mistake("* layer=1 layer=2 keep", "test:1:11: 'layer=' twice in one rule; expected it "
                                             "once");
}

Test(mistake, in_includes) {
    expect_mistake("include", "test:1:8: expected a policy or a file after 'include'");
    expect_mistake("include default keep",
                   "test:1:17: 'keep' after the name to include; expected the end of the rule");
    expect_mistake("include lossles",
                   "test:1:9: cannot read 'lossles': No such file or directory; expected a shipped "
                   "policy or a file; did you mean 'lossless'?");
    expect_mistake("include /tmp",
                   "test:1:9: cannot read '/tmp': Is a directory; expected a shipped "
                   "policy or a file");
    expect_mistake("include /dev/zero", "test:1:9: cannot read '/dev/zero': not a regular file; "
                                        "expected a shipped policy or a file");
}

Test(mistake, in_texts) {
    static const char nul[] = "* keep\nre\0lu keep";
    expect_mistake_of(nul, sizeof nul - 1, "test:2:3: a byte that is 0; expected text");

    char *text = malloc(5000);
    memset(text, ' ', 5000);
    text[0] = '#';
    text[4096] = '\n';
    struct mesa_mistake mistake;
    struct mesa_policy *policy = mesa_policy_parse(text, 4097, "test", &mistake);
    cr_assert_not_null(policy);
    mesa_policy_free(policy);
    text[4096] = ' ';
    expect_mistake_of(text, 4097, "test:1:4097: line too long; expected at most 4096 bytes");
    free(text);

    char *rules = malloc(10001 * 7 + 1);
    for (int i = 0; i < 10001; i++)
        memcpy(rules + 7 * i, "* keep\n", 8);
    expect_mistake(rules, "test:10001:1: too many rules; expected at most 10000");
    free(rules);
}

/* A message is cut, never too long, and its end is sound whatever the label is. */
Test(mistake, with_long_names) {
    char label[1000], word[4000];
    memset(label, 'l', sizeof label);
    label[sizeof label - 1] = '\0';
    memset(word, 'w', sizeof word);
    word[sizeof word - 1] = '\0';
    struct mesa_mistake mistake;
    cr_assert_null(mesa_policy_parse(word, strlen(word), label, &mistake));
    cr_assert_eq(strlen(mistake.place.file), 255);
    cr_assert_eq(strncmp(mistake.place.file, "...lll", 6), 0);
    cr_assert_lt(strlen(mistake.text), sizeof mistake.text);
    cr_assert_not_null(strstr(mistake.text, "lll:1:1: unknown op 'www"));
    cr_assert_not_null(strstr(mistake.text, "www'; expected an op"));
}

/* ---- files ------------------------------------------------------------------------------------- */

static char folder[] = "/tmp/mesa-policy-XXXXXX";

static const char *path_of(const char *name) {
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const char *text) {
    FILE *file = fopen(path_of(name), "w");
    cr_assert_not_null(file);
    cr_assert_geq(fputs(text, file), 0);
    cr_assert_eq(fclose(file), 0);
}

static void make_folder(void) {
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(mkdir(path_of("sub"), 0700), 0);
}

static void drop_folder(void) {
    static const char *const names[] = {"a.policy", "b.policy", "sub/c.policy", "my policy",
                                        "fifo",     "chain",    "plain",        "big"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unlink(path_of(names[i]));
    rmdir(path_of("sub"));
    rmdir(folder);
}

static struct mesa_policy *load(const char *source) {
    struct mesa_mistake mistake = {.text = ""};
    struct mesa_policy *policy = mesa_policy_load(source, &mistake);
    cr_assert_not_null(policy, "%s", mistake.text);
    return policy;
}

static void expect_load_mistake(const char *source, const char *format, const char *name) {
    struct mesa_mistake mistake;
    char expected[512];
    snprintf(expected, sizeof expected, format, name);
    cr_assert_null(mesa_policy_load(source, &mistake), "%s", source);
    cr_assert_str_eq(mistake.text, expected);
}

Test(load, files, .init = make_folder, .fini = drop_folder) {
    write_file("a.policy", "\xef\xbb\xbf# with a mark and Windows line ends\r\n* bits=5\r\n"
                           "include sub/c.policy\r\n* group=64");
    write_file("sub/c.policy", "* bits=6 mask\ninclude \"../my policy\"");
    write_file("my policy", "relu round=stochastic");
    struct mesa_policy *policy = load(path_of("a.policy"));
    cr_assert_str_eq(mesa_policy_name(policy), path_of("a.policy"));
    struct mesa_settings settings;
    struct mesa_place place;
    struct mesa_subject subject = {"gelu", "self", MESA_F32, 1 << 20, 0, 0};
    mesa_policy_match(policy, &subject, &settings, &place);
    cr_assert_eq(settings.bits, 6);
    cr_assert_eq(settings.way, MESA_WAY_MASK);
    cr_assert_eq(settings.group, 64);
    cr_assert_str_eq(place.file, path_of("a.policy"));
    cr_assert_eq(place.line, 4);
    cr_assert_eq(match(policy, "relu", "result").rounding, MESA_ROUND_STOCHASTIC);
    mesa_policy_free(policy);

    policy = load(path_of("my policy")); /* a blank, but the file exists */
    mesa_policy_free(policy);

    write_file("sub/c.policy", "* bits=6\n* keeep");
    expect_load_mistake(path_of("a.policy"),
                        "%s:2:3: unknown setting 'keeep'; " EXPECTED_SETTING
                        "; did you mean 'keep'?",
                        path_of("sub/c.policy"));
}

Test(load, includes_in_circles, .init = make_folder, .fini = drop_folder) {
    write_file("a.policy", "include b.policy");
    write_file("b.policy", "* keep\n include sub/c.policy");
    write_file("sub/c.policy", "include ../a.policy");
    char expected[512];
    snprintf(expected, sizeof expected, "%s:1:9: '%s' includes itself; expected another policy",
             path_of("sub/c.policy"), path_of("sub/../a.policy"));
    expect_load_mistake(path_of("a.policy"), "%s", expected);

    write_file("a.policy", "include b.policy; include b.policy"); /* twice is no circle */
    write_file("b.policy", "* keep");
    mesa_policy_free(load(path_of("a.policy")));

    write_file("b.policy", "include plain\n* keep");
    write_file("plain", "include \"sub/../b.policy\"");
    snprintf(expected, sizeof expected, "%s:1:10: '%s' includes itself; expected another policy",
             path_of("plain"), path_of("sub/../b.policy"));
    expect_load_mistake(path_of("b.policy"), "%s", expected);
}

Test(load, includes_without_end, .init = make_folder, .fini = drop_folder) {
    char text[8192] = "";
    for (int i = 0; i < 257; i++)
        strcat(text, "include plain\n");
    write_file("plain", "# nothing");
    write_file("a.policy", text);
    expect_load_mistake(path_of("a.policy"), "%s:257:9: too many includes; expected at most 256",
                        path_of("a.policy"));
}

Test(load, includes_too_deep, .init = make_folder, .fini = drop_folder) {
    char name[16], text[64];
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "deep%d", i);
        snprintf(text, sizeof text, "\ninclude deep%d", i + 1);
        write_file(name, text);
    }
    expect_load_mistake(path_of("deep0"), "%s:2:9: includes too deep; expected at most 16 levels",
                        path_of("deep15"));
    write_file("deep15", "* keep");
    mesa_policy_free(load(path_of("deep0")));
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "deep%d", i);
        unlink(path_of(name));
    }
}

Test(load, not_files, .init = make_folder, .fini = drop_folder) {
#define EXPECTED_SOURCE "; expected a shipped policy, a file or rules"
    expect_load_mistake(path_of("none"),
                        "%s:1:1: cannot read the policy: No such file or directory" EXPECTED_SOURCE,
                        path_of("none"));
    expect_load_mistake(path_of("no such"),
                        "%s:1:1: cannot read the policy: No such file or directory" EXPECTED_SOURCE,
                        path_of("no such"));
    expect_load_mistake("sub.policy",
                        "%s:1:1: cannot read the policy: No such file or directory" EXPECTED_SOURCE,
                        "sub.policy");
    expect_load_mistake(folder, "%s:1:1: cannot read the policy: Is a directory" EXPECTED_SOURCE,
                        folder);
    cr_assert_eq(mkfifo(path_of("fifo"), 0600), 0);
    expect_load_mistake(path_of("fifo"), /* and does not wait for a writer */
                        "%s:1:1: cannot read the policy: not a regular file" EXPECTED_SOURCE,
                        path_of("fifo"));
    FILE *file = fopen(path_of("big"), "w");
    cr_assert_not_null(file);
    cr_assert_eq(ftruncate(fileno(file), (1 << 20) + 1), 0);
    cr_assert_eq(fclose(file), 0);
    expect_load_mistake(path_of("big"),
                        "%s:1:1: cannot read the policy: longer than 1 MiB" EXPECTED_SOURCE,
                        path_of("big"));
    expect_load_mistake("", "%s:1:1: unknown policy ''" EXPECTED_SOURCE, "MESA_POLICY");
    expect_load_mistake(
        "losless", "%s:1:1: unknown policy 'losless'" EXPECTED_SOURCE "; did you mean 'lossless'?",
        "MESA_POLICY");
}

Test(load, inline_rules) {
    struct mesa_policy *policy = load("include default;gelu.self bits=4 ; relu keep");
    cr_assert_str_eq(mesa_policy_name(policy), "include default;gelu.self bits=4 ; relu keep");
    struct mesa_settings settings;
    struct mesa_place place;
    struct mesa_subject subject = {"gelu", "self", MESA_F32, 1 << 20, 0, 0};
    mesa_policy_match(policy, &subject, &settings, &place);
    cr_assert_eq(settings.way, MESA_WAY_AUTO);
    cr_assert_eq(settings.bits, 4);
    cr_assert_str_eq(place.file, "MESA_POLICY");
    cr_assert_eq(place.line, 1);
    cr_assert_eq(place.column, 17);
    cr_assert_eq(match(policy, "relu", "result").way, MESA_WAY_KEEP);
    mesa_policy_match(policy, &(struct mesa_subject){"silu", "self", MESA_F32, 1, 0, 0}, &settings,
                      &place);
    cr_assert_str_eq(place.file, "policy default");
    mesa_policy_free(policy);
    mesa_policy_free(load("include mesa"));
    expect_load_mistake("* auto; linear.input bit=4",
                        "%s:1:22: unknown setting 'bit='; expected " EXPECTED_KEY
                        "; did you mean 'bits'?",
                        "MESA_POLICY");
}

/* ---- shipped ----------------------------------------------------------------------------------- */

Test(shipped, all_parse) {
    struct mesa_shipped shipped;
    size_t count = 0;
    for (; mesa_policy_shipped(count, &shipped); count++) {
        struct mesa_policy *policy = load(shipped.name);
        cr_assert_str_eq(mesa_policy_name(policy), shipped.name);
        cr_assert_eq(strlen(shipped.text), shipped.length);
        cr_assert_eq(strncmp(shipped.text + 2, shipped.summary, strlen(shipped.summary)), 0);
        cr_assert_lt(strlen(shipped.summary), 110);
        bool is_off = strcmp(shipped.name, "off") == 0;
        cr_expect_eq(mesa_policy_is_off(policy), is_off);
        /* or the caller would have to ask anew for every tensor */
        cr_expect(!mesa_policy_uses_layers(policy));
        enum mesa_way kept = is_off ? MESA_WAY_OFF : MESA_WAY_KEEP;
        cr_expect_eq(match(policy, "MyFunction", "saved").way, kept, "%s", shipped.name);
        cr_expect_eq(match(policy, "custom", "saved").way, kept, "%s", shipped.name);
        cr_expect_eq(match(policy, "unknown", "?").way, kept, "%s", shipped.name);
        mesa_policy_free(policy);
    }
    cr_assert_eq(count, 6);
    cr_assert(!mesa_policy_shipped(count, &shipped));
}

Test(shipped, mean_what_they_say) {
    struct mesa_policy *policy = load("default");
    struct mesa_settings settings = match(policy, "addmm", "mat1");
    cr_assert(settings.way == MESA_WAY_AUTO && settings.bits == 8 && settings.group == 64);
    cr_assert_eq(match_all(policy, "addmm", "mat1", MESA_F32, 65535, 0).way, MESA_WAY_FLOAT16);
    cr_assert_eq(match_all(policy, "addmm", "mat1", MESA_BF16, 65535, 0).way, MESA_WAY_AUTO);
    mesa_policy_free(policy);

    policy = load("mesa");
    cr_assert_eq(match(policy, "_softmax", "result").by, MESA_BY_HEAD);
    cr_assert_eq(match(policy, "_scaled_dot_product_flash_attention", "key").by, MESA_BY_HEAD);
    cr_assert_eq(match(policy, "gelu", "self").by, MESA_BY_CHANNEL);
    mesa_policy_free(policy);

    policy = load("4bit");
    settings = match(policy, "addmm", "mat1");
    cr_assert(settings.way == MESA_WAY_AUTO && settings.bits == 4 && settings.group == 64);
    cr_assert_eq(match(policy, "_softmax", "result").bits, 8);
    cr_assert_eq(match(policy, "_scaled_dot_product_flash_attention", "key").bits, 8);
    cr_assert_eq(match(policy, "_scaled_dot_product_flash_attention", "value").bits, 4);
    mesa_policy_free(policy);

    policy = load("lossless");
    cr_assert_eq(match(policy, "addmm", "mat1").way, MESA_WAY_EXACT);
    mesa_policy_free(policy);
    policy = load("observe");
    cr_assert_eq(match(policy, "addmm", "mat1").way, MESA_WAY_KEEP);
    mesa_policy_free(policy);
}

/* ---- groups and suggestions -------------------------------------------------------------------- */

Test(group, holds_known_ops_and_arguments) {
    const struct mesa_op_group *group;
    for (size_t i = 0; (group = mesa_op_group_at(i)) != NULL; i++) {
        cr_assert_eq(mesa_op_group_find(group->name, strlen(group->name)), group);
        bool used[MESA_GROUP_MOST_ALIASES][MESA_GROUP_MOST_NAMES] = {{false}};
        for (size_t o = 0; o < MESA_GROUP_MOST_OPS && group->ops[o] != NULL; o++) {
            const struct mesa_op *op = mesa_op_find(group->ops[o], strlen(group->ops[o]));
            cr_expect_not_null(op, "%s: no op %s", group->name, group->ops[o]);
            for (size_t a = 0; op != NULL && a < op->count; a++) {
                for (size_t n = 0; n < MESA_GROUP_MOST_ALIASES && group->aliases[n].name; n++) {
                    const char *const *names = group->aliases[n].arguments;
                    for (size_t k = 0; k < MESA_GROUP_MOST_NAMES && names[k]; k++)
                        used[n][k] |= strcmp(names[k], op->arguments[a].argument) == 0;
                }
            }
        }
        for (size_t n = 0; n < MESA_GROUP_MOST_ALIASES && group->aliases[n].name; n++) {
            for (size_t k = 0; k < MESA_GROUP_MOST_NAMES && group->aliases[n].arguments[k]; k++)
                cr_expect(used[n][k], "%s.%s: nobody saves %s", group->name, group->aliases[n].name,
                          group->aliases[n].arguments[k]);
        }
    }
}

/* "saved" marks custom functions: no op of the table may use it. */
Test(group, no_op_saves_saved) {
    for (size_t i = 0; i < mesa_op_count(); i++) {
        const struct mesa_op *op = mesa_op_at(i);
        for (size_t a = 0; a < op->count; a++)
            cr_assert_str_neq(op->arguments[a].argument, "saved");
    }
}

Test(nearest, suggests_what_is_near) {
    static const char *const words[] = {"keep", "affine", "mask", "bfloat16", NULL};
    cr_expect_str_eq(mesa_policy_nearest("kep", 3, words), "keep");
    cr_expect_str_eq(mesa_policy_nearest("KEEP", 4, words), "keep");
    cr_expect_str_eq(mesa_policy_nearest("afifne", 6, words), "affine"); /* a swap is one step */
    cr_expect_str_eq(mesa_policy_nearest("mask", 4, words), "mask");
    cr_expect_str_eq(mesa_policy_nearest("bfloat", 6, words), "bfloat16");
    cr_expect_null(mesa_policy_nearest("xyzzy", 5, words));
    cr_expect_null(mesa_policy_nearest("", 0, words));
    char long_word[200];
    memset(long_word, 'k', sizeof long_word);
    cr_expect_null(mesa_policy_nearest(long_word, sizeof long_word, words));
}
