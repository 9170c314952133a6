from __future__ import annotations

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


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (EACH[0], (b"", b"one")),
        (EACH[1], (b"", None)),
        (EACH[2], (b"two", b"2")),
        (EACH[3], (b"", b"three\nlines")),
        (b"data: last\nevent: named\n\n", (b"named", b"last")),
    ],
)
def test_an_event_has_a_name_and_data(event: bytes, found: tuple[bytes, bytes | None]) -> None:
    assert fields(event) == found
