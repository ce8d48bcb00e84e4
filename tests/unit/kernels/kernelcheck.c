/* kernelcheck ISA [--seed N] [--rounds N]   compares every entry with the scalar one, byte by byte
 * kernelcheck ISA --bench [MiB] [--only TEXT] times them (kernelbench.c)
 *
 * Inputs and outputs end right before a page that cannot be touched, or some bytes before it, and
 * have guard bytes around them. Lengths go through all of 0 to two vectors, then at random; values
 * come in classes that kernels get wrong. An entry that an ISA does not overwrite is skipped. Exits
 * with 77 (skipped) where the processor lacks the ISA.
 *
 * SPDX-License-Identifier: MIT */
#include "kernelcheck.h"

#include "codec/kernels/element.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static struct mesa_kernels scalar, tested;
static uint64_t seed, random_state;
static const char *entry_name; /* what is being compared, for the message */
static size_t compared;

uint64_t random_bits(void) {
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t x = random_state;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

size_t random_below(size_t limit) {
    return (size_t)(random_bits() % limit);
}

static double random_unit(void) {
    return (double)(random_bits() >> 11) * 0x1p-53;
}

/* Sum of uniforms: bell-shaped enough. */
static double random_normal(void) {
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += random_unit();
    return sum;
}

_Noreturn static void fail(const char *what) {
    fprintf(stderr, "%s: %s: %s (repeat with --seed %llu)\n", tested.name, entry_name, what,
            (unsigned long long)seed);
    exit(1);
}

/* ---- memory that ends before a forbidden page ---------------------------------------------------- */

#define AREA_BYTES  ((size_t)1 << 19)
#define GUARD_BYTES 64
#define GUARD       0xa5

struct area {
    uint8_t *end; /* the forbidden page */
    uint8_t *data;
    size_t size;
};

static struct area area_create(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *memory =
        mmap(NULL, AREA_BYTES + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + AREA_BYTES, page, PROT_NONE) != 0)
        fail("no memory");
    return (struct area){.end = memory + AREA_BYTES};
}

/* `size` bytes that lie `gap` bytes before the forbidden page, guards around and also within, so
 * that bytes that nobody writes compare equal. */
static void *area_place(struct area *area, size_t size, size_t gap) {
    if (size + gap + GUARD_BYTES > AREA_BYTES)
        fail("case too large");
    area->data = area->end - gap - size;
    area->size = size;
    memset(area->data - GUARD_BYTES, GUARD, (size_t)(area->end - area->data) + GUARD_BYTES);
    return area->data;
}

static size_t random_gap(size_t size) {
    switch (random_below(3)) {
    case 0:
        return 0;
    case 1:
        return (size_t) - (ptrdiff_t)size & 63; /* aligns the start */
    default:
        return random_below(64);
    }
}

/* Inputs, and outputs in pairs: [0] by the scalar entry, [1] by the one under test. */
#define SLOTS 3
static struct area input[SLOTS], output[2][SLOTS];

static void *place_input(int slot, size_t size) {
    return area_place(&input[slot], size, random_gap(size));
}

static uint32_t *place_words(int slot, size_t n) {
    size_t size = n * sizeof(uint32_t);
    return area_place(&input[slot], size, random_gap(size) & ~(sizeof(uint32_t) - 1));
}

/* `alignment` is that of the start; size is a multiple of it. */
static void place_aligned_outputs(int slot, size_t size, size_t alignment) {
    size_t gap = random_gap(size) & ~(alignment - 1);
    area_place(&output[0][slot], size, gap);
    area_place(&output[1][slot], size, gap);
}

static void place_outputs(int slot, size_t size) {
    place_aligned_outputs(slot, size, 1);
}

static void expect_same_outputs(int slot) {
    const struct area *want = &output[0][slot], *got = &output[1][slot];
    size_t bytes = (size_t)(want->end - want->data) + GUARD_BYTES;
    const uint8_t *a = want->data - GUARD_BYTES, *b = got->data - GUARD_BYTES;
    compared++;
    for (size_t i = 0; i < bytes; i++) {
        if (a[i] == b[i])
            continue;
        char what[160];
        snprintf(what, sizeof what, "output %d of %zu bytes: byte %td is %02x instead of %02x",
                 slot, want->size, (ptrdiff_t)i - GUARD_BYTES, b[i], a[i]);
        fail(what);
    }
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (a[i] != GUARD)
            fail("bytes before the output were written");
    for (const uint8_t *at = got->data + got->size; at < got->end; at++)
        if (*at != GUARD)
            fail("bytes behind the output were written");
}

