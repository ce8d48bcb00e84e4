"""Writes the linker's export map from exports.def: make_map.py EXPORTS MAP"""
import sys

source, target = sys.argv[1:]
with open(source) as lines:
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
with open(target, "w") as out:
    out.write("{\n  global:\n")
    out.writelines(f"    {name};\n" for name in names)
    out.write("  local: *;\n};\n")
