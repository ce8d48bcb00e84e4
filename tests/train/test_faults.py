# What bad input and bad luck get: settings that are not in order, a libtorch that is not as expected,
# no memory for held bytes, held bytes that something else overwrote, a full disk.
#
# SPDX-License-Identifier: MIT
import subprocess

import pytest

import harness
from test_startup import STEP, TELL, python

pytestmark = pytest.mark.skipif(not harness.library(), reason="MESA_LIB=none")

# A tensor with 4 MiB of codes. With MESA_HEAP=0 they are nearly all there is in libmesa's arena.
LARGE = """
import ctypes, os, re, torch
torch.set_num_threads(1)
torch.manual_seed(0)
(torch.ones(64, 64, requires_grad=True) * 1.0).exp().sum().backward()  # libmesa is armed
x = torch.randn(2048, 2048, requires_grad=True)
h = x * 1.0
def mappings():
    with open("/proc/self/maps") as maps:
        return {tuple(int(n, 16) for n in re.match("(\\\\w+)-(\\\\w+)", line).groups())
                for line in maps if line.rstrip().endswith(" 0")}
"""


def with_settings(code, **settings):
    env = harness.environment("default")
    for name in [name for name in env if name.startswith("MESA_")]:
        del env[name]
    return python(code, env=dict(env, **settings))


def test_overwritten_bytes_are_an_error_not_a_gradient():
    result = with_settings(LARGE + """
y = torch.nn.functional.gelu(h)
del h
slabs = [a for a, b in mappings() if b - a == 256 << 20 and a % (256 << 20) == 0]
assert len(slabs) == 1, slabs
ctypes.memset(slabs[0] + (2 << 20), 0x55, 4096)  # codes, not pointers
try:
    y.sum().backward()
    print("no error")
except RuntimeError as e:
    print(e)
""", MESA_VERIFY="1", MESA_REPORT="none", MESA_HEAP="0")
    assert result.returncode == 0, result.stderr
    assert "were overwritten by something else" in result.stdout
    assert "gelu." in result.stdout  # .self, or not told apart yet


FAIL_MMAP = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
/* No anonymous memory for libmesa, as long as the variable is set. */
void *mmap64(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    static void *(*real)(void *, size_t, int, int, int, off_t);
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "mmap64");
    Dl_info info;
    if ((flags & MAP_ANONYMOUS) && getenv("FAIL_MMAP") != NULL &&
        dladdr(__builtin_return_address(0), &info) != 0 && strstr(info.dli_fname, "mesa") != NULL) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return real(address, length, protection, flags, fd, offset);
}
"""


@pytest.fixture(scope="module")
def failing_mmap(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mmap")
    source, shim = folder / "shim.c", folder / "shim.so"
    source.write_text(FAIL_MMAP)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    return str(shim)


def test_no_memory_keeps_the_tensor_and_counts_it(failing_mmap):
    env = harness.environment("default")
    env.update(LD_PRELOAD=failing_mmap + ":" + env["LD_PRELOAD"], FAIL_MMAP="1", MESA_REPORT="text")
    result = python(STEP + TELL, env=env)
    assert result.returncode == 0, result.stderr
    plain = python(STEP + TELL, env=harness.plain_environment())
    assert result.stdout.split()[1] == plain.stdout.split()[1]  # nothing was rounded
    assert "memory" in result.stderr


SETTINGS = {
    "MESA_POLICY": ("no_such_policy", "no_such_policy"),
    "MESA_POLICY ": ("gelu.self affin bits=8", "affine"),
    "MESA_POLICY  ": ("/nonexistent/policy", "/nonexistent/policy"),
    "MESA_MIN_BYTES": ("lots", "expected bytes"),
    "MESA_VERIFY": ("maybe", "expected 0 or 1"),
    "MESA_LOG": ("loud", "expected error, warn, info or debug"),
    "MESA_SEED": ("-1", "expected a whole number"),
    "MESA_HEAP": ("2", "expected 0 or 1"),
    "MESA_ISA": ("sse9", "expected scalar"),
    "MESA_REPORT": ("report.docx", "report.docx"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_bad_settings_are_one_line_and_the_program_runs_plain(name):
    value, expected = SETTINGS[name]
    result = with_settings(STEP + TELL, **{name.strip(): value})
    assert result.returncode == 0
    lines = result.stderr.splitlines()
    assert len(lines) == 2, result.stderr
    assert expected in lines[0]
    assert "as if libmesa were not there" in lines[1]
    assert result.stdout.split()[-1] == "-1"


def test_strict_refuses_to_run_without_libmesa():
    result = with_settings(STEP + TELL, MESA_POLICY="no_such_policy", MESA_STRICT="1")
    assert result.returncode == 2
    assert "norm" not in result.stdout


@pytest.fixture(scope="module")
def strange_torch(tmp_path_factory):
    """A library that hides one of libtorch's functions from dlsym."""
    folder = tmp_path_factory.mktemp("strange")
    source, shim = folder / "shim.c", folder / "shim.so"
    source.write_text(r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
void *dlvsym(void *, const char *, const char *);
void *dlsym(void *handle, const char *name) {
    static void *(*real)(void *, const char *);
    if (real == NULL)
        *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return strcmp(name, "aoti_torch__reinterpret_tensor") == 0 ? NULL : real(handle, name);
}
""")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    return str(shim)


@pytest.mark.parametrize("strict", ["0", "1"])
def test_a_libtorch_that_lacks_something(strange_torch, strict):
    env = harness.environment("default")
    env.update(LD_PRELOAD=strange_torch + ":" + env["LD_PRELOAD"], MESA_STRICT=strict)
    result = python(STEP + TELL, env=env)
    assert "aoti_torch__reinterpret_tensor" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.returncode == (2 if strict == "1" else 0)
    if strict == "0":
        assert result.stdout.split()[-1] == "-1"


def test_report_on_a_signal(tmp_path):
    report = tmp_path / "report.json"
    result = with_settings(STEP + """
import os, signal, time
os.kill(os.getpid(), signal.SIGUSR2)
deadline = time.time() + 20
while not os.path.exists(os.environ["EXPECTED"]) and time.time() < deadline:
    time.sleep(0.02)
print("written", os.path.exists(os.environ["EXPECTED"]))
""", MESA_REPORT=str(report), EXPECTED=str(report))
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["written", "True"]


def test_the_programs_own_signal_handler_stays():
    result = with_settings("""
import os, signal
signal.signal(signal.SIGUSR2, lambda *_: print("mine"))
""" + STEP + "os.kill(os.getpid(), signal.SIGUSR2)\n", MESA_REPORT="none")
    assert result.stdout.split() == ["mine"]


@pytest.mark.parametrize("target", ["/nonexistent/folder/report.json", "/dev/full"])
def test_a_report_that_cannot_be_written_is_one_line(target):
    if target == "/dev/full":
        target = "/dev/full/report.json"
    result = with_settings(STEP + TELL, MESA_REPORT=target)
    assert result.returncode == 0
    assert len(result.stderr.splitlines()) == 1
    assert "report.json" in result.stderr
    assert result.stdout.split()[-1] == "1"
