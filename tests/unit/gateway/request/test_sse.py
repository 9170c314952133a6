from __future__ import annotations

import sys
from typing import SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.request.sse import EventFramer, events, fields

STREAM = b"data: one\n\n: a comment\n\nevent: two\r\ndata: 2\r\n\r\ndata: three\ndata: lines\n\n"
EACH = [b"data: one\n\n", b": a comment\n\n", b"event: two\r\ndata: 2\r\n\r\n", b"data: three\ndata: lines\n\n"]


@given(st.integers(1, len(STREAM)))
def test_pieces_of_any_size_become_whole_events(size: int) -> None:
    framer = EventFramer(1000)
    blocks = [framer.take(STREAM[at : at + size]) for at in range(0, len(STREAM), size)]
    assert [event for block in blocks for event in events(block)] == EACH
    assert framer.rest() == b""


def test_what_lacks_its_end_is_held_and_comes_last() -> None:
    framer = EventFramer(1000)
    assert framer.take(STREAM + b"data: hal") == STREAM
    assert framer.take(b"f\n") == b""
    assert framer.rest() == b"data: half\n"


def test_an_event_over_the_limit_goes_through_in_parts_until_its_end() -> None:
    framer = EventFramer(10)
    assert framer.take(b"data: 1234") == b""
    assert (framer.take(b"5\n"), framer.is_crossing) == (b"data: 12345", True)
    assert (framer.take(b"6"), framer.is_crossing) == (b"\n6", True)
    assert (framer.take(b"7\n\n" + EACH[0]), framer.is_crossing) == (b"7\n\n" + EACH[0], False)


@pytest.mark.parametrize("line_ends", [b"\r", b"\n\r\r", b"\r\n\r"])
def test_line_ends_without_a_blank_line_are_not_held_above_the_limit(line_ends: bytes) -> None:
    framer = EventFramer(10)
    sent = b"data: 12345" + line_ends * 100
    released = b"".join([framer.take(sent[at : at + 3]) for at in range(0, len(sent), 3)])
    assert len(framer.pending) <= 2
    assert released + framer.pending == sent
    assert (framer.take(b"\nx\n\n")[-4:], framer.is_crossing) == (b"\nx\n\n", False)


@given(st.lists(st.sampled_from([b"x", b"\r", b"\n"]), max_size=40), st.integers(1, 7))
def test_an_oversized_event_loses_no_byte_and_its_end_is_found(parts: list[bytes], size: int) -> None:
    sent = b"data: 12345x" + b"".join(parts)
    framer = EventFramer(10)
    released = b"".join([framer.take(sent[at : at + size]) for at in range(0, len(sent), size)])
    last = framer.take(b"x\n\n")
    assert released + last == sent + b"x\n\n"
    assert not framer.is_crossing
    assert not framer.pending


class CountedBlock(bytes):
    """Block that counts the bytes which its methods search."""

    searched = 0

    def find(
        self,
        sub: bytes | SupportsIndex,  # type: ignore[override] # the one kind that is searched for
        start: SupportsIndex | None = 0,
        end: SupportsIndex | None = sys.maxsize,
    ) -> int:
        found = super().find(sub, start, end)
        last = min(int(end or 0), len(self)) if found < 0 else found
        self.searched += last - int(start or 0)
        return found


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_a_block_is_searched_once_however_many_events_it_has(line_end: bytes) -> None:
    block = CountedBlock((b"data: x" + line_end * 2) * 1000)
    assert len(events(block)) == 1000
    assert block.searched <= len(block)


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (EACH[0], (b"", b"one")),
        (EACH[1], (b"", None)),
        (EACH[2], (b"two", b"2")),
        (EACH[3], (b"", b"three\nlines")),
        (b"data: last\nevent: named\n\n", (b"named", b"last")),
        (b"data: 1\rdata: 2\r\n\r\n", (b"", b"1\n2")),
        (b"\xef\xbb\xbfdata: first\n\n", (b"", b"first")),
        (b"\xef\xbb\xbf: a comment\n\n", (b"", None)),
    ],
)
def test_an_event_has_a_name_and_data(event: bytes, found: tuple[bytes, bytes | None]) -> None:
    assert fields(event) == found
