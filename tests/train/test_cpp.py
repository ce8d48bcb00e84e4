# What is written in C++: an extension with a custom function (programs/extension.py), and programs
# that train with libtorch and have no Python in them.
#
# SPDX-License-Identifier: MIT
import os
import shutil
import subprocess

import pytest

import harness
from harness import cases

SOURCES = os.path.join(harness.HERE, "cpp")


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """build(source, output, *flags) compiles against the libtorch of the torch under test."""
    import torch

    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if not compiler:
        pytest.skip("no C++ compiler")
    place = os.path.dirname(torch.__file__)
    folder = tmp_path_factory.mktemp("cpp")
    # Headers are most of the work: no optimisation, no debug information.
    flags = ["-std=c++20", "-O0", "-fPIC", f"-I{place}/include",
             f"-I{place}/include/torch/csrc/api/include"]
    # Before the libraries, or they would not be needed by what is built.
    libraries = [f"-L{place}/lib", f"-L{folder}", "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10",
                 f"-Wl,-rpath,{place}/lib", f"-Wl,-rpath,{folder}"]

    def build(source, output, *more, torch=True):
        path = folder / output
        if not path.exists():
            subprocess.run([compiler, *flags, os.path.join(SOURCES, source), "-o", str(path),
                            *(libraries if torch else []), *more, "-ldl"],
                           env=harness.plain_environment(), check=True, timeout=600)
        return str(path)

    return build


@pytest.fixture(scope="session")
def extension(build):
    os.environ["TRAIN_TEST_EXTENSION"] = build("function.cpp", "function.so", "-shared")
    yield
    del os.environ["TRAIN_TEST_EXTENSION"]


@cases("extension")
def test_extension(program, policy, extension, compare):
    compare(program, policy)


def numbers(command, policy):
    result = subprocess.run(command, env=harness.environment(policy), capture_output=True,
                            text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert (result.returncode, result.stderr) == (0, "")
    return [[float(word) for word in line.split()] for line in result.stdout.splitlines()]


@pytest.mark.parametrize("policy", ["default", "lossless"])
@pytest.mark.parametrize("how", ["linked", "by dlopen"])
def test_program_without_python(how, policy, build):
    library = build("train.cpp", "libtrain.so", "-shared")
    if how == "linked":
        command = [build("main.cpp", "linked", "-DLINKED", "-ltrain")]
    else:
        command = [build("main.cpp", "loads", torch=False), library]
    plain, other = numbers(command, harness.PLAIN), numbers(command, policy)
    assert len(plain) == 3
    if policy == "lossless":
        assert plain == other
    for (loss, *norms), (loss_of_other, *norms_of_other) in zip(plain, other):
        assert loss == loss_of_other, "the forward pass has to be exact"
        assert norms == pytest.approx(norms_of_other, rel=0.005)