static void expect(bool truth, const char *what) {
    compared++;
    if (!truth)
        fail(what);
}

/* ---- values -------------------------------------------------------------------------------------- */

enum values {
    ZEROS,
    SIGNED_ZEROS,
    NORMAL,
    RELU,
    SUBNORMAL,
    TINY,
    CONSTANT,
    TWO_VALUES,
    SORTED,
    OUTLIER,
    HUGE_SPAN,
    LARGEST,
    FAR_OFFSET,
    TIES,
    SOME_NAN,
    SOME_INFINITE,
    ALL_NAN,
    RANDOM_BITS,
    VALUES_COUNT,
};

static double random_value(enum values class, size_t i, double constant) {
    switch (class) {
    case ZEROS:
        return 0;
    case SIGNED_ZEROS:
        return random_below(2) ? -0.0 : 0.0;
    case RELU:
        return fmax(0, random_normal());
    case SUBNORMAL:
        return random_normal() * 0x1p-130;
    case TINY:
        return random_normal() * 0x1p-95;
    case CONSTANT:
        return constant;
    case TWO_VALUES:
        return random_below(2) ? constant : 0;
    case SORTED:
        return (double)i - 17;
    case OUTLIER:
        return random_below(100) ? random_normal() : random_normal() * 1000;
    case HUGE_SPAN:
        return random_normal() * exp2((double)random_below(250) - 125);
    case LARGEST:
        return random_normal() * 0x1p126;
    case FAR_OFFSET:
        return constant * 1e6 + random_normal();
    case TIES: /* many fall between two codes when the scale is a power of two */
        return ((double)random_below(512) - 200) / 2;
    case SOME_NAN:
        return random_below(50) ? random_normal() : NAN;
    case SOME_INFINITE:
        return random_below(50) ? random_normal() : constant > 0 ? INFINITY : -INFINITY;
    case ALL_NAN:
        return NAN;
    default:
        return random_normal();
    }
}

static void *random_reals(int slot, enum mesa_dtype dtype, size_t n, enum values class) {
    size_t bytes = mesa_dtype_bytes(dtype);
    char *data = place_input(slot, n * bytes);
    double constant = random_normal();
    for (size_t i = 0; i < n; i++) {
        double x = random_value(class, i, constant);
        uint64_t bits = random_bits();
        if (class == RANDOM_BITS)
            memcpy(data + i * bytes, &bits, bytes);
        else if (dtype == MESA_F64) /* beyond the range of float32 too */
            memcpy(data + i * 8, &(double){class == HUGE_SPAN ? x * fabs(x) : x}, 8);
        else
            element_store(dtype, data, i, (float)x);
    }
    return data;
}

static enum values random_class(void) {
    return (enum values)random_below(VALUES_COUNT);
}

static void *random_bytes(int slot, size_t size) {
    uint8_t *data = place_input(slot, size);
    for (size_t i = 0; i < size; i++)
        data[i] = (uint8_t)random_bits();
    return data;
}

/* Lengths around the vectors' first, then any. */
static size_t length_of_round(size_t round) {
    return round < 260 ? round / 2 : random_below(3000);
}

/* An ISA that leaves an entry alone has nothing to compare; the scalar table is run against itself
 * for the sake of the guards. */
#define SKIP_UNLESS_OVERWRITTEN(entry)                                                             \
    entry_name = #entry;                                                                           \
    if (tested.entry == scalar.entry && tested.name != scalar.name)                                \
    return

/* ---- affine -------------------------------------------------------------------------------------- */

