#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes op_table.c out of ops.tsv: rows grouped by op, and the sorted list of every spelling by
which the dispatcher's symbols name an op. All checks of the table's form happen here, so that
op.c can trust it."""

import sys

COLUMNS = ("op overload inplace argument place guard how reads predicate lo hi heads channel"
           " flags").split()
CHOICES = {
    "inplace": ("any", "only"),
    "place": ("in", "out"),
    "how": ("tensor", "optional", "list"),
    "reads": ("exact", "value", "relative", "exp", "mask", "sign", "compare", "integers", "bool", "geometry",
              "weight"),
    "predicate": ("-", "above", "greater", "between", "within", "nonzero"),
    "heads": ("-", "bhnd", "folded", "map", "linear", "channels"),
    "channel": ("1", "-1"),
}
FLAGS = {"zeros", "late", "ties"}


def fail(line, text):
    sys.exit(f"{sys.argv[1]}:{line}: {text}")


def read_rows(path):
    rows = []
    with open(path, encoding="ascii") as file:
        for number, line in enumerate(file, 1):
            if line.startswith("#") or not line.strip():
                continue
            cells = line.rstrip("\n").split("\t")
            if len(cells) != len(COLUMNS):
                fail(number, f"expected {len(COLUMNS)} columns, found {len(cells)}")
            row = dict(zip(COLUMNS, cells), line=number)
            for column, choices in CHOICES.items():
                if row[column] not in choices:
                    fail(number, f"{column} '{row[column]}', expected one of {', '.join(choices)}")
            row["flags"] = set(row["flags"].split(",")) - {"-"}
            if row["flags"] - FLAGS:
                fail(number, f"unknown flag in {row['flags']}")
            if (row["reads"] == "mask") != (row["predicate"] != "-"):
                fail(number, "a predicate goes with reads=mask and with nothing else")
            rows.append(row)
    return rows


def group_rows(rows):
    """Ops in order of (name, overload, in-place), each with its rows in the order of saves."""
    ops = {}
    for row in rows:
        ops.setdefault((row["op"], row["overload"], row["inplace"]), []).append(row)
    for arguments in ops.values():
        for place in ("in", "out"):
            names = [row["argument"] for row in arguments if row["place"] == place]
            if len(set(names)) != len(names):
                fail(arguments[0]["line"], f"{place} argument named twice")
        places = [row["place"] for row in arguments]
        if places != sorted(places):
            fail(arguments[0]["line"], "results must follow inputs")
        if any(row["guard"] != "-" for row in arguments if row["place"] == "out"):
            fail(arguments[0]["line"], "results are never guarded")
    # An overload of "-" sorts first, so a look-up by bare name finds it first.
    return sorted(ops.items(), key=lambda item: (item[0][0], item[0][1] != "-", item[0]))


def spellings(ops):
    """(symbol name, index of op, is in-place), sorted. In-place variants with a formula of their
    own take the spelling from the general rows."""
    found = {}
    for index, ((name, overload, inplace), _) in enumerate(ops):
        suffix = "" if overload == "-" else "_" + overload
        if inplace == "any":
            found[name + suffix] = (index, False)
            found.setdefault(name + "_" + suffix, (index, True))
        else:
            found[name + "_" + suffix] = (index, True)
    return sorted(found.items())


def number(text):
    return {"-": "0", "": "0", "?": "0"}.get(text, text)


def argument_text(op, row, order, total, guard):
    flags = row["flags"]
    known = row["reads"] == "mask" and row["lo"] != "?"
    heads = "NONE" if row["heads"] == "-" else row["heads"].upper()
    cells = [f'"{op}"', f'"{row["argument"]}"', f".order = {order}", f".total = {total}"]
    if guard:
        cells.append(f".is_guarded = true, .guard = {guard}")
    cells += [f".{field} = true" for field, is_set in (
        ("is_result", row["place"] == "out"), ("is_list", row["how"] == "list"),
        ("is_optional", row["how"] == "optional"), ("saved_before_filled", "late" in flags),
        ("keep_zeros", "zeros" in flags), ("ties_differ", "ties" in flags),
        ("thresholds_known", known)) if is_set]
    cells.append(f".reads = MESA_READS_{row['reads'].upper()}")
    if row["reads"] == "mask":
        cells.append(f".predicate = MESA_{row['predicate'].upper()}")
        cells.append(f".lo = {number(row['lo'])}, .hi = {number(row['hi'])}")
    cells.append(f".heads = MESA_HEADS_{heads}, .channel_dim = {row['channel']}")
    return "    {" + ", ".join(cells) + "},"


def any_of(rows):
    """One row that is safe for each of `rows`: what is said of a save whose argument is unknown."""
    def common(column, fallback):
        values = {str(row[column]) for row in rows}
        return rows[0][column] if len(values) == 1 else fallback

    merged = dict(rows[0], argument="?", guard="-", how="tensor")
    merged["reads"] = common("reads", "exact")
    if merged["reads"] == "compare":  # one says nothing if it cannot be told from the other
        merged["reads"] = "exact"
    merged["predicate"] = common("predicate", "-")
    if merged["reads"] == "mask" and len({(row["predicate"], row["lo"], row["hi"])
                                          for row in rows}) > 1:
        merged["reads"] = "exact"
    merged["heads"] = common("heads", "-")
    merged["channel"] = common("channel", "-1")
    merged["flags"] = set().union(*(row["flags"] for row in rows))
    return merged


def main():
    ops = group_rows(read_rows(sys.argv[1]))
    names = spellings(ops)
    out = ["/* Made by gen_ops.py from ops.tsv. */", '#include "classify/op_table.h"', "",
           "static const struct mesa_op_argument arguments[] = {"]
    starts = []
    count = 0
    for (name, _, _), rows in ops:
        guards = sorted({row["guard"] for row in rows} - {"-"})
        starts.append(count)
        for order, row in enumerate(rows):
            guard = guards.index(row["guard"]) + 1 if row["guard"] != "-" else 0
            out.append(argument_text(name, row, order, len(rows), guard))
        count += len(rows)
        inputs = [row for row in rows if row["place"] == "in"]
        results = [row for row in rows if row["place"] == "out"]
        for part in (inputs, results):
            if part:
                order = rows.index(part[0])
                out.append(argument_text(name, any_of(part), order, len(rows), 0))
                count += 1
    out += ["};", "", "const struct mesa_op mesa_op_table[] = {"]
    for start, ((name, overload, inplace), rows) in zip(starts, ops):
        inputs = sum(row["place"] == "in" for row in rows)
        any_input = f"&arguments[{start + len(rows)}]" if inputs else "NULL"
        any_result = (f"&arguments[{start + len(rows) + (1 if inputs else 0)}]"
                      if inputs < len(rows) else "NULL")
        shown = "" if overload == "-" else overload
        only = "true" if inplace == "only" else "false"
        out.append(f'    {{"{name}", &arguments[{start}], {len(rows)}, "{shown}", {inputs}, '
                   f"{any_input}, {any_result}, {only}}},")
    out += ["};", f"const size_t mesa_op_table_count = {len(ops)};", "",
            "const struct mesa_op_spelling mesa_op_spellings[] = {"]
    for name, (index, is_inplace) in names:
        out.append(f'    {{"{name}", {index}, {"true" if is_inplace else "false"}}},')
    out += ["};", f"const size_t mesa_op_spelling_count = {len(names)};", ""]
    with open(sys.argv[2], "w", encoding="ascii") as file:
        file.write("\n".join(out))


main()
