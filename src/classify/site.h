/* A site is a place in the code that saves a tensor: (op, argument) found from the return address of
 * a SavedVariable constructor by unwinding once, and remembered. Knows symbols and frames, but calls
 * nothing of torch.
 *
 * Any thread. A look-up of a known address takes no lock and allocates nothing.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_CLASSIFY_SITE_H
#define MESA_CLASSIFY_SITE_H

#include "classify/op.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mesa_site_kind {
    MESA_SITE_OP,      /* an op of the table, argument known */
    MESA_SITE_PARTIAL, /* the op is known, the argument not yet (guards; no full set seen) */
    MESA_SITE_CUSTOM,  /* a Python or C++ autograd function, a compiled graph: `op` is the class or "custom" */
    MESA_SITE_UNKNOWN,
};

/* One place. Lives for ever once made; fields are const after publication except `use`. */
struct mesa_site {
    enum mesa_site_kind kind;
    uint32_t index;    /* 0, 1, ... in order of discovery */
    const char *op;    /* name to show and to match rules with; never NULL ("unknown") */
    const char *argument; /* name, or "saved" for custom, "?" for partial and unknown */
    const struct mesa_op_argument *row; /* of the table; NULL for custom and unknown */
    bool is_inplace;
    _Atomic(void *) use; /* for the caller: its own record of this site, set once */
};

/* What the caller knows of one constructor call. */
struct mesa_save {
    uintptr_t return_address; /* of the constructor */
    uintptr_t stack;          /* stack pointer of the caller's frame: tells calls of one op apart */
    bool is_output, is_inplace_on_view;
    bool is_defined;          /* an undefined tensor still takes its place in the order of saves */
};

/* The site of this save. Called once for every constructor call, in order (undefined tensors too:
 * then NULL may be returned). Never fails: what cannot be told is an UNKNOWN site. */
struct mesa_site *mesa_site_of(const struct mesa_save *save);

/* Fast test before mesa_site_of() for tensors that will not be taken: notes the save for the order
 * of its op's arguments at the cost of a few stores, and returns nothing. (The first few saves from an
 * address are traced up the stack here as well.) */
void mesa_site_note(const struct mesa_save *save);

/* A save that nobody looked at, because libmesa was not ready: those that follow in the same call must
 * not be taken for its first ones. */
void mesa_site_missed(const struct mesa_save *save);

/* What a function written in Python saves next in this thread, if anything, is of this class; length 0:
 * of some function. */
enum { MESA_MOST_CLASS_NAME = 128 };
void mesa_site_function(const char *name, size_t length);

/* Ops whose guards can leave arguments out are labelled at start-up: the caller runs each op that
 * `next` names once, with every input requiring a gradient, between begin and end. */
void mesa_site_calibrate_begin(const struct mesa_op *op);
void mesa_site_calibrate_end(void);

/* Init only. The op table was not made for the PyTorch at hand: label no argument before a call was
 * seen to save exactly what the table says. Costs the first call of each op its labels. */
void mesa_site_be_careful(void);

/* Iterates all sites known so far: index from 0 until NULL. */
struct mesa_site *mesa_site_at(uint32_t index);

/* Fork handlers. */
void mesa_site_prefork(void);
void mesa_site_postfork_parent(void);
void mesa_site_postfork_child(void);

#endif
