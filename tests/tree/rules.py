# The rules of the source tree, as functions that return the faults they find.
#
# The one idea: every rule of docs/architecture.md that a program can check is a row of a table here,
# and every fault is one line that names the file. Knows the tree and nothing about what it computes.
#
# SPDX-License-Identifier: MIT
import pathlib
import platform
import re
import shutil
import subprocess

# What each folder of src/ may include, beside itself and the vocabulary. Arrows point one way:
# preload -> torch -> policy, vault -> classify -> codec -> kernels; reports read the ledger alone.
VOCABULARY = {"dtype.h", "status.h"}
LEDGER = "report/ledger.h"
MAY_INCLUDE = {
    "codec/kernels": set(),
    "codec": {"codec/kernels"},
    "classify": {"codec"},
    "policy": {"classify", "codec", LEDGER},
    "vault": {"classify", "codec", LEDGER},
    "report": set(),
    "torch": {"classify", "policy", "vault", "codec", LEDGER},
    "preload": {"torch", "classify", "policy", "vault", "codec", "codec/kernels", "report"},
}

# Words that a folder must do without, and why.
FORBIDDEN_WORDS = [
    ("src/codec", r"\b(malloc|calloc|realloc|free|aligned_alloc|posix_memalign)\s*\(",
     "codecs work in their caller's memory"),
    ("src/codec", r"\bpthread_\w+|\bmtx_\w+", "codecs are pure: no locks"),
    ("src/policy", r"\b(getenv|secure_getenv|printf|perror|puts)\s*\(",
     "mistakes are data; its caller reads the environment and prints"),
    ("src/classify", r"\baoti_torch_\w+", "only src/torch calls libtorch"),
    ("src/vault", r"\baoti_torch_\w+", "only src/torch calls libtorch"),
    ("src/codec", r"\baoti_torch_\w+", "only src/torch calls libtorch"),
    ("src/report", r"\baoti_torch_\w+", "only src/torch calls libtorch"),
]

BAD_NAME = re.compile(r"(^|[_-])(utils?|misc|common|helpers?|managers?)([_.-]|$)", re.IGNORECASE)

# What libmesa.so may need at run time: the C library, the dynamic linker, libunwind and what that
# brings. Anything more would come into every training process.
NEEDED = re.compile(r"^(libc|libm|libdl|libpthread|ld-linux[-\w]*|libunwind|libgcc_s)\.so(\.\d+)*$")

# Headers of intrinsics are named for their instruction set, which one machine has.
INTRINSICS = {"neon": "aarch64", "avx": "x86_64"}

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def sources(root, *folders, suffixes=(".c", ".h")):
    """Files of the tree below the folders, sorted, as paths relative to the root."""
    root = pathlib.Path(root)
    return sorted(path.relative_to(root) for folder in folders for path in (root / folder).rglob("*")
                  if path.suffix in suffixes)


def module_of(path):
    """The key of MAY_INCLUDE for a path below src/, None for the vocabulary."""
    folder = pathlib.PurePath(path).parent.as_posix()
    while folder != "." and folder not in MAY_INCLUDE:
        folder = pathlib.PurePath(folder).parent.as_posix()
    return None if folder == "." else folder


def arrow_faults(root):
    """#include lines that point against the arrows."""
    faults = []
    for path in sources(root, "src"):
        inside = path.relative_to("src")
        module = module_of(inside)
        for included in INCLUDE.findall((root / path).read_text()):
            if included in VOCABULARY or included == "mesa.h" and module == "preload":
                continue
            if ".." in included:
                faults.append(f"{path}: {included} is not written from src/ on")
            if not (root / "src" / included).exists():
                continue  # generated, or beside the file: no other module's
            target = module_of(included)
            allowed = MAY_INCLUDE.get(module, set())
            if target != module and target not in allowed and included not in allowed:
                faults.append(f"{path}: {module or 'the vocabulary'} must not include {included}")
    return faults


def public_header_faults(root):
    """include/mesa.h stands alone: nothing of ours, of torch or of CUDA."""
    return [f"{path}: a public header must not include {included}"
            for path in sources(root, "include")
            for included in re.findall(r'#\s*include\s+(["<][^">]+[">])', (root / path).read_text())
            if not re.fullmatch(r"<std\w+\.h>", included)]


