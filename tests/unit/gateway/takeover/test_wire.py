from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.takeover.messages import MESSAGE_BYTES_MAX, Audited, FromPredecessor, FromSuccessor, Hello, Offer, Passed
from gateway.takeover.wire import Other, OtherGone, TakeOverFault, Wire, connect_to, listen_at

Ends = tuple[Wire[FromSuccessor], Wire[FromPredecessor]]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The predecessor's, and the successor's."""
    old, new = socket.socketpair(socket.AF_UNIX)
    made: Ends = Wire(old, FromSuccessor, send_max_s=0.05), Wire(new, FromPredecessor, send_max_s=0.05)
    yield made
    for each in made:
        each.close()


async def test_messages_arrive_whole_and_in_turn_however_large(ends: Ends) -> None:
    old, new = ends
    lines = [f"{number}" * 100 for number in range(20_000)]
    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(asyncio.to_thread(old.send, Audited(lines)))
        assert await new.receive(60) == Audited(lines)
        await telling
    new.send(Hello(1, "a"))
    new.send(Hello(2, "b"))
    assert [await old.receive(60), await old.receive(60)] == [Hello(1, "a"), Hello(2, "b")]


def test_sockets_come_along_with_the_first_message(ends: Ends) -> None:
    old, new = ends
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        offer = Offer([Passed("http", "127.0.0.1:0")], ("127.0.0.1:0", "127.0.0.1:7"))
        old.send(offer, [listening])
    said, (taken,) = new.receive_sockets(60)
    assert said == offer
    with taken, socket.create_connection(address), taken.accept()[0]:
        assert not taken.get_inheritable()


async def test_an_end_that_is_closed_or_reads_nothing_is_gone(ends: Ends) -> None:
    old, new = ends
    with pytest.raises(OtherGone, match="reads nothing"):
        old.send(Audited(["a" * 1_000_000]))
    with pytest.raises(TimeoutError):
        await old.receive(0.001)
    new._socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(OtherGone, match="is gone"):
        old.send(Audited([]))
    with pytest.raises(OtherGone, match="closed the connection"):
        await old.receive(60)


async def test_a_message_that_is_too_large_is_neither_sent_nor_read(ends: Ends) -> None:
    old, new = ends
    with pytest.raises(OtherGone, match="is larger than"):
        old.send(Audited(["a" * MESSAGE_BYTES_MAX]))
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
        Other(one, os.geteuid() + 1)


def test_a_folder_may_have_a_long_name_and_whoever_listened_before_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 100) / "b" / "us-1.takeover.sock"
    assert connect_to(path) is None, "there is not even a folder"
    with listen_at(path) as before:
        with listen_at(path) as listening:
            wire = connect_to(path)
            assert wire is not None
            accepted, _ = listening.accept()
            accepted.close()
            wire.close()
            with pytest.raises(BlockingIOError):
                before.accept()
        assert path.stat().st_mode & 0o777 == 0o600
    assert connect_to(path) is None, "its process has gone"
    assert [each.name for each in path.parent.iterdir()] == ["us-1.takeover.sock"]