static struct mesa_affine_rows random_rows(size_t round) {
    size_t row = round < 260 ? round / 2 + 1 : random_below(1500) + 1;
    size_t wanted = 16 + random_below(round % 3 == 0 ? 1024 : 150);
    static const unsigned usual[] = {8, 4};
    return (struct mesa_affine_rows){
        .rows = random_below(20) ? random_below(5) + 1 : 0,
        .row = row,
        .row_stride = (ptrdiff_t)(row + (random_below(2) ? 0 : random_below(40))),
        .groups = mesa_group_count(row, wanted),
        .bits = random_below(2) ? usual[random_below(2)]
                                : (unsigned)random_below(MESA_MOST_CODE_BITS) + 1,
        .strict_sign = random_below(4) == 0,
        .rounding = random_below(4) ? MESA_ROUND_NEAREST : MESA_ROUND_STOCHASTIC,
        .seed = random_bits(),
        .stream = random_below(2),
        .first_element = random_below(2) ? 0 : ((uint64_t)1 << 32) - random_below(1000),
    };
}

static size_t largest_group(const struct mesa_affine_rows *rows) {
    size_t largest = 0;
    for (size_t j = 0; j < rows->groups; j++) {
        size_t n = mesa_group_begin(rows->row, rows->groups, j + 1) -
                   mesa_group_begin(rows->row, rows->groups, j);
        largest = n > largest ? n : largest;
    }
    return largest;
}

/* Does for decode what the codec does: numbers the raw groups. Returns how many; SIZE_MAX if one has
 * no room for its number. */
static size_t number_raw_groups(const struct mesa_affine_rows *rows, const uint32_t *words,
                                uint8_t *codes) {
    size_t raw = 0;
    for (size_t row = 0; row < rows->rows; row++) {
        for (size_t j = 0; j < rows->groups; j++) {
            if (words[row * rows->groups + j] != MESA_GROUP_RAW)
                continue;
            size_t begin = mesa_group_begin(rows->row, rows->groups, j);
            size_t n = mesa_group_begin(rows->row, rows->groups, j + 1) - begin;
            if (mesa_code_row_bytes(n, rows->bits) < 4)
                return SIZE_MAX;
            uint8_t *at =
                codes + row * mesa_code_row_bytes(rows->row, rows->bits) + begin * rows->bits / 8;
            for (unsigned k = 0; k < 4; k++)
                at[k] = (uint8_t)(raw >> 8 * k);
            raw++;
        }
    }
    return raw;
}

static void check_affine_rows(enum mesa_dtype dtype, size_t round) {
    SKIP_UNLESS_OVERWRITTEN(affine_encode[dtype]);
    struct mesa_affine_rows rows = random_rows(round);
    size_t bytes = mesa_dtype_bytes(dtype), groups = rows.rows * rows.groups;
    size_t last_row = rows.rows == 0 ? 0 : (rows.rows - 1) * (size_t)rows.row_stride + rows.row;
    const void *src = random_reals(0, dtype, last_row, random_class());

    size_t code_bytes = rows.rows * mesa_code_row_bytes(rows.row, rows.bits);
    place_aligned_outputs(0, groups * sizeof(uint32_t), sizeof(uint32_t));
    place_outputs(1, code_bytes);
    size_t raw[2];
    raw[0] = scalar.affine_encode[dtype](&rows, src, (void *)output[0][0].data, output[0][1].data);
    raw[1] = tested.affine_encode[dtype](&rows, src, (void *)output[1][0].data, output[1][1].data);
    expect_same_outputs(0);
    expect_same_outputs(1);
    expect(raw[0] == raw[1], "number of raw groups");

    entry_name = "affine_decode";
    uint32_t *words = place_words(0, groups);
    uint8_t *codes = place_input(1, code_bytes);
    if (groups > 0)
        memcpy(words, output[0][0].data, groups * sizeof *words);
    memcpy(codes, output[0][1].data, code_bytes);
    size_t raw_groups = number_raw_groups(&rows, words, codes);
    if (raw_groups == SIZE_MAX)
        return;
    size_t raw_group_bytes = largest_group(&rows) * bytes;
    const uint8_t *raw_area = random_bytes(2, raw_groups * raw_group_bytes);
    bool stream = random_below(2);
    place_outputs(0, rows.rows * rows.row * bytes);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)
            ->affine_decode[dtype](&rows, words, codes, raw_area, raw_group_bytes, stream,
                                   output[i][0].data);
    expect_same_outputs(0);
}

/* Outputs 0 and 1 are the upper and the lower bits of codes: which of them a kernel writes is up to
 * their number. */
static void place_code_outputs(size_t bytes) {
    place_outputs(0, bytes);
    place_outputs(1, bytes);
}