def word_faults(root):
    """Words that a folder must do without (comments may use them)."""
    faults = []
    for folder, pattern, why in FORBIDDEN_WORDS:
        for path in sources(root, folder):
            code = COMMENT.sub("", (root / path).read_text())
            for match in sorted(set(m.group(0).strip("( ") for m in re.finditer(pattern, code))):
                faults.append(f"{path}: uses {match}: {why}")
    return faults


def name_faults(root, paths):
    """Files and folders whose names say nothing. `paths` are relative to the root."""
    return [f"{path}: the name says nothing about what is in it"
            for path in paths if any(BAD_NAME.search(part) for part in pathlib.PurePath(path).parts)]


def opening_faults(root):
    """C files open with a comment that says what they are for and names the licence."""
    faults = []
    for path in sources(root, "include", "src", "tools", "tests", "cuda"):
        opening = re.match(r"/\*(.*?)\*/|((?://[^\n]*\n)+)", (root / path).read_text(), re.DOTALL)
        if not opening:
            faults.append(f"{path}: does not open with a comment that says what it is for")
        elif "SPDX-License-Identifier: MIT" not in opening.group(0):
            faults.append(f"{path}: its opening comment has no line SPDX-License-Identifier: MIT")
    return faults


def guard_faults(root):
    """Headers of src/ are guarded by MESA_DIR_FILE_H."""
    faults = []
    for path in sources(root, "src", "include", suffixes=(".h",)):
        parts = path.relative_to(path.parts[0]).with_suffix("").as_posix()
        stem = re.sub(r"\W", "_", parts).upper()
        accepted = {f"MESA_{stem}_H", f"{stem}_H"} if stem.startswith("MESA") else {f"MESA_{stem}_H"}
        # The folder right above is enough for a module that lies deeper, as in codec/kernels.
        accepted.add("MESA_" + "_".join(stem.split("_")[1:]) + "_H")
        guard = re.search(r"#ifndef (\w+)\s+#define \1\b", (root / path).read_text())
        if not guard or guard.group(1) not in accepted:
            faults.append(f"{path}: is not guarded by MESA_{stem}_H")
    return faults


def compiler_for(path, compiler):
    """The compiler that knows the processor of a header's intrinsics; None if there is none here."""
    for isa, machine in INTRINSICS.items():
        if isa in path.stem and machine != platform.machine():
            cross = shutil.which(f"{machine}-linux-gnu-gcc")
            return [cross] if cross else None
    return compiler


def alone_faults(root, compiler):
    """Headers that do not compile alone. `compiler` is a command line, as a list. Templates need what
    their users define first, and are compiled with each of them."""
    faults = []
    for path in sources(root, "include", "src", suffixes=(".h",)):
        able = compiler_for(path, compiler)
        if able is None or path.stem.endswith("_tmpl"):
            continue
        included = path.relative_to(path.parts[0]).as_posix()
        command = [*able, "-std=c17", "-D_GNU_SOURCE", "-fsyntax-only", "-x", "c",
                   f"-I{root / 'src'}", f"-I{root / 'include'}", "-"]
        # Twice, for the guard.
        text = f'#include "{included}"\n' * 2 + "extern int nothing;\n"
        result = subprocess.run(command, input=text, capture_output=True, text=True)
        if result.returncode:
            first = next((line for line in result.stderr.splitlines() if "error" in line),
                         result.stderr.strip() or f"the compiler ended with {result.returncode}")
            faults.append(f"{path}: does not compile alone: {first}")
    return faults


def listed_exports(text):
    """The names in src/preload/exports.def: one a line, # begins a comment."""
    return {line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")}


def export_faults(listed, nm_output):
    """Differences between the list and `nm -D --defined-only`."""
    defined = {line.split()[-1].partition("@")[0] for line in nm_output.splitlines() if line.strip()}
    return ([f"{name}: listed in exports.def but not exported" for name in sorted(listed - defined)] +
            [f"{name}: exported but not listed in exports.def" for name in sorted(defined - listed)])


def needed_faults(readelf_output):
    """Libraries that would come into every training process without need."""
    return [f"{name}: the library must not need it at run time"
            for name in re.findall(r"\(NEEDED\)[^\[]*\[([^\]]+)\]", readelf_output)
            if not NEEDED.match(name)]


def libc_faults(nm_output):
    """References that only a new C library can satisfy: they appear when a file is compiled as C23."""
    return [f"{name}: this reference needs glibc 2.38; compile as C17"
            for name in sorted(set(re.findall(r"\b__isoc23_\w+", nm_output)))]
