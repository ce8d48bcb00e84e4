"""Writes a text file as a C string: embed.py INPUT OUTPUT NAME.

SPDX-License-Identifier: MIT
"""

import sys

source, target, name = sys.argv[1:]
with open(source, "rb") as file:
    contents = file.read()
lines = "".join(
    '    "'
    + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in line)
    + '"\n'
    for line in contents.splitlines(keepends=True)
)
with open(target, "w", encoding="ascii") as file:
    file.write(f"static const char {name}[] =\n{lines};\n")
