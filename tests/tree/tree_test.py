# Checks the source tree and libmesa.so against the rules of the tree, after checking that each rule
# finds a planted fault.
#
# usage: tree_test.py SOURCE_ROOT LIBRARY COMPILER...
#
# SPDX-License-Identifier: MIT
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import rules

ROOT = LIBRARY = None
COMPILER = ["cc"]

GOOD = "/* What it is for.\n *\n * SPDX-License-Identifier: MIT */\n"


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Tree(unittest.TestCase):
    """The rules on the real tree."""

    def check(self, faults):
        if faults:
            self.fail("\n  " + "\n  ".join(faults))

    def test_arrows(self):
        self.check(rules.arrow_faults(ROOT))

    def test_public_header(self):
        self.check(rules.public_header_faults(ROOT))

    def test_words(self):
        self.check(rules.word_faults(ROOT))

    def test_names(self):
        folders = ("bench", "cuda", "docs", "examples", "include", "policies", "scripts", "src",
                   "tests", "tools")
        paths = [path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*")
                 if path.is_file() and "__pycache__" not in path.parts]
        self.assertGreater(len(paths), 20)
        self.check(rules.name_faults(ROOT, paths))

    def test_openings(self):
        self.check(rules.opening_faults(ROOT))

    def test_guards(self):
        self.check(rules.guard_faults(ROOT))

    def test_headers_compile_alone(self):
        self.check(rules.alone_faults(ROOT, COMPILER))

    def test_public_header_compiles_as_cpp(self):
        if shutil.which("g++") is None:
            self.skipTest("no g++")
        subprocess.run(["g++", "-fsyntax-only", "-Wall", "-Werror", "-x", "c++",
                        str(ROOT / "include" / "mesa.h")], check=True)


class Library(unittest.TestCase):
    """What libmesa.so shows to the dynamic linker."""

    check = Tree.check

    def test_exports(self):
        listed = rules.listed_exports((ROOT / "src" / "preload" / "exports.def").read_text())
        self.check(rules.export_faults(listed, output("nm", "-D", "--defined-only", LIBRARY)))

    def test_needed(self):
        self.check(rules.needed_faults(output("readelf", "-d", "-W", LIBRARY)))

    def test_old_libc(self):
        self.check(rules.libc_faults(output("nm", "-D", "--undefined-only", LIBRARY)))


class Planted(unittest.TestCase):
    """Each rule finds a fault that is there, and none in a sound tree."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        self.plant("src/dtype.h", GOOD + "#ifndef MESA_DTYPE_H\n#define MESA_DTYPE_H\n#endif\n")
        self.plant("src/torch/torch.h", GOOD + "#ifndef MESA_TORCH_TORCH_H\n#define MESA_TORCH_TORCH_H\n"
                   '#include "dtype.h"\n#endif\n')
        self.plant("src/codec/codec.h", GOOD + "#ifndef MESA_CODEC_CODEC_H\n#define MESA_CODEC_CODEC_H\n"
                   "/* no malloc() here */\n#endif\n")
        self.plant("src/torch/hook.c", GOOD + '#include "codec/codec.h"\n')

    def plant(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def rules_on_tree(self):
        return (rules.arrow_faults(self.root) + rules.public_header_faults(self.root) +
                rules.word_faults(self.root) + rules.opening_faults(self.root) +
                rules.guard_faults(self.root) + rules.alone_faults(self.root, COMPILER))

    def test_sound_tree(self):
        self.assertEqual(self.rules_on_tree(), [])

    def test_each_fault_is_found(self):
        planted = {
            "src/codec/up.c": GOOD + '#include "torch/torch.h"\n',
            "src/codec/around.c": GOOD + '#include "../torch/torch.h"\n',
            "src/codec/greedy.c": GOOD + "void *f(void) { return malloc(1); }\n",
            "src/codec/silent.c": "int f(void);\n",
            "src/codec/free.c": "/* What it is for. */\n",
            "src/vault/side.c": GOOD + '#include "torch/torch.h"\n',
            "src/codec/open.h": GOOD + "#define OPEN 1\n",
            "src/codec/loose.h": GOOD + "#ifndef MESA_CODEC_LOOSE_H\n#define MESA_CODEC_LOOSE_H\n"
                                        "size_t f(void);\n#endif\n",
            "include/mesa.h": GOOD + "#ifndef MESA_H\n#define MESA_H\n#include <cuda.h>\n#endif\n",
        }
        for path, text in planted.items():
            with self.subTest(path):
                self.plant(path, text)
                faults = self.rules_on_tree()
                self.assertTrue(any(path in fault for fault in faults), faults)
                (self.root / path).unlink()

    def test_names(self):
        bad = ["src/common/a.c", "src/utils.c", "src/vault/vault_helpers.h", "tools/hook_manager.c"]
        good = ["src/codec/affine.c", "src/torch/utility.c", "docs/commander.md"]
        self.assertEqual(len(rules.name_faults(self.root, bad)), len(bad))
        self.assertEqual(rules.name_faults(self.root, good), [])

    def test_exports(self):
        nm = "0000000000001000 T mesa_report\n0000000000002000 T mesa_leaked\n"
        faults = rules.export_faults(rules.listed_exports("# a\nmesa_report\nmesa_step\n"), nm)
        self.assertEqual([fault.split(":")[0] for fault in faults], ["mesa_step", "mesa_leaked"])

    def test_needed(self):
        text = (" 0x0000000000000001 (NEEDED)  Shared library: [libunwind.so.8]\n"
                " 0x0000000000000001 (NEEDED)  Shared library: [libc.so.6]\n"
                " 0x0000000000000001 (NEEDED)  Shared library: [libstdc++.so.6]\n")
        self.assertEqual([fault.split(":")[0] for fault in rules.needed_faults(text)],
                         ["libstdc++.so.6"])

    def test_old_libc(self):
        self.assertEqual(len(rules.libc_faults("    U __isoc23_strtol@GLIBC_2.38\n")), 1)
        self.assertEqual(rules.libc_faults("    U __isoc99_sscanf@GLIBC_2.7\n    U strtol\n"), [])


if __name__ == "__main__":
    ROOT, LIBRARY, COMPILER = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3:]
    unittest.main(argv=sys.argv[:1], verbosity=2)