static struct mesa_code_bytes code_outputs(int i) {
    return (struct mesa_code_bytes){output[i][0].data, output[i][1].data};
}

static struct mesa_affine_runs random_runs(size_t round) {
    size_t run = length_of_round(round);
    size_t runs = random_below(20) ? random_below(run < 500 ? 9 : 3) + 1 : 0;
    return (struct mesa_affine_runs){
        .runs = runs,
        .run = run,
        .stride = (ptrdiff_t)(run + (random_below(3) ? random_below(200) : 0)),
        .code_stride = run + (random_below(3) ? random_below(200) : 0),
    };
}

/* From the start of the first run to the end of the last. */
static size_t span_of_runs(const struct mesa_affine_runs *runs, size_t stride) {
    return runs->runs == 0 ? 0 : (runs->runs - 1) * stride + runs->run;
}

static void check_affine_runs(enum mesa_dtype dtype, size_t round) {
    SKIP_UNLESS_OVERWRITTEN(affine_range[dtype]);
    struct mesa_affine_runs runs = random_runs(round);
    size_t bytes = mesa_dtype_bytes(dtype), span = span_of_runs(&runs, (size_t)runs.stride);
    const void *src = random_reals(0, dtype, span, random_class());
    float lo[2], hi[2];
    bool finite[2], begun = random_below(4) == 0; /* with what another call found */
    for (int i = 0; i < 2; i++) {
        lo[i] = begun ? -0.5f : INFINITY;
        hi[i] = begun ? 0.25f : -INFINITY;
        finite[i] = (i ? &tested : &scalar)->affine_range[dtype](&runs, src, &lo[i], &hi[i]);
    }
    expect(finite[0] == finite[1], "affine_range tells finite from not");
    if (!finite[0])
        return;
    expect(memcmp(&lo[0], &lo[1], 4) == 0 && memcmp(&hi[0], &hi[1], 4) == 0, "affine_range");
    if (lo[0] > hi[0])
        return;

    unsigned bits = (unsigned)random_below(MESA_MOST_CODE_BITS) + 1;
    bool strict = random_below(2);
    uint32_t word = mesa_affine_word(lo[0], hi[0], bits, strict, MESA_ROUND_NEAREST);
    if (word == MESA_GROUP_RAW)
        return;
    entry_name = "affine_quantize";
    if (random_below(2)) /* elements outside the word's range */
        src = random_reals(0, dtype, span, word == 0 ? ZEROS : random_class());
    size_t code_bytes = span_of_runs(&runs, runs.code_stride);
    place_code_outputs(code_bytes);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)
            ->affine_quantize[dtype](&runs, src, word, bits, strict, code_outputs(i));
    expect_same_outputs(0);
    expect_same_outputs(1);

    entry_name = "affine_dequantize";
    struct mesa_code_bytes codes = {place_input(1, code_bytes), place_input(2, code_bytes)};
    memcpy(codes.upper, output[0][0].data, code_bytes);
    memcpy(codes.lower, output[0][1].data, code_bytes);
    place_outputs(0, span * bytes);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)
            ->affine_dequantize[dtype](&runs, codes, bits, word, output[i][0].data);
    expect_same_outputs(0);
}

