# Runs programs (programs/) without libmesa and with it, and says what differs.
#
# The one idea: a batch. All programs that were collected for the same policy and the same module
# run in one worker process; results are kept for the session, so the plain run happens once.
#
# SPDX-License-Identifier: MIT
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap

import numpy
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

# Under these every gradient has the same bits as without libmesa.
EXACT_POLICIES = ("off", "observe", "lossless")
PLAIN = "plain"


def library():
    """Path of the library under test, None when MESA_LIB=none: then plain is compared to plain."""
    path = os.environ.get("MESA_LIB", os.path.join(ROOT, "build", "src", "preload", "libmesa.so"))
    return None if path == "none" else os.path.abspath(path)


def plain_environment():
    """The environment of the tests without anything of libmesa's."""
    environment = {name: value for name, value in os.environ.items()
                   if name != "LD_PRELOAD" and not name.startswith("MESA_")}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    # Compiled graphs would otherwise be found in a cache that other runs have filled.
    environment["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    environment["TOKENIZERS_PARALLELISM"] = "false"
    environment["HF_HUB_OFFLINE"] = "1"
    return environment


def environment(policy, more=()):
    """The environment of a run under a policy, of a plain run under PLAIN."""
    result = plain_environment()
    if policy != PLAIN and library():
        result["LD_PRELOAD"] = library()
        result["MESA_POLICY"] = policy
        result["MESA_REPORT"] = "none"
        result["MESA_STRICT"] = "1"
    result.update(more)
    return result


def report_of(code, tmp_path, policy="default"):
    """libmesa's JSON report of a program, which must say nothing itself."""
    if not library():
        pytest.skip("needs the library")
    path = tmp_path / "report.json"
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=tmp_path,
        env=environment(policy, {"MESA_REPORT": str(path), "PYTHONWARNINGS": "ignore"}), timeout=300)
    assert (result.returncode, result.stderr) == (0, "")
    with open(path) as file:
        return json.load(file)


class Crash(Exception):
    """A program that took its process down, or did not end."""


class Batches:
    """Results of programs, each (policy, program) run once. One object for the whole session."""

    def __init__(self):
        self._wanted = {}  # (policy, module, environment) -> names, in order
        self._results = {}  # (policy, name) -> result
        self.stderr = {}  # (policy, name) -> what its worker wrote
        self.times = []  # (seconds, policy, name)

    def want(self, program, policy):
        """Says at collection that this result will be asked for, so that it joins a batch."""
        for each in (PLAIN, policy):
            names = self._wanted.setdefault(self._key(program, each), [])
            if program.name not in names:
                names.append(program.name)

    def result(self, program, policy):
        if (policy, program.name) not in self._results:
            self.want(program, policy)
            self._run_batch(self._key(program, policy))
        result = self._results[policy, program.name]
        if "crash" in result:
            raise Crash(f"{program.name} under {policy}: {result['crash']}")
        return result

    @staticmethod
    def _key(program, policy):
        module = program.name if program.alone else program.name.partition(".")[0]
        return policy, module, program.environment

    def _run_batch(self, key):
        policy, _, more = key
        left = [name for name in self._wanted[key] if (policy, name) not in self._results]
        while left:
            done = self._run_worker(policy, left, more)
            left = [name for name in left if name not in done]

    def _run_worker(self, policy, names, more):
        """Runs programs until one of them crashes; returns the names that have a result now."""
        with tempfile.TemporaryDirectory(prefix="mesa-train-") as folder:
            path = os.path.join(folder, "results")
            limit = 120 + 60 * len(names)
            child = subprocess.Popen([sys.executable, os.path.join(HERE, "worker.py"), path, *names],
                                     env=environment(policy, more), cwd=folder,
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, start_new_session=True)
            try:
                stdout, stderr = child.communicate(timeout=limit)
                end = how_it_ended(child.returncode)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                stdout, stderr = child.communicate()
                end = f"did not end within {limit} s"
            stderr = stderr.decode(errors="replace")
            begun, done = None, []
            for result in read_results(path):
                if "begins" in result:
                    begun = result["name"]
                    continue
                result["stdout"] = stdout.decode(errors="replace")
                self._results[policy, result["name"]] = result
                self.times.append((result["seconds"], policy, result["name"]))
                done.append(result["name"])
            if end:  # the worker did not reach its end: blame the program that was running, or last
                blamed = names[0] if begun is None else begun
                self._results[policy, blamed] = {"crash": f"{end}\n{stderr[-4000:]}"}
                done.append(blamed)
            for name in done:
                self.stderr[policy, name] = stderr
        return done


