# What scripts/demo and scripts/test need before they start: Debian packages, a virtual environment
# with CPU PyTorch, and the build in build/. Sourced by both, with the repository's root as
# the working directory. Each function does only what is missing, so a second run is quick, and ends
# the script with one clear line where something cannot be had.
#
# SPDX-License-Identifier: MIT

PREPARE_STARTED=$SECONDS

say() { # one line of progress, with the seconds since the start
    printf '== [%3d s] %s\n' "$((SECONDS - PREPARE_STARTED))" "$*"
}

die() {
    printf '%s: %s\n' "$0" "$*" >&2
    exit 1
}

DEBIAN_BUILD_PACKAGES=(meson ninja-build gcc libc6-dev pkg-config libunwind-dev libjansson-dev
    uthash-dev python3-venv)
DEBIAN_TEST_PACKAGES=(libcriterion-dev clang libclang-rt-14-dev valgrind libjemalloc2
    qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross)

# Torch comes first and alone: the others require "torch" of any kind, and where it is not there yet
# that means the CUDA build of several GB.
PYTHON_TORCH=torch==2.13.0
PYTHON_VENV=.venv
PYTHON_DEMO_PACKAGES=(numpy scikit-learn)
PYTHON_TEST_PACKAGES=(timm transformers pytest jsonschema expecttest)

# prepare_debian_packages PACKAGE... installs those that are missing; needs root or sudo for that.
prepare_debian_packages() {
    local package missing=() root=()
    if ! command -v dpkg-query >/dev/null; then
        prepare_without_debian
        return
    fi
    for package; do
        dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
            missing+=("$package")
    done
    if [ ${#missing[@]} -eq 0 ]; then
        say "Debian packages: all $# are installed"
        return
    fi
    say "Debian packages: installing ${missing[*]}"
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null ||
            die "needs root or sudo to install Debian packages; as root: apt-get install ${missing[*]}"
        root=(sudo)
    fi
    "${root[@]}" apt-get update -q >/dev/null ||
        die "'apt-get update' failed (its message is above); is this machine connected?"
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null ||
        die "'apt-get install ${missing[*]}' failed (its message is above)"
}

# Elsewhere the packages have other names: look for the programs and say what is expected.
prepare_without_debian() {
    local program
    for program in meson ninja gcc pkg-config; do
        command -v "$program" >/dev/null ||
            die "$program is missing, and this is no Debian system to install it on; wanted are the" \
                "counterparts of: ${DEBIAN_BUILD_PACKAGES[*]} ${DEBIAN_TEST_PACKAGES[*]}"
    done
    say "not a Debian system: going on with the programs that are there"
}

# prepare_python PACKAGE... makes $PYTHON_VENV with torch and the packages.
prepare_python() {
    local python
    if "$PYTHON_VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        say "Python: $PYTHON_VENV is there"
    else
        python=$(find_python) || exit 1
        say "Python: making $PYTHON_VENV with $("$python" --version)"
        "$python" -m venv --clear "$PYTHON_VENV" ||
            die "'$python -m venv $PYTHON_VENV' failed (its message is above)"
    fi
    if ! have_python_packages "$PYTHON_TORCH"; then
        install_torch
    fi
    if ! have_python_packages "$@"; then
        say "Python: installing $*"
        pip_install "$PYTHON_TORCH" "$@" ||
            die "'pip install $*' failed (its message is above); is this machine connected?"
    fi
    have_python_packages "$PYTHON_TORCH" "$@" ||
        die "$PYTHON_VENV still lacks one of: $PYTHON_TORCH $*; remove it and run again"
    "$PYTHON_VENV/bin/python" -c 'import torch' ||
        die "PyTorch is installed in $PYTHON_VENV but cannot be imported; remove it and run again"
    say "Python: $("$PYTHON_VENV/bin/python" -c 'import importlib.metadata as m, platform
print(platform.python_version(), "with torch", m.version("torch"))')"
}

# Prints a Python that PyTorch has wheels for: 3.11, the one that the tests are run with, or newer
# than 3.9. PYTHON in the environment overrides the choice.
find_python() {
    local python
    for python in ${PYTHON:-python3.11 python3 /usr/bin/python3}; do
        if "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' \
            2>/dev/null; then
            printf '%s\n' "$python"
            return
        fi
    done
    die "needs Python 3.11 (at least 3.10) with the venv module; set PYTHON to one"
}

pip_install() {
    local quiet=()
    [ -t 1 ] || quiet=(-q)
    "$PYTHON_VENV/bin/python" -m pip install "${quiet[@]}" --disable-pip-version-check \
        --root-user-action=ignore "$@"
}

# The build without CUDA carries a local version, which only some indexes have; PyTorch's own always
# does. Elsewhere than on x86-64 the plain wheel is that build.
install_torch() {
    say "Python: installing $PYTHON_TORCH for the CPU (some 200 MB)"
    if [ "$(uname -m)" = x86_64 ]; then
        pip_install "$PYTHON_TORCH+cpu" 2>/dev/null ||
            pip_install "$PYTHON_TORCH" --index-url https://download.pytorch.org/whl/cpu ||
            die "pip found no CPU build of $PYTHON_TORCH (its message is above);" \
                "is this machine connected?"
    else
        pip_install "$PYTHON_TORCH" ||
            die "'pip install $PYTHON_TORCH' failed (its message is above); is this machine connected?"
    fi
}

# have_python_packages NAME[==VERSION]... without importing any of them.
have_python_packages() {
    "$PYTHON_VENV/bin/python" - "$@" <<'END'
import importlib.metadata, sys

for requirement in sys.argv[1:]:
    name, _, wanted = requirement.partition("==")
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        sys.exit(1)
    if wanted and version.partition("+")[0] != wanted:
        sys.exit(1)
END
}

# prepare_build DIRECTORY [MESON OPTION]... configures where that was not done, and builds.
prepare_build() {
    local directory=$1
    shift
    if [ ! -f "$directory/build.ninja" ]; then
        say "build: configuring $directory"
        # With the Python that has what the tests in C ask of one.
        PATH=$PWD/$PYTHON_VENV/bin:$PATH meson setup "$directory" "$@" >"$directory.log" 2>&1 || {
            cat "$directory.log" >&2
            die "'meson setup $directory $*' failed (its message is above)"
        }
        rm -f "$directory.log"
    fi
    say "build: compiling in $directory"
    ninja -C "$directory" || die "'ninja -C $directory' failed (its message is above)"
}