static void check_affine_columns(enum mesa_dtype dtype, size_t round) {
    SKIP_UNLESS_OVERWRITTEN(affine_range_columns[dtype]);
    size_t n = round < 130 ? round : random_below(300), rows = random_below(7) + 1;
    size_t bytes = mesa_dtype_bytes(dtype);
    const void *src = random_reals(0, dtype, rows * n, random_class());
    bool finite[2];
    place_aligned_outputs(0, n * sizeof(float), sizeof(float));
    place_aligned_outputs(1, n * sizeof(float), sizeof(float));
    for (int i = 0; i < 2; i++) {
        for (size_t j = 0; j < n; j++) {
            element_store(MESA_F32, output[i][0].data, j, INFINITY);
            element_store(MESA_F32, output[i][1].data, j, -INFINITY);
        }
        finite[i] = (i ? &tested : &scalar)
                        ->affine_range_columns[dtype](src, rows, n, (void *)output[i][0].data,
                                                      (void *)output[i][1].data);
    }
    expect(finite[0] == finite[1], "affine_range_columns tells finite from not");
    if (!finite[0])
        return;
    expect_same_outputs(0);
    expect_same_outputs(1);

    unsigned bits = (unsigned)random_below(MESA_MOST_CODE_BITS) + 1;
    bool strict = random_below(2);
    uint32_t *words = place_words(1, n);
    for (size_t j = 0; j < n; j++) {
        uint32_t word = mesa_affine_word(element_load(MESA_F32, output[0][0].data, j),
                                         element_load(MESA_F32, output[0][1].data, j), bits, strict,
                                         MESA_ROUND_NEAREST);
        if (word == MESA_GROUP_RAW)
            return;
        words[j] = word;
    }
    entry_name = "affine_quantize_columns";
    place_code_outputs(rows * n);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)
            ->affine_quantize_columns[dtype](src, rows, n, words, bits, strict, code_outputs(i));
    expect_same_outputs(0);
    expect_same_outputs(1);

    entry_name = "affine_dequantize_columns";
    struct mesa_code_bytes codes = {place_input(0, rows * n), place_input(2, rows * n)};
    memcpy(codes.upper, output[0][0].data, rows * n);
    memcpy(codes.lower, output[0][1].data, rows * n);
    place_outputs(0, rows * n * bytes);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)
            ->affine_dequantize_columns[dtype](codes, bits, rows, n, words, output[i][0].data);
    expect_same_outputs(0);
}

static void check_bits(size_t round) {
    SKIP_UNLESS_OVERWRITTEN(pack_bits);
    size_t n = length_of_round(round);
    unsigned bits = (unsigned)random_below(8) + 1;
    uint8_t *codes = random_bytes(0, n);
    for (size_t i = 0; i < n; i++)
        codes[i] &= (uint8_t)((1u << bits) - 1);
    place_outputs(0, mesa_code_row_bytes(n, bits));
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)->pack_bits(codes, n, bits, output[i][0].data);
    expect_same_outputs(0);

    entry_name = "unpack_bits";
    const uint8_t *packed = random_bytes(1, mesa_code_row_bytes(n, bits));
    place_outputs(1, n);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)->unpack_bits(packed, n, bits, output[i][1].data);
    expect_same_outputs(1);
}

/* ---- masks --------------------------------------------------------------------------------------- */

static void check_bool(size_t round) {
    SKIP_UNLESS_OVERWRITTEN(mask_pack_bool);
    size_t n = length_of_round(round);
    uint8_t *src = random_bytes(0, n);
    for (size_t i = 0; i < n; i++)
        src[i] = random_below(2) ? 0 : (uint8_t)(random_below(4) ? 1 : src[i]);
    place_outputs(0, (n + 7) / 8);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)->mask_pack_bool(src, n, output[i][0].data);
    expect_same_outputs(0);

    entry_name = "mask_unpack_bool";
    const uint8_t *mask = random_bytes(1, (n + 7) / 8);
    place_outputs(1, n);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)->mask_unpack_bool(mask, n, output[i][1].data);
    expect_same_outputs(1);
}

static void check_predicate(enum mesa_dtype dtype, size_t round) {
    SKIP_UNLESS_OVERWRITTEN(mask_pack[dtype]);
    size_t n = length_of_round(round);
    const void *src = random_reals(0, dtype, n, random_class());
    enum mesa_predicate predicate = (enum mesa_predicate)random_below(MESA_PREDICATE_COUNT);
    static const double bounds[] = {0, -0.0, 1, -1, 0.1, -0.1, 1e300, -1e300, 1e-60, NAN, INFINITY};
    double lo = bounds[random_below(11)], hi = random_below(4) ? 0.7 : bounds[random_below(11)];
    if (n > 0 && random_below(3) == 0) /* a bound that occurs */
        lo = element_load_double(dtype, src, random_below(n));
    place_outputs(0, (n + 7) / 8);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)->mask_pack[dtype](src, n, predicate, lo, hi, output[i][0].data);
    expect_same_outputs(0);
}

static void check_sign(enum mesa_dtype dtype, size_t round) {
    SKIP_UNLESS_OVERWRITTEN(sign_pack[dtype]);
    size_t n = length_of_round(round);
    const void *src = random_reals(0, dtype, n, random_class());
    place_outputs(0, (n + 3) / 4);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)->sign_pack[dtype](src, n, output[i][0].data);
    expect_same_outputs(0);

    entry_name = "sign_unpack";
    const uint8_t *codes = random_bytes(1, (n + 3) / 4);
    place_outputs(1, n * mesa_dtype_bytes(dtype));
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)->sign_unpack[dtype](codes, n, output[i][1].data);
    expect_same_outputs(1);
}