def how_it_ended(status):
    """None for success, else words."""
    if status == 0:
        return None
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def read_results(path):
    """The results that a worker has finished writing."""
    if not os.path.exists(path):
        return
    with open(path, "rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except (EOFError, pickle.UnpicklingError):
                return


def same_bits(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def relative_error(a, b):
    """L2 norm of a - b over that of a. Infinite where one of them is finite and the other is not,
    or where the two differ in what is not finite."""
    a, b = (numpy.asarray(x).astype(complex if numpy.iscomplexobj(x) else float).ravel()
            for x in (a, b))
    if a.shape != b.shape:
        return numpy.inf
    finite = numpy.isfinite(a)
    if not numpy.array_equal(a[~finite], b[~finite], equal_nan=True):
        return numpy.inf
    a, b = a[finite], b[finite]
    if not numpy.isfinite(b).all():
        return numpy.inf
    largest = numpy.abs(a).max(initial=0.0)
    if largest == 0.0:
        return 0.0 if not b.any() else numpy.inf
    # Scaled, so that squares of the smallest and the largest numbers are still numbers.
    return float(numpy.linalg.norm(a / largest - b / largest) / numpy.linalg.norm(a / largest))


def cosine(a, b):
    norms = numpy.linalg.norm(a) * numpy.linalg.norm(b)
    return float(numpy.dot(a, b) / norms) if norms else 1.0


def differences(plain, other, tolerance):
    """What a user could notice between two results, as lines. Tolerance 0 means the same bits."""
    lines = [f"plain run: not true: {what}" for what in plain["failed"]]
    lines += [f"not true: {what}" for what in other["failed"]]
    for kind in ("values", "gradients", "models", "facts"):
        if plain[kind].keys() != other[kind].keys():
            lines.append(f"{kind}: other names: {plain[kind].keys() ^ other[kind].keys()}")
    for name, fact in plain["facts"].items():
        if fact != other["facts"].get(name):
            lines.append(f"{name}: " + first_difference(repr(fact), repr(other["facts"].get(name))))
    for name, value in plain["values"].items():
        if name in other["values"] and not same_bits(value, other["values"][name]):
            error = relative_error(value, other["values"][name])
            lines.append(f"{name}: not the same bits, relative error {error:.3g}")
    for name, gradient in plain["gradients"].items():
        if name in other["gradients"]:
            lines += gradient_difference(name, gradient, other["gradients"][name], tolerance,
                                         plain["scales"].get(name, 0.0))
    for name, model in plain["models"].items():
        if name in other["models"]:
            lines += model_differences(name, model, other["models"][name], tolerance)
    return lines


def first_difference(plain, other, around=60):
    """Two long texts from shortly before the place where they part."""
    same = len(os.path.commonprefix([plain, other]))
    begin = max(0, same - around)
    a, b = (("..." if begin else "") + text[begin:begin + 4 * around] for text in (plain, other))
    return f"{a}  became  {b}"


def gradient_difference(name, plain, other, tolerance, scale=0.0):
    if same_bits(plain, other):
        return []
    error = relative_error(plain, other)
    if tolerance == 0:
        return [f"gradient {name}: not the same bits, relative error {error:.3g}"]
    if scale and plain.shape == other.shape:
        terms = max(numpy.linalg.norm(plain), scale * plain.size**0.5)
        off = numpy.linalg.norm(plain - other)
        error = off / terms if numpy.isfinite(off) else error
    if not error <= tolerance:
        return [f"gradient {name}: relative error {error:.3g}, allowed is {tolerance:g}"]
    return []


def model_differences(name, plain, other, tolerance):
    """Compares the gradient of a whole model as one vector, and every tensor of it loosely: an
    error in a small one would drown in the norm of the whole."""
    if plain.keys() != other.keys():
        return [f"{name}: gradients of other parameters: {plain.keys() ^ other.keys()}"]
    if tolerance == 0:
        return [line for key in plain
                for line in gradient_difference(f"{name} {key}", plain[key], other[key], 0)]
    a = numpy.concatenate([plain[key].ravel().astype(float) for key in plain])
    b = numpy.concatenate([other[key].ravel().astype(float) for key in plain])
    lines = []
    error, angle = relative_error(a, b), cosine(a, b)
    if not error <= tolerance:
        lines.append(f"gradient of {name}: relative error {error:.4g}, allowed is {tolerance:g}")
    if not angle > min(0.9999, 1 - tolerance**2 / 2):
        lines.append(f"gradient of {name}: cosine {angle:.6f}")
    whole = numpy.linalg.norm(a)
    for key in plain:
        size = numpy.linalg.norm(plain[key].astype(float))
        off = numpy.linalg.norm(plain[key].astype(float) - other[key].astype(float))
        if not off <= 5 * tolerance * (size + 0.01 * whole):
            lines.append(f"gradient of {name}, {key}: off by {off:.3g}, norm {size:.3g} "
                         f"of {whole:.3g}")
    return lines


def load(module):
    """The programs of a module of programs/, by name."""
    if HERE not in sys.path:
        sys.path.insert(0, HERE)
    importlib.import_module("programs." + module)
    found = sys.modules["programs"].PROGRAMS
    return [p for name, p in found.items() if name.partition(".")[0] == module]


def cases(module, policies=("default", "lossless"), only=None):
    """A decorator: the test runs once for each program of a module and each policy."""
    params = []
    for program in load(module):
        if only and not only(program):
            continue
        for policy in policies:
            marks = [pytest.mark.slow] if program.slow else []
            params.append(pytest.param(program, policy, marks=marks,
                                       id=f"{program.name.partition('.')[2]}-{policy}"))
    return pytest.mark.parametrize("program, policy", params)
