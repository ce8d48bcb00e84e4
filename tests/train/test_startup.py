# Getting into a process and out of it: how torch is loaded, what else is preloaded, which
# processes inherit the preload, every way to end.
#
# These run processes of their own and look at exit status, stdout and stderr, so they do not use
# programs/.
#
# SPDX-License-Identifier: MIT
import glob
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import harness

STEP = """
import torch
import torch.nn.functional as F
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(256, 256, requires_grad=True)
F.gelu(x * 2).softmax(-1).square().sum().backward()
"""
TELL = """
import ctypes
try:
    active = ctypes.CDLL(None).mesa_active()
except AttributeError:
    active = None
print("norm %.6f" % x.grad.norm(), "active", active)
"""


def environment(policy="default"):
    return harness.environment(policy)


def run(command, env=None, timeout=120, **more):
    return subprocess.run(command, env=environment() if env is None else env, timeout=timeout,
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, **more)


def python(code, *arguments, flags=(), **more):
    return run([sys.executable, *flags, "-c", textwrap.dedent(code), *arguments], **more)


def check_trained(result, code=0):
    """The step gave the right gradient, under libmesa, and nobody printed anything else."""
    assert result.returncode == code, result.stderr
    assert result.stderr == ""
    words = result.stdout.split()
    assert words[:1] == ["norm"] and len(words) == 4, result.stdout
    assert abs(float(words[1]) - trained_norm()) < 0.01 * trained_norm()
    if harness.library():
        assert words[3] == "1", "libmesa is not active"


_norm = []


def trained_norm():
    """The norm of the gradient of STEP without libmesa."""
    if not _norm:
        plain = python(STEP + TELL, env=harness.plain_environment())
        _norm.append(float(plain.stdout.split()[1]))
    return _norm[0]


IMPORTS = {
    "at the beginning": STEP,
    "late": "import json, threading, ssl, sqlite3\nsum(range(10**5))\n" + STEP,
    "in a thread": "import threading\ndef f():\n    global torch, F, x\n"
                   + textwrap.indent(STEP, "    ")
                   + "\nt = threading.Thread(target=f); t.start(); t.join()\n",
    "by many threads": "import threading\n"
                       "ts = [threading.Thread(target=__import__, args=('torch',))"
                       " for _ in range(4)]\n[t.start() for t in ts]; [t.join() for t in ts]\n"
                       + STEP,
    "with RTLD_LOCAL": "import ctypes, glob, importlib.util, os\n"
                       "lib = os.path.dirname(importlib.util.find_spec('torch').origin) + '/lib/'\n"
                       "for n in ('libc10.so', 'libtorch_cpu.so'):\n"
                       "    ctypes.CDLL(lib + n, mode=os.RTLD_LOCAL | os.RTLD_LAZY)\n" + STEP,
    "with RTLD_NOW and GLOBAL": "import sys, os\nsys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)\n"
                                + STEP,
    "after numpy": "import numpy\nnumpy.ones((64, 64)) @ numpy.ones((64, 64))\n" + STEP,
    "after a fork": "import os\npid = os.fork()\nif pid:\n"
                    "    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n" + STEP,
}


@pytest.mark.parametrize("how", IMPORTS)
def test_torch_is_imported(how):
    check_trained(python(IMPORTS[how] + TELL))


@pytest.mark.parametrize("flags", [("-I",), ("-S", "-E"), ("-O",), ("-X", "dev"), ("-B", "-s")],
                         ids=" ".join)
def test_python_flags(flags):
    code = STEP + TELL
    if "-S" in flags:  # no site-packages: say where torch is
        place = next(p for p in sys.path if os.path.isdir(os.path.join(p, "torch")))
        code = f"import sys\nsys.path.append({place!r})\n" + code
    if "dev" in flags:
        code = "import warnings\nwarnings.simplefilter('ignore')\n" + code
    result = python(code, flags=flags)
    if "dev" in flags:
        result.stderr = ""  # torch's own warnings
    check_trained(result)