static void check_two(size_t index, size_t round) {
    SKIP_UNLESS_OVERWRITTEN(mask_pack_two[index]);
    size_t n = length_of_round(round), bytes = (size_t)2 << index;
    uint64_t zero = random_below(2) ? 0 : random_bits();
    uint64_t one = random_below(8) ? random_bits() : zero;
    char *src = place_input(0, n * bytes);
    for (size_t i = 0; i < n; i++)
        memcpy(src + i * bytes, random_below(2) ? &one : &zero, bytes);
    if (n > 0 && random_below(3) == 0) /* a third value */
        src[random_below(n * bytes)] ^= 0x10;
    place_outputs(0, (n + 7) / 8);
    bool two[2];
    for (int i = 0; i < 2; i++)
        two[i] =
            (i ? &tested : &scalar)->mask_pack_two[index](src, n, &zero, &one, output[i][0].data);
    expect(two[0] == two[1], "tells two values from more");
    if (two[0])
        expect_same_outputs(0);

    entry_name = "mask_unpack_two";
    const uint8_t *mask = random_bytes(1, (n + 7) / 8);
    bool stream = random_below(2);
    place_outputs(1, n * bytes);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)
            ->mask_unpack_two[index](mask, n, &zero, &one, stream, output[i][1].data);
    expect_same_outputs(1);
}

static void check_sparse(size_t index, size_t round) {
    SKIP_UNLESS_OVERWRITTEN(sparse_compress[index]);
    size_t n = length_of_round(round), bytes = (size_t)1 << index;
    char *src = place_input(0, n * bytes);
    size_t one_in = random_below(10) + 1;
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = random_below(8) ? random_bits() : (uint64_t)1 << (bytes * 8 - 1); /* -0 */
        if (random_below(one_in))
            bits = 0;
        memcpy(src + i * bytes, &bits, bytes);
    }
    size_t most = random_below(2) ? n : random_below(n + 1);
    size_t count[2];
    place_outputs(0, (n + 7) / 8);
    place_outputs(1, most * bytes + 64);
    for (int i = 0; i < 2; i++)
        count[i] = (i ? &tested : &scalar)
                       ->sparse_compress[index](src, n, most, output[i][0].data, output[i][1].data);
    expect(count[0] == count[1], "number of elements");
    if (count[0] == SIZE_MAX)
        return;
    expect_same_outputs(0);
    memset(output[1][1].data + count[0] * bytes, GUARD, 64); /* the slack that it may use */
    expect_same_outputs(1);

    entry_name = "sparse_expand";
    uint8_t *elements = place_input(1, count[0] * bytes);
    memcpy(elements, output[0][1].data, count[0] * bytes);
    place_outputs(2, n * bytes);
    for (int i = 0; i < 2; i++)
        count[i] = (i ? &tested : &scalar)
                       ->sparse_expand[index](output[0][0].data, n, elements, output[i][2].data);
    expect(count[0] == count[1], "number of elements");
    expect_same_outputs(2);
}

/* ---- numbers ------------------------------------------------------------------------------------- */

static void check_integers(size_t index, size_t round) {
    SKIP_UNLESS_OVERWRITTEN(integer_range[index]);
    size_t n = length_of_round(round) + 1, bytes = (size_t)1 << index;
    char *src = place_input(0, n * bytes);
    uint64_t mask = random_below(2) ? UINT64_MAX : 0xffff, offset = random_below(2) ? 0 : ~99u;
    for (size_t i = 0; i < n; i++) {
        uint64_t x = (random_bits() & mask) + offset;
        memcpy(src + i * bytes, &x, bytes);
    }
    int64_t lo[2], hi[2];
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)->integer_range[index](src, n, &lo[i], &hi[i]);
    expect(lo[0] == lo[1] && hi[0] == hi[1], "range");

    unsigned to = 1u << random_below(index < 2 ? index + 1 : 3);
    entry_name = "integer_narrow";
    place_outputs(0, n * to);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)->integer_narrow[index](src, n, lo[0], to, output[i][0].data);
    expect_same_outputs(0);

    entry_name = "integer_widen";
    place_outputs(1, n * bytes);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)
            ->integer_widen[index](output[0][0].data, n, lo[0], to, output[i][1].data);
    expect_same_outputs(1);
}

