/* Index of exported functions, one for each object that was ever met in a stack. Mangled names are
 * read by hand (Itanium C++ ABI, section 5.1): the few shapes that occur need no demangler.
 *
 * SPDX-License-Identifier: MIT */
#include "classify/symbol.h"

#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define OP_PREFIX       "_ZN2at4_ops"
#define FUNCTION_PREFIX "_ZN5torch8autograd8FunctionI"
#define SAVE_VARIABLES  "_ZN5torch8autograd15AutogradContext14save_variablesEv"

static bool starts_with(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Reads "<length><name>"; returns what follows, or NULL. */
static const char *parse_source_name(const char *text, const char **ret_name, size_t *ret_length) {
    size_t length = 0;
    const char *digit = text;
    for (; *digit >= '0' && *digit <= '9' && length < 4096; digit++)
        length = length * 10 + (size_t)(*digit - '0');
    if (digit == text || length == 0 || strnlen(digit, length) < length)
        return NULL;
    *ret_name = digit;
    *ret_length = length;
    return digit + length;
}

static bool parse_op(const char *mangled, struct mesa_symbol *ret_symbol) {
    const char *rest =
        parse_source_name(mangled + strlen(OP_PREFIX), &ret_symbol->name, &ret_symbol->length);
    return rest && (starts_with(rest, "4callE") || starts_with(rest, "10redispatchE"));
}

/* The template's argument: "7MyClass" or the last name of "N2my7MyClassE". */
static bool parse_function(const char *mangled, struct mesa_symbol *ret_symbol) {
    const char *rest = mangled + strlen(FUNCTION_PREFIX);
    bool is_nested = *rest == 'N';
    if (is_nested)
        rest++;
    bool is_found = false;
    do {
        rest = parse_source_name(rest, &ret_symbol->name, &ret_symbol->length);
        is_found |= rest != NULL;
    } while (is_nested && rest);
    return is_found;
}

bool mesa_symbol_parse(const char *mangled, struct mesa_symbol *ret_symbol) {
    struct mesa_symbol symbol = {.begin = ret_symbol->begin, .end = ret_symbol->end};
    if (starts_with(mangled, OP_PREFIX)) {
        symbol.kind = MESA_SYMBOL_OP;
        if (!parse_op(mangled, &symbol))
            return false;
    } else if (starts_with(mangled, FUNCTION_PREFIX)) {
        symbol.kind = MESA_SYMBOL_CPP_FUNCTION;
        if (!parse_function(mangled, &symbol))
            return false;
    } else if (strcmp(mangled, SAVE_VARIABLES) == 0) {
        symbol.kind = MESA_SYMBOL_SAVE_VARIABLES;
    } else if (starts_with(mangled, "_PyEval_Eval") || starts_with(mangled, "PyEval_Eval")) {
        symbol.kind = MESA_SYMBOL_INTERPRETER;
    } else {
        return false;
    }
    *ret_symbol = symbol;
    return true;
}

/* ---- reading an object's symbols ---- */

struct dynamic {
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const uint32_t *sysv_hash;
};

/* What dl_iterate_phdr tells of the object that is looked for. */
struct search {
    uintptr_t address;
    bool is_found;
    uintptr_t load, begin, end;
    const ElfW(Dyn) * dynamic;
    bool is_python_binding;
};

static bool is_python_binding(const char *path) {
    const char *slash = strrchr(path, '/');
    return starts_with(slash ? slash + 1 : path, "libtorch_python");
}

static int match_object(struct dl_phdr_info *info, size_t size, void *context) {
    (void)size;
    struct search *search = context;
    uintptr_t begin = UINTPTR_MAX;
    uintptr_t end = 0;
    const ElfW(Dyn) *dynamic = NULL;
    bool is_inside = false;
    for (ElfW(Half) i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t from = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)from;
        if (segment->p_type != PT_LOAD)
            continue;
        uintptr_t to = from + segment->p_memsz;
        begin = from < begin ? from : begin;
        end = to > end ? to : end;
        is_inside |= search->address >= from && search->address < to;
    }
    if (!is_inside)
        return 0;
    search->is_found = true;
    search->load = info->dlpi_addr;
    search->begin = begin;
    search->end = end;
    search->dynamic = dynamic;
    search->is_python_binding = is_python_binding(info->dlpi_name);
    return 1;
}

/* glibc relocates the pointers of the dynamic section in place, musl does not. */
static const void *dynamic_pointer(const struct search *object, uintptr_t value) {
    return (const void *)(value < object->load ? object->load + value : value);
}