def test_bare_environment():
    """env -i: no HOME, PATH or LANG, in a folder that cannot be written to."""
    env = {k: v for k, v in environment().items() if k in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
    result = python(STEP + TELL, env=env, cwd="/proc")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("norm")
    if harness.library():
        assert result.stdout.split()[3] == "1"


def jemalloc():
    found = glob.glob("/usr/lib/*/libjemalloc.so.2")
    return found[0] if found else None


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("other", ["libm.so.6", "libgomp.so.1", "jemalloc"])
@pytest.mark.parametrize("separator", [":", " "])
def test_another_preload(other, order, separator):
    if other == "jemalloc":
        other = jemalloc()
        if not other:
            pytest.skip("libjemalloc.so.2 is not installed")
        if separator == " ":
            pytest.skip("one separator is enough")
    env = environment()
    names = [other, env["LD_PRELOAD"]] if "LD_PRELOAD" in env else [other]
    env["LD_PRELOAD"] = separator.join(names if order == "before" else reversed(names))
    check_trained(python(STEP + TELL, env=env))


def test_under_another_name(tmp_path):
    """The library finds itself, wherever it is."""
    if not harness.library():
        pytest.skip("needs the library")
    copy = tmp_path / "a name with spaces" / "libother.so.7"
    copy.parent.mkdir()
    shutil.copy(harness.library(), copy)
    link = tmp_path / "link.so"
    link.symlink_to(copy)
    env = environment()
    env["LD_PRELOAD"] = str(link)
    check_trained(python(STEP + TELL, env=env))


def test_wrong_name_is_not_taken_for_loaded():
    """A preload that the loader could not find must not look as if it worked."""
    env = harness.plain_environment()
    env["LD_PRELOAD"] = "libmesa-that-is-nowhere.so"
    result = python(STEP + TELL, env=env)
    assert result.returncode == 0
    assert result.stdout.split()[3] == "None"


CHILDREN = [
    (["true"], 0, ""),
    (["sh", "-c", "echo hi"], 0, "hi\n"),
    (["sh", "-c", "ls / > /dev/null; exit 7"], 7, ""),
    (["sh", "-c", "echo a | tr a b | cat"], 0, "b\n"),
    (["env", "-u", "NOTHING", "true"], 0, ""),
    ([sys.executable, "-I", "-S", "-c", "print(6 * 7)"], 0, "42\n"),
    (["git", "--version"], 0, None),
    (["git", "-C", harness.ROOT, "status", "--short", "--untracked-files=no"], 0, None),
    (["gcc", "--version"], 0, None),
    (["ninja", "--version"], 0, None),
    (["tar", "--version"], 0, None),
    (["perl", "-e", "print 1"], 0, "1"),
    (["awk", "BEGIN { print 2 }"], 0, "2\n"),
    (["make", "--version"], 0, None),
]


@pytest.mark.parametrize("command, code, output", CHILDREN, ids=lambda c: " ".join(map(str, c))[:40]
                         if isinstance(c, list) else "")
def test_other_programs_are_quiet(command, code, output):
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    # As a user has it: reports and all.
    env = environment()
    for name in ("MESA_REPORT", "MESA_STRICT", "MESA_POLICY"):
        env.pop(name, None)
    result = run(command, env=env)
    assert (result.returncode, result.stderr) == (code, "")
    if output is not None:
        assert result.stdout == output


def test_gcc_compiles_quietly(tmp_path):
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    source = tmp_path / "a.c"
    source.write_text("int main(void) { return 3; }\n")
    result = run(["gcc", str(source), "-o", str(tmp_path / "a")])
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert run([str(tmp_path / "a")]).returncode == 3


def seconds_for(command, env, rounds=60):
    """The shortest of many runs: what the command costs when nobody disturbs it."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        best = min(best, time.perf_counter() - begin)
    return best


def test_other_programs_cost_less_than_a_millisecond():
    command = [shutil.which("true")]
    plain = seconds_for(command, harness.plain_environment())
    preloaded = seconds_for(command, environment())
    assert preloaded - plain < 0.001, f"{(preloaded - plain) * 1e3:.2f} ms"


CHILD_WAYS = {
    "subprocess": "import subprocess; r = subprocess.run(['sh', '-c', 'exit 5']).returncode",
    "system": "import os; r = os.waitstatus_to_exitcode(os.system('exit 5'))",
    "spawn": "import os; r = os.spawnlp(os.P_WAIT, 'sh', 'sh', '-c', 'exit 5')",
    "posix_spawn": "import os; r = os.waitstatus_to_exitcode(os.waitpid(os.posix_spawnp('sh', "
                   "['sh', '-c', 'exit 5'], os.environ), 0)[1])",
    "fork and exec": "import os\np = os.fork()\n"
                     "if p == 0: os.execlp('sh', 'sh', '-c', 'exit 5')\n"
                     "r = os.waitstatus_to_exitcode(os.waitpid(p, 0)[1])",
    "fork and _exit": "import os\np = os.fork()\nif p == 0: os._exit(5)\n"
                      "r = os.waitstatus_to_exitcode(os.waitpid(p, 0)[1])",
    "popen": "import os; r = 5 if os.popen('echo 5').read() == '5\\n' else 0",
    "fork and sys.exit": "import os, sys\np = os.fork()\nif p == 0: sys.exit(5)\n"
                         "r = os.waitstatus_to_exitcode(os.waitpid(p, 0)[1])",
    "preload unset": "import os, subprocess\n"
                     "e = {k: v for k, v in os.environ.items() if k != 'LD_PRELOAD'}\n"
                     "r = subprocess.run(['sh', '-c', 'exit 5'], env=e).returncode",
    "fork and train": "import os\np = os.fork()\nif p == 0:\n"
                      "    y.square().mean().backward(); F.gelu(x * 3).sum().backward()\n"
                      "    os._exit(5)\nr = os.waitstatus_to_exitcode(os.waitpid(p, 0)[1])",
}


def test_children_of_a_training_process():
    """Before torch, between forward and backward, inside of backward, afterwards."""
    result = python(
        f"ways = {CHILD_WAYS!r}\nbad = []\n"
        "def children(where):\n"
        "    for name, way in ways.items():\n"
        "        if name == 'fork and train' and where in ('before', 'inside'): continue\n"
        "        exec(way, globals())\n"
        "        if r != 5: bad.append((where, name, r))\n"
        "children('before')\n" + STEP +
        "y = F.gelu(x * 2); children('between')\n"
        "z = F.gelu(x * 2); z.register_hook(lambda g: children('inside')); z.sum().backward()\n"
        "y.sum().backward(retain_graph=True); children('after'); y.sum().backward(); print(bad)")
    assert (result.returncode, result.stdout, result.stderr) == (0, "[]\n", "")


def test_program_executes_itself_again():
    result = python("import os, sys\n"
                    "if len(sys.argv) < 2:\n" + textwrap.indent(STEP, "    ") +
                    "\n    os.execv(sys.executable, [sys.executable, '-c',"
                    " open('/proc/self/cmdline').read().split(chr(0))[2], 'again'])\n"
                    + STEP + TELL)
    check_trained(result)


ENDS = {
    "live graph": (0, "y = F.gelu(x * 2).softmax(-1)"),
    "exit code": (3, "y = F.gelu(x * 2); sys.exit(3)"),
    "exception": (1, "y = F.gelu(x * 2); raise ValueError('wanted')"),
    "exception in backward": (1, "y = F.gelu(x * 2); y.register_hook(lambda g: 1 // 0); "
                                 "y.sum().backward()"),
    "_exit": (4, "y = F.gelu(x * 2); os._exit(4)"),
    "_exit in backward": (4, "y = F.gelu(x * 2); y.register_hook(lambda g: os._exit(4)); "
                             "y.sum().backward()"),
    "SIGTERM": (-signal.SIGTERM, "y = F.gelu(x * 2); os.kill(os.getpid(), signal.SIGTERM)"),
    "SIGKILL": (-signal.SIGKILL, "y = F.gelu(x * 2); os.kill(os.getpid(), signal.SIGKILL)"),
    # A shell's background jobs ignore SIGINT, and so would a program started by one.
    "SIGINT in backward": (-signal.SIGINT, "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
                           "y = F.gelu(x * 2); y.register_hook(lambda g: "
                           "os.kill(os.getpid(), signal.SIGINT)); y.sum().backward()"),
    "abort": (-signal.SIGABRT, "y = F.gelu(x * 2); resource.setrlimit(resource.RLIMIT_CORE, (0, 0))"
                               "; os.abort()"),
    "atexit": (0, "y = F.gelu(x * 2); atexit.register(lambda: y.sum().backward())"),
    "exit from a thread": (0, "y = F.gelu(x * 2)\n"
                              "def f():\n    F.gelu(x * 3).sum().backward(); sys.exit(9)\n"
                              "t = threading.Thread(target=f); t.start(); t.join()"),
    "_exit from a thread": (6, "y = F.gelu(x * 2)\n"
                               "def f():\n    F.gelu(x * 3).sum().backward(); os._exit(6)\n"
                               "t = threading.Thread(target=f); t.start(); t.join()"),
    "C exit from a thread": (8, "y = F.gelu(x * 2)\n"
                                "t = threading.Thread(target=ctypes.CDLL(None).exit, args=(8,))\n"
                                "t.start(); t.join()"),
    "graph in a module": (0, "sys.modules['kept'] = F.gelu(x * 2)"),
    "graph in a cycle": (0, "a = [F.gelu(x * 2)]; a.append(a)"),
    "finalizer runs backward": (0, "class D:\n    def __del__(self): self.y.sum().backward()\n"
                                   "d = D(); d.y = F.gelu(x * 2)"),
    "thread local graph": (0, "l = threading.local(); l.y = F.gelu(x * 2)"),
    "forked child ends first": (0, "y = F.gelu(x * 2)\np = os.fork()\n"
                                   "if p == 0: sys.exit(0)\nos.waitpid(p, 0)"),
    # May be cut down at exit without libmesa too: only that it ends is asked.
    "daemon thread trains": (None, "def f():\n    while True: F.gelu(x.detach().requires_grad_() * "
                                   "2).sum().backward()\n"
                                   "threading.Thread(target=f, daemon=True).start(); time.sleep(.2)"),
}


@pytest.mark.parametrize("end", ENDS)
def test_ways_to_end(end):
    code, how = ENDS[end]
    text = ("import atexit, ctypes, os, resource, signal, sys, threading, time\n" + STEP + how)
    result = python(text)
    if code is None:
        return
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    # The last line tells an exception of the program; nothing else may be there.
    if "exception" in end or "SIGINT" in end:
        plain = python(text, env=harness.plain_environment())
        assert result.stderr == plain.stderr
    else:
        assert "mesa" not in result.stderr and "terminate" not in result.stderr


REPORTED = STEP + "y = F.gelu(x * 2)\n"


@pytest.mark.parametrize("end", ["live graph", "exit code", "atexit", "exit from a thread"])
def test_report_at_the_end(end, tmp_path):
    """A report is written once, by the process that trained, whichever way it ends."""
    if not harness.library():
        pytest.skip("needs the library")
    code, how = ENDS[end]
    env = environment()
    env["MESA_REPORT"] = f"{tmp_path}/%p.json"
    result = python("import atexit, ctypes, os, sys, threading\n" + STEP + how, env=env)
    assert result.returncode == code, result.stderr
    assert len(list(tmp_path.iterdir())) == 1, list(tmp_path.iterdir())


def test_no_report_without_training(tmp_path):
    if not harness.library():
        pytest.skip("needs the library")
    env = environment()
    env["MESA_REPORT"] = f"text,{tmp_path}/%p.json"
    result = python("import torch; torch.ones(3) + 1", env=env)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert not list(tmp_path.iterdir())


ONLY_RESULTS = """
import torch
import programs
torch.set_num_threads(1)
x = torch.randn(256, 256, requires_grad=True)
def chain():
    return (x + 1).tanh().sigmoid().exp().softmax(-1)
"""


def test_program_that_saves_only_results():
    """No input is ever saved, and libmesa is at work all the same."""
    if not harness.library():
        pytest.skip("needs the library")
    env = environment()
    env["PYTHONPATH"] = harness.HERE
    result = python(ONLY_RESULTS + "y = chain(); del y; y = chain(); t = programs.totals()\n"
                    "assert 0 < t.held_bytes < t.would_bytes, (t.held_bytes, t.would_bytes)\n"
                    "y.sum().backward()", env=env)
    assert (result.returncode, result.stderr) == (0, "")


def test_default_hooks_see_no_tensor_of_libmesa():
    """It starts when the program's hooks are gone, and calls them for nothing of its own."""
    hooked = ("seen = []\n"
              "with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t.shape) or t,"
              " lambda t: t):\n"
              "    y = chain()\n"
              "y.sum().backward()\n"
              "assert len(seen) == 4, seen\n"
              "chain().sum().backward()\n")
    env = environment()
    env["PYTHONPATH"] = harness.HERE
    result = python(ONLY_RESULTS + hooked + TELL, env=env)
    assert (result.returncode, result.stderr) == (0, "")
    if harness.library():
        assert result.stdout.split()[3] == "1"


def test_unknown_variable_is_pointed_out():
    if not harness.library():
        pytest.skip("needs the library")
    env = environment()
    env["MESA_POLICI"] = "lossless"
    result = python(STEP + TELL, env=env)
    assert result.returncode == 0
    assert "MESA_POLICI" in result.stderr and "MESA_POLICY" in result.stderr
    assert len(result.stderr.splitlines()) == 1, result.stderr


def test_broken_policy_is_reported_before_training():
    if not harness.library():
        pytest.skip("needs the library")
    env = environment("linear.input affine bits=banana")
    result = python("print('begins', flush=True)\n" + STEP + TELL, env=env)
    assert "banana" in result.stderr or "bits" in result.stderr, result.stderr
    assert "norm" not in result.stdout, "a mistake in the policy must be told before training"


def test_stdout_and_stderr_are_closed():
    code = "import os\nos.close(1); os.close(2)\n" + STEP + "os._exit(0 if x.grad.norm() > 0 else 1)"
    env = environment()
    env["MESA_REPORT"] = "text"
    assert python(code, env=env).returncode == 0


# The first save of a process starts libmesa, and is not looked at. The next one is of the same call.
# Name of the first argument, and a call.
FIRST_OPS = {
    "convolution": ("input", "F.conv2d(torch.randn(4, 64, 8, 8), computed(64, 64, 3, 3))"),
    "native_layer_norm": ("bias", "F.layer_norm(computed(16, 4096), (4096,), computed(4096), "
                                  "computed(4096))"),
    "native_batch_norm": ("input", "F.batch_norm(computed(4, 4096), torch.zeros(4096), "
                                   "torch.ones(4096), computed(4096), computed(4096), True)"),
}


@pytest.mark.parametrize("op", FIRST_OPS)
@pytest.mark.parametrize("thread", ["main thread", "another"])
def test_arguments_of_the_first_op(tmp_path, op, thread):
    """A weight that is the second argument must not be taken for the first, and coded."""
    first, call = FIRST_OPS[op]
    records = harness.report_of(f"""
        import threading, torch
        import torch.nn.functional as F

        def computed(*sizes):  # with a history that saves nothing
            return torch.randn(sizes, requires_grad=True) + 1

        def call():
            y = {call}

        if {thread == "another"}:
            one = threading.Thread(target=call)
            one.start()
            one.join()
        else:
            call()
        """, tmp_path)["records"]
    named = {record["argument"] for record in records if record["op"] == op}
    assert named, "libmesa saw the rest of the call"
    assert first not in named, records
