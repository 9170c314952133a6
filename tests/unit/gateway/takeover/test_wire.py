from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.takeover import wire
from gateway.takeover.messages import (
    MESSAGE_BYTES_MAX,
    Audited,
    FromPredecessor,
    FromSuccessor,
    Passed,
    TakeoverHello,
    TakeoverOffer,
)
from gateway.takeover.wire import Counterpart, CounterpartGone, TakeOverFault, Wire, connect_to, listen_at

Ends = tuple[Wire[FromSuccessor], Wire[FromPredecessor]]


@contextmanager
def joined(send_max_s: float = 60.0) -> Iterator[Ends]:
    """The predecessor's end, and the successor's."""
    old, new = socket.socketpair(socket.AF_UNIX)
    made: Ends = Wire(old, FromSuccessor, send_max_s=send_max_s), Wire(new, FromPredecessor, send_max_s=send_max_s)
    yield made
    for each in made:
        each.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    with joined() as made:
        yield made


@pytest.fixture
def impatient() -> Iterator[Ends]:
    """Wire with a short time-out, for an end that reads nothing."""
    with joined(0.05) as made:
        yield made


@pytest.fixture
def many_files() -> Iterator[None]:
    """Open so many files that the next one's handle is beyond what `select.select` takes."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    while opened[-1] < 1024:
        opened.append(os.dup(opened[0]))
    yield
    for each in opened:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_messages_arrive_whole_and_in_turn_however_large(ends: Ends) -> None:
    old, new = ends
    lines = [f"{number}" * 100 for number in range(20_000)]
    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(asyncio.to_thread(old.send, Audited(lines)))
        assert await new.receive(60) == Audited(lines)
        await telling
    new.send(TakeoverHello(1, "a"))
    new.send(TakeoverHello(2, "b"))
    assert [await old.receive(60), await old.receive(60)] == [TakeoverHello(1, "a"), TakeoverHello(2, "b")]


def test_sockets_come_along_with_the_first_message(ends: Ends) -> None:
    old, new = ends
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        offer = TakeoverOffer([Passed("http", "127.0.0.1:0")], ("127.0.0.1:0", "127.0.0.1:7"))
        old.send(offer, [listening])
    said, (taken,) = new.receive_sockets(60)
    assert said == offer
    with taken, socket.create_connection(address), taken.accept()[0]:
        assert not taken.get_inheritable()


@pytest.mark.usefixtures("many_files")
async def test_handles_may_be_of_any_size() -> None:
    with joined() as (old, new), socket.create_server(("127.0.0.1", 0)) as listening:
        assert old._socket.fileno() >= 1024
        old.send(TakeoverOffer([Passed("http", "a")], ("", "")), [listening])
        (taken,) = new.receive_sockets(60)[1]
        taken.close()
        assert not old.other.has_ended(0.0)
        lines = ["a" * 1_000_000]
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(asyncio.to_thread(old.send, Audited(lines)))
            assert await new.receive(60) == Audited(lines)
            await telling
        process = await asyncio.create_subprocess_exec("sleep", "600")
        watched = other_for(old, process.pid)
        await asyncio.to_thread(watched.end, 0.0)
        assert await process.wait() == -9
        assert watched.has_ended(0.0)
        watched.close()


def other_for(end: Wire[FromSuccessor], pid: int) -> Counterpart:
    """Handle of that process, as if it were at the wire's other end."""
    made = Counterpart(end._socket, os.geteuid())
    made.close()
    made._handle = os.pidfd_open(pid)
    return made


async def test_an_end_that_reads_nothing_is_gone_and_nothing_is_sent_after_half_a_message(impatient: Ends) -> None:
    old, new = impatient
    with pytest.raises(CounterpartGone, match="reads nothing"):
        old.send(Audited(["a" * 1_000_000]))
    with pytest.raises(CounterpartGone, match="is broken"):
        old.send(Audited([]))
    with pytest.raises(CounterpartGone, match="closed the connection"):
        await new.receive(60)


async def test_an_end_that_reads_too_slowly_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is that of the whole message: reading a little now and then does not move it."""
    sending, reading = socket.socketpair(socket.AF_UNIX)
    times = iter(range(0, 100_000_000_000, 1_000_000_000))
    old = Wire[FromSuccessor](sending, FromSuccessor, send_max_s=5.0, now_ns=lambda: next(times))

    def read_a_little(handle: int, event: int, wait_max_s: float) -> bool:
        reading.recv(1000)
        return wait_max_s > 0

    monkeypatch.setattr(wire, "_is_ready", read_a_little)
    with reading, pytest.raises(CounterpartGone, match="too slowly"):
        old.send(Audited(["a" * 10_000_000]))
    old.close()


async def test_an_end_that_is_closed_is_gone(ends: Ends) -> None:
    old, new = ends
    with pytest.raises(TimeoutError):
        await old.receive(0.001)
    new._socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(CounterpartGone, match="is gone"):
        old.send(Audited([]))
    with pytest.raises(CounterpartGone, match="closed the connection"):
        await old.receive(60)


async def test_a_message_that_is_too_large_is_not_sent(ends: Ends) -> None:
    old, _ = ends
    with pytest.raises(CounterpartGone, match="is larger than"):
        old.send(Audited(["a" * MESSAGE_BYTES_MAX]))


async def test_a_message_that_is_too_large_is_not_read(ends: Ends) -> None:
    old, new = ends
    new._socket.send(struct.pack("!I", MESSAGE_BYTES_MAX + 1))
    with pytest.raises(TakeOverFault, match="are read"):
        await old.receive(60)


@pytest.mark.parametrize("text", [b"{", b'{"type":"offer"}', b'{"type":"done"}', b'{"type":"hello"}', b"[]"])
async def test_what_is_no_message_of_the_other_end_is_told_as_such(ends: Ends, text: bytes) -> None:
    old, new = ends
    new._socket.send(struct.pack("!I", len(text)) + text)
    with pytest.raises(TakeOverFault, match="what is no message"):
        await old.receive(60)


def test_another_users_process_is_refused() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other, pytest.raises(TakeOverFault, match=f"runs as user {os.geteuid()}, and this one as"):
        Counterpart(one, os.geteuid() + 1)


def test_a_folder_may_have_a_long_name_and_whoever_listened_before_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 100) / "b" / "us-1.takeover.sock"
    assert connect_to(path) is None, "there is not even a folder"
    with listen_at(path) as before:
        with listen_at(path) as listening:
            connected = connect_to(path)
            assert connected is not None
            accepted, _ = listening.accept()
            accepted.close()
            connected.close()
            with pytest.raises(BlockingIOError):
                before.accept()
        assert path.stat().st_mode & 0o777 == 0o600
    assert connect_to(path) is None, "its process has gone"
    assert [each.name for each in path.parent.iterdir()] == ["us-1.takeover.sock"]
