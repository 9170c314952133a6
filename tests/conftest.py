"""Fixtures and options that every test shares: how Hypothesis runs, what isolated tests may take, reserved ports, and
the lengths of the soak, of fuzzing and of attacks on memory.

Fixtures of one area live beside that area's tests.
"""

from __future__ import annotations

import gc
import shlex
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import settings

from tests.support.isolation import WATCH, allowed_to, more_than_allowed

# The suite tries the same few examples each time; nightly runs and `make fuzz` look for new ones, and for more.
settings.register_profile("exploring", settings(), deadline=None, print_blob=True, max_examples=200)
settings.register_profile(
    "nightside", settings.get_profile("exploring"), derandomize=True, database=None, max_examples=30
)
settings.load_profile("nightside")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak-requests",
        type=int,
        default=600,
        help="requests of the soak; 18000 are an hour of a region's five a second",
    )
    parser.addoption(
        "--memory-rounds", type=int, default=6, help="large bodies that end badly, in each way; 500 are an attack"
    )
    parser.addoption("--fuzz-examples", type=int, default=150, help="mutations that each reader of bytes is given")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if allowed_to(item.nodeid) != set():
            item.add_marker(pytest.mark.real)
        if item.get_closest_marker("nightly") is not None:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without the garbage collector, which would look through thousands of them again and again, and keep
    it from looking at them from then on: nothing of them is garbage before the end.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Forget what the test before has taken, ahead of every fixture: those of a module or a session count for the
    first test that has them set up.
    """
    WATCH.taken.clear()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail a test of units, properties or simulations that takes a socket, a process or time.sleep, as do the fixtures
    that it has set up or torn down.
    """
    result = yield
    if taken := more_than_allowed(item.nodeid):
        pytest.fail(f"it takes {', '.join(taken)}: such a test belongs to tests/integration", pytrace=False)
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how each failed test is run again, alone."""
    failed = {report.nodeid for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, ())}
    if failed:
        terminalreporter.section("run again, alone")
    for nodeid in sorted(failed):
        terminalreporter.write_line(f".venv/bin/python -m pytest {shlex.quote(nodeid)}")


@pytest.fixture
def unused_tcp_port_factory() -> Iterator[Callable[[], int]]:
    """Reserve free ports: replaces the fixture of pytest-asyncio, whose ports another process may take before the test
    listens.

    Each port stays bound until the test is over, so that the system gives it to no other process; the tests' servers
    set SO_REUSEADDR to listen on it all the same. Connections are refused until one listens.
    """
    with ExitStack() as held:

        def reserve() -> int:
            port = held.enter_context(socket.socket())
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port.bind(("127.0.0.1", 0))
            return int(port.getsockname()[1])

        yield reserve


@pytest.fixture
def unused_tcp_port(unused_tcp_port_factory: Callable[[], int]) -> int:
    return unused_tcp_port_factory()