static void check_bf16(size_t round) {
    SKIP_UNLESS_OVERWRITTEN(float_to_bf16);
    size_t n = length_of_round(round);
    const void *src = random_reals(0, MESA_F32, n, random_class());
    place_outputs(0, n * 2);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)->float_to_bf16(src, n, (void *)output[i][0].data);
    expect_same_outputs(0);

    entry_name = "bf16_to_float";
    const void *halves = random_reals(1, MESA_BF16, n, random_class());
    bool stream = random_below(2);
    place_outputs(1, n * 4);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)->bf16_to_float(halves, n, stream, (void *)output[i][1].data);
    expect_same_outputs(1);
}

static void check_f16(size_t round) {
    SKIP_UNLESS_OVERWRITTEN(float_to_f16);
    size_t n = length_of_round(round);
    char *src = random_reals(0, MESA_F32, n, random_class());
    float limit = random_below(2) ? 65519.996f : 65520.0f;
    if (n > 0 && random_below(4) == 0)
        element_store(MESA_F32, src, random_below(n), limit);
    bool fits[2];
    place_outputs(0, n * 2);
    for (int i = 0; i < 2; i++)
        fits[i] =
            (i ? &tested : &scalar)->float_to_f16((const void *)src, n, (void *)output[i][0].data);
    expect(fits[0] == fits[1], "tells overflow");
    if (fits[0])
        expect_same_outputs(0);

    entry_name = "f16_to_float";
    const void *halves = random_reals(1, MESA_F16, n, random_class());
    bool stream = random_below(2);
    place_outputs(1, n * 4);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)->f16_to_float(halves, n, stream, (void *)output[i][1].data);
    expect_same_outputs(1);
}

static void check_finite(enum mesa_dtype dtype, size_t round) {
    SKIP_UNLESS_OVERWRITTEN(all_finite[dtype]);
    size_t n = length_of_round(round), bytes = mesa_dtype_bytes(dtype);
    char *src = random_reals(0, dtype, n, random_below(2) ? NORMAL : random_class());
    if (n > 0 && random_below(2)) /* one NaN or infinity, anywhere */
        element_store(dtype, src + random_below(n) * bytes, 0, random_below(2) ? NAN : -NAN);
    expect(scalar.all_finite[dtype](src, n) == tested.all_finite[dtype](src, n), "answer");
}

static void check_fingerprint(size_t round) {
    SKIP_UNLESS_OVERWRITTEN(fingerprint);
    size_t n = length_of_round(round);
    const void *src = random_bytes(0, n);
    expect(scalar.fingerprint(src, n) == tested.fingerprint(src, n), "value");
}

