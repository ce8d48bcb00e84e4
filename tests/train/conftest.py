# pytest's side of the harness: options, collection into batches, and the one comparison.
#
# SPDX-License-Identifier: MIT
import os

import pytest

import harness

SHOWN = 60  # differences


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true",
                     help="also run what takes minutes: every operator, huge tensors, inductor")
    parser.addoption("--program-times", action="store_true",
                     help="print how long each program took in its worker")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes minutes, runs with --slow only")
    config.batches = harness.Batches()


def pytest_sessionstart(session):
    library = harness.library()
    if library and not os.path.exists(library):
        pytest.exit(f"no such library: {library} (set MESA_LIB, or MESA_LIB=none to compare plain "
                    "runs with each other)", returncode=2)


def pytest_collection_modifyitems(config, items):
    if config.getoption("--slow"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="needs --slow"))


def pytest_collection_finish(session):
    """Puts what was really selected (-k, ids) into batches, and no more."""
    for item in session.items:
        parameters = getattr(item, "callspec", None) and item.callspec.params
        if not parameters or "program" not in parameters or item.get_closest_marker("skip"):
            continue
        session.config.batches.want(parameters["program"], parameters["policy"])


def pytest_terminal_summary(terminalreporter, config):
    if config.getoption("--program-times"):
        for seconds, policy, name in sorted(config.batches.times, reverse=True):
            terminalreporter.write_line(f"{seconds:7.2f} s  {policy:9s} {name}")


@pytest.fixture(scope="session")
def batches(request):
    return request.config.batches


@pytest.fixture
def compare(batches):
    """compare(program, policy) fails where a user could notice that libmesa was there."""

    def compare(program, policy):
        plain = batches.result(program, harness.PLAIN)
        assert plain["error"] is None, f"plain run fails:\n{plain['error']}"
        other = batches.result(program, policy)
        assert other["error"] is None, f"raises under {policy}:\n{other['error']}"
        tolerance = 0 if policy in harness.EXACT_POLICIES else program.tolerance
        lines = harness.differences(plain, other, tolerance)
        more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        assert not lines, "\n  ".join([f"{program.name} under {policy}:", *lines[:SHOWN], *more])
        if harness.library() and policy != "off":
            assert other["active"] == 1, "libmesa was not active"
            assert "mesa" not in batches.stderr[policy, program.name], "libmesa printed something"

    return compare
