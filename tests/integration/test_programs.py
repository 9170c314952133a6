"""Processes that the fork server of `tests.support.programs` starts, beside those of a Python of their own."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.fakes.engine import FakeEngine
from tests.support import programs
from tests.support.core import US
from tests.support.gateways import until
from tests.support.processes import gateway_process, region_file
from tests.support.programs import ForkedProcess, forked, nightside


def state(pid: int) -> str | None:
    """Letter that the system shows for the state of a process, such as Z for a zombie; None without such a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None


def threads_of(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())


def opened_by(pid: int) -> set[str]:
    """Files, pipes and sockets that the process has open, but for those that the system makes for each alike."""
    found = (str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir())
    return {each for each in found if not each.startswith("anon_inode:")}


def server_of(process: ForkedProcess) -> int:
    return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    "arguments",
    [("gateway", "--help"), ("gateway", "run", "nowhere.yaml"), ("gateway", "stroll"), ("explain", "--admin", "")],
    ids=" ".join,
)
async def test_a_forked_command_says_and_returns_what_one_of_its_own_python_does(arguments: tuple[str, ...]) -> None:
    assert await nightside(*arguments) == await nightside(*arguments, fresh=True)


async def test_each_has_the_environment_of_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = await nightside("gateway", "--help")
    monkeypatch.setenv("COLUMNS", "40")
    narrow = await nightside("gateway", "--help")
    assert narrow == await nightside("gateway", "--help", fresh=True) != wide


async def test_a_signal_reaches_one_alone_and_none_is_left_as_a_zombie(tmp_path: Path, engine: FakeEngine) -> None:
    async with (
        gateway_process(region_file(tmp_path, "us-1", US, engine)) as stopped,
        gateway_process(region_file(tmp_path, "us-2", US, engine)) as killed,
    ):
        stopped.signal(signal.SIGTERM)
        assert (await stopped.process.wait(), killed.process.returncode) == (0, None)
        os.kill(killed.process.pid, signal.SIGKILL)
        assert await killed.process.wait() == -signal.SIGKILL
        assert [state(each.process.pid) for each in (stopped, killed)] == [None, None]


async def test_a_child_has_no_descriptor_of_the_server_or_of_another_child(tmp_path: Path, engine: FakeEngine) -> None:
    async with forked("gateway", "run", region_file(tmp_path, "us-1", US, engine)) as first:
        async with forked("gateway", "run", region_file(tmp_path, "us-2", US, engine)) as second:
            for each in (first, second):
                assert await each.stdout.readline()
            assert opened_by(second.pid) & (opened_by(server_of(second)) | opened_by(first.pid)) == {"/dev/null"}
            first.kill()
            assert await first.stdout.read() == b"", "the pipe ends while the other child lives"


async def test_the_server_has_no_thread_that_a_child_would_lack(tmp_path: Path, engine: FakeEngine) -> None:
    async with forked("gateway", "run", region_file(tmp_path, "us-1", US, engine)) as child:
        assert threads_of(server_of(child)) == 1


async def test_a_server_that_ends_takes_its_children_along(tmp_path: Path, engine: FakeEngine) -> None:
    programs._server_socket.cache_clear()
    async with forked("gateway", "run", region_file(tmp_path, "us-1", US, engine)) as child:
        assert await child.stdout.readline()
        programs._server_socket().shutdown(socket.SHUT_RDWR)
        await until(lambda: state(child.pid) in (None, "Z"))
        assert await child.wait() == -signal.SIGKILL
    programs._server_socket.cache_clear()