static void check_exponents(enum mesa_dtype dtype, size_t round) {
    SKIP_UNLESS_OVERWRITTEN(exponent_split[dtype]);
    size_t n = length_of_round(round), bytes = mesa_dtype_bytes(dtype);
    size_t rest = n * (bytes - 1), extra = dtype == MESA_F16 ? n : 0;
    const void *src = random_reals(0, dtype, n, random_class());
    place_outputs(0, n);
    place_outputs(1, rest);
    place_outputs(2, extra);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)
            ->exponent_split[dtype](src, n, output[i][0].data, output[i][1].data,
                                    output[i][2].data);
    for (int slot = 0; slot < 3; slot++)
        expect_same_outputs(slot);
    uint8_t *exponents = place_input(1, n);
    memcpy(exponents, output[0][0].data, n);

    entry_name = "exponent_count_far";
    uint8_t top = n == 0 ? 0 : exponents[random_below(n)];
    uint8_t escape = (uint8_t)((2u << random_below(8)) - 1);
    size_t count[2];
    for (int i = 0; i < 2; i++)
        count[i] = (i ? &tested : &scalar)->exponent_count_far[dtype](src, n, top, escape);
    expect(count[0] == count[1], "number of exponents");

    entry_name = "exponent_join";
    uint8_t *others = place_input(2, rest + extra);
    memcpy(others, output[0][1].data, rest);
    memcpy(others + rest, output[0][2].data, extra);
    place_outputs(0, n * bytes);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)
            ->exponent_join[dtype](exponents, others, others + rest, n, output[i][0].data);
    expect_same_outputs(0);
    expect(memcmp(output[0][0].data, src, n * bytes) == 0, "what was split");

    entry_name = "exponent_fold";
    size_t far[2];
    place_outputs(0, n);
    place_outputs(1, n + 64);
    for (int i = 0; i < 2; i++)
        far[i] =
            (i ? &tested : &scalar)
                ->exponent_fold(exponents, n, top, escape, output[i][0].data, output[i][1].data);
    expect(far[0] == count[0] && far[1] == count[0], "number of exponents");
    for (int i = 0; i < 2; i++) /* the slack that it may use */
        memset(output[i][1].data + far[0], GUARD, n + 64 - far[0]);
    expect_same_outputs(0);
    expect_same_outputs(1);

    entry_name = "exponent_unfold";
    uint8_t *codes = place_input(0, n), *apart = place_input(2, far[0]);
    memcpy(codes, output[0][0].data, n);
    memcpy(apart, output[0][1].data, far[0]);
    place_outputs(2, n);
    for (int i = 0; i < 2; i++)
        (i ? &tested : &scalar)
            ->exponent_unfold(codes, n, top, escape, apart, far[0], output[i][2].data);
    expect_same_outputs(2);
    expect(memcmp(output[0][2].data, exponents, n) == 0, "what was folded");
}

static void check_all(size_t rounds) {
    for (size_t round = 0; round < rounds; round++) {
        for (enum mesa_dtype dtype = 0; dtype < MESA_REAL_DTYPES; dtype++) {
            check_affine_rows(dtype, round);
            check_affine_runs(dtype, round);
            check_affine_columns(dtype, round);
            check_predicate(dtype, round);
            check_sign(dtype, round);
            check_finite(dtype, round);
        }
        for (size_t index = 0; index < 4; index++) {
            check_sparse(index, round);
            check_integers(index, round);
        }
        for (size_t index = 0; index < 3; index++)
            check_two(index, round);
        for (enum mesa_dtype dtype = 0; dtype <= MESA_F16; dtype++)
            check_exponents(dtype, round);
        check_bits(round);
        check_bool(round);
        check_bf16(round);
        check_f16(round);
        check_fingerprint(round);
    }
}

int main(int argc, char **argv) {
    enum mesa_isa isa = argc > 1 ? mesa_isa_find(argv[1]) : mesa_isa_best();
    size_t rounds = 1000, bench_mib = 0;
    const char *only = "";
    seed = (uint64_t)getpid() * 2654435761u;
    for (int i = 2; i < argc; i++) {
        bool has_value = i + 1 < argc && argv[i + 1][0] != '-';
        if (strcmp(argv[i], "--bench") == 0)
            bench_mib = has_value ? strtoul(argv[++i], NULL, 10) : 256;
        else if (strcmp(argv[i], "--only") == 0 && has_value)
            only = argv[++i];
        else if (strcmp(argv[i], "--seed") == 0 && has_value)
            seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--rounds") == 0 && has_value)
            rounds = strtoul(argv[++i], NULL, 10);
        else
            isa = MESA_ISA_COUNT;
    }
    if (isa == MESA_ISA_COUNT) {
        fprintf(stderr, "usage: kernelcheck scalar|avx2|avx512|neon "
                        "[--seed N] [--rounds N] [--bench [MiB]] [--only TEXT]\n");
        return 2;
    }
    if (!mesa_isa_supported(isa)) {
        printf("%s: not supported here\n", mesa_isa_name(isa));
        return 77;
    }
    random_state = seed;
    mesa_kernels_fill(&scalar, MESA_ISA_SCALAR);
    mesa_kernels_fill(&tested, isa);
    if (bench_mib != 0)
        return kernelbench(&tested, bench_mib, only);

    for (int slot = 0; slot < SLOTS; slot++) {
        input[slot] = area_create();
        output[0][slot] = area_create();
        output[1][slot] = area_create();
    }
    printf("%s: seed %llu\n", tested.name, (unsigned long long)seed);
    check_all(rounds);
    printf("%s: %zu comparisons\n", tested.name, compared);
    return 0;
}