static struct dynamic read_dynamic(const struct search *object) {
    struct dynamic found = {0};
    for (const ElfW(Dyn) *entry = object->dynamic; entry && entry->d_tag != DT_NULL; entry++) {
        const void *pointer = dynamic_pointer(object, entry->d_un.d_ptr);
        if (entry->d_tag == DT_SYMTAB)
            found.symbols = pointer;
        else if (entry->d_tag == DT_STRTAB)
            found.strings = pointer;
        else if (entry->d_tag == DT_GNU_HASH)
            found.gnu_hash = pointer;
        else if (entry->d_tag == DT_HASH)
            found.sysv_hash = pointer;
    }
    return found;
}

/* The dynamic symbol table does not tell its length; the hash tables do. DT_GNU_HASH: 4 words of
 * header, a Bloom filter, the first symbol of each bucket, then a chain word for each symbol whose
 * lowest bit ends a bucket's chain. */
static size_t count_symbols(const struct dynamic *dynamic) {
    if (dynamic->sysv_hash)
        return dynamic->sysv_hash[1];
    if (!dynamic->gnu_hash)
        return 0;
    const uint32_t *header = dynamic->gnu_hash;
    const uint32_t *buckets = header + 4 + header[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chains = buckets + header[0];
    uint32_t last = 0;
    for (uint32_t i = 0; i < header[0]; i++)
        last = buckets[i] > last ? buckets[i] : last;
    if (last < header[1])
        return header[1]; /* nothing is exported */
    while ((chains[last - header[1]] & 1) == 0)
        last++;
    return (size_t)last + 1;
}

static int compare_symbols(const void *a, const void *b) {
    const struct mesa_symbol *left = a;
    const struct mesa_symbol *right = b;
    return (left->begin > right->begin) - (left->begin < right->begin);
}

/* Writes the interesting symbols, or only counts them if `ret_symbols` is NULL. */
static size_t collect(const struct search *object, const struct dynamic *dynamic,
                      struct mesa_symbol *ret_symbols) {
    size_t total = dynamic->symbols && dynamic->strings ? count_symbols(dynamic) : 0;
    size_t count = 0;
    for (size_t i = 0; i < total; i++) {
        const ElfW(Sym) *entry = &dynamic->symbols[i];
        if (entry->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(entry->st_info) != STT_FUNC)
            continue;
        uintptr_t begin = object->load + entry->st_value;
        struct mesa_symbol symbol = {.begin = begin, .end = begin + entry->st_size};
        if (!mesa_symbol_parse(dynamic->strings + entry->st_name, &symbol))
            continue;
        if (ret_symbols)
            ret_symbols[count] = symbol;
        count++;
    }
    return count;
}

static struct mesa_object *read_object(const struct search *found) {
    struct dynamic dynamic = read_dynamic(found);
    size_t count = collect(found, &dynamic, NULL);
    struct mesa_object *object = malloc(sizeof *object + count * sizeof object->symbols[0]);
    if (!object)
        return NULL;
    *object = (struct mesa_object){.begin = found->begin,
                                   .end = found->end,
                                   .is_python_binding = found->is_python_binding,
                                   .count = count};
    collect(found, &dynamic, object->symbols);
    qsort(object->symbols, count, sizeof object->symbols[0], compare_symbols);
    return object;
}

/* ---- look-ups ---- */

/* Newest first; only ever grows. Two threads that meet a new object at once both add it, which does
 * no harm. An object that is unloaded stays: code that once saved tensors for backward is not
 * unloaded in practice, since its nodes would be left without code. */
static _Atomic(struct mesa_object *) objects;

const struct mesa_object *mesa_symbol_object(uintptr_t address) {
    struct mesa_object *object = atomic_load_explicit(&objects, memory_order_acquire);
    for (; object; object = object->next)
        if (address >= object->begin && address < object->end)
            return object;
    struct search search = {.address = address};
    dl_iterate_phdr(match_object, &search);
    if (!search.is_found)
        return NULL;
    object = read_object(&search);
    if (!object)
        return NULL;
    object->next = atomic_load_explicit(&objects, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&objects, &object->next, object,
                                                  memory_order_release, memory_order_relaxed)) {
    }
    return object;
}

const struct mesa_symbol *mesa_symbol_find(const struct mesa_object *object, uintptr_t address) {
    size_t begin = 0;
    size_t end = object->count;
    while (begin < end) {
        size_t middle = begin + (end - begin) / 2;
        const struct mesa_symbol *symbol = &object->symbols[middle];
        if (address >= symbol->end)
            begin = middle + 1;
        else if (address < symbol->begin)
            end = middle;
        else
            return symbol;
    }
    return NULL;
}
