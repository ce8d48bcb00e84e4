#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes shipped.c: the shipped policies as C strings, so that the library needs no file to find.

usage: gen_policies.py OUTPUT POLICY...        (name = file name without .policy, in this order)
"""
import json
import pathlib
import sys


def quote(line: str) -> str:
    """A C string for a line; ASCII only, so that JSON's escapes are C's as well."""
    assert line.isascii(), f"not ASCII: {line}"
    return json.dumps(line)


def row(path: pathlib.Path) -> str:
    text = path.read_text(encoding="utf-8")
    first = text.split("\n", 1)[0]
    assert first.startswith("# "), f"{path}: the first line is the summary, as a comment"
    lines = "\n".join(f"             {quote(line)}" for line in text.splitlines(keepends=True))
    return (
        f"    {{.name = {quote(path.stem)},\n"
        f"     .summary = {quote(first[2:])},\n"
        f"     .text =\n{lines},\n"
        f"     .length = {len(text)}}},\n"
    )


def main() -> None:
    output, *paths = map(pathlib.Path, sys.argv[1:])
    rows = "".join(row(path) for path in paths)
    output.write_text(
        "/* Made by gen_policies.py from policies/; do not edit. */\n"
        '#include "policy/rule.h"\n\n'
        f"const struct mesa_shipped mesa_shipped[] = {{\n{rows}}};\n"
        "const size_t mesa_shipped_count = sizeof mesa_shipped / sizeof mesa_shipped[0];\n"
    )


main()
