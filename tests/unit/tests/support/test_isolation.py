from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from ctypes.util import find_library
from multiprocessing import get_context
from pathlib import Path

import grpc.aio
import pytest

from tests.support.isolation import STILL_TAKEN, WATCH, allowed_to, more_than_allowed

ROOT = Path(__file__).parents[4]
HERE = "tests/unit/tests/support/test_isolation.py::test"
MOST = 129
"""Lines of the list of what is still taken. The number only falls, but where the watch learns to see more."""


def connects() -> None:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))


def starts() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def spawns() -> None:
    process = get_context("spawn").Process(target=print)
    process.start()
    process.join()


def sleeps() -> None:
    time.sleep(0.000001)  # noqa: TID251


def serves() -> None:
    async def make() -> None:
        await grpc.aio.server().stop(None)

    asyncio.run(make())


@pytest.mark.parametrize(
    ("take", "told"),
    [
        (connects, "sockets (socket.bind)"),
        (starts, "processes (subprocess.Popen)"),
        (spawns, "processes (multiprocessing.util.spawnv_passfds)"),
        (sleeps, "time (time.sleep)"),
        (serves, "sockets (grpc.aio.server)"),
    ],
)
def test_what_a_test_takes_is_told(take: object, told: str) -> None:
    assert callable(take)
    take()
    assert told in more_than_allowed(HERE)
    WATCH.taken.clear()


def test_looking_for_a_library_is_no_process_of_the_test_s() -> None:
    find_library("pthread")
    assert more_than_allowed(HERE) == []


def test_a_test_that_takes_nothing_is_told_nothing() -> None:
    with socket.socket():
        asyncio.run(asyncio.sleep(0))
    assert more_than_allowed(HERE) == []


def test_integration_tests_take_what_they_like() -> None:
    WATCH.taken["sockets"] = "socket.bind"
    assert more_than_allowed("tests/integration/test_chaos.py::test") == []
    assert more_than_allowed(HERE) == ["sockets (socket.bind)"]
    WATCH.taken.clear()


def test_a_file_or_a_single_test_may_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STILL_TAKEN, "tests/unit/a.py", {"time"})
    monkeypatch.setitem(STILL_TAKEN, "tests/unit/a.py::test_b", {"sockets"})
    assert allowed_to("tests/unit/a.py::test_b[1]") == {"time", "sockets"}
    assert allowed_to("tests/unit/a.py::test_c") == {"time"}
    assert allowed_to("tests/unit/b.py::test_b") == set()


def test_the_list_names_what_is_there_and_becomes_shorter() -> None:
    assert len(STILL_TAKEN) <= MOST
    for listed, kinds in STILL_TAKEN.items():
        file, _, test = listed.partition("::")
        text = (ROOT / file).read_text()
        assert test.rpartition("::")[2] in text, listed
        assert kinds <= {"sockets", "processes", "time"}, listed
