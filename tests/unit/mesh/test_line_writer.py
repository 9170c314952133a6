from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from typing import TextIO, cast

import pytest

from mesh.config import LogFormat, LoggingConfig
from mesh.line_writer import LineWriter, LostLines, lines_written_aside
from mesh.logs import make_logger
from tests.support.clock import StillClock

LONG_S = 60.0
PIPE_BYTES = 1 << 20
"""More than a pipe holds."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Reading and writing end."""
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            assert end, "a test has closed it"


def read_all(descriptor: int) -> str:
    """Read up to the end, which comes when the writing end is closed."""
    pieces = []
    while piece := os.read(descriptor, 1 << 16):
        pieces.append(piece)
    return b"".join(pieces).decode()


def test_lines_come_in_order_and_the_last_ones_with_the_end(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    with os.fdopen(os.dup(writing), "w") as stream, lines_written_aside(stream) as (lines, writer):
        log = make_logger(LoggingConfig(format=LogFormat.JSON), "us-1", lines)
        for number in range(1000):
            log.info("hello", number=number)
    os.close(writing)
    assert [json.loads(line)["number"] for line in read_all(reading).splitlines()] == list(range(1000))
    assert writer.lines_lost == 0


def test_a_reader_that_stalls_holds_up_no_writer_and_lines_beyond_the_bound_are_counted(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LineWriter(writing, lines_max=3)
    writer.start()
    writer.write("x" * PIPE_BYTES + "\n")
    while len(os.read(reading, 1)) == 0:
        pass  # the thread writes the first line now, and is stuck with it
    for number in range(10):
        writer.write(f"{number}\n")
    assert writer.lines_lost == 7
    assert writer.close(0.0) == 4, "the line that is stuck, and three behind it"
    os.set_blocking(reading, True)
    told = 1
    while told < PIPE_BYTES + 1:
        told += len(os.read(reading, 1 << 16))


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_line_longer_than_a_pipe_is_written_whole(pipe: tuple[int, int], is_blocking: bool) -> None:
    reading, writing = pipe
    os.set_blocking(writing, is_blocking)
    writer = LineWriter(writing)
    writer.start()
    writer.write("x" * PIPE_BYTES + "\n")
    received = 0
    while received < PIPE_BYTES + 1:
        received += len(os.read(reading, 1 << 16))
    assert writer.close(LONG_S) == 0


def test_a_pipe_without_a_reader_loses_lines_and_nothing_else(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.close(reading)
    writer = LineWriter(writing)
    writer.start()
    writer.write("nobody reads this\n")
    assert writer.close(LONG_S) == 0
    assert writer.lines_lost == 1


def test_text_that_is_no_unicode_is_written_in_escapes(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LineWriter(writing)
    writer.start()
    writer.write("\udcff\n")
    writer.close(LONG_S)
    os.close(writing)
    assert read_all(reading) == "\\udcff\n"


def test_a_pipe_is_no_terminal(pipe: tuple[int, int]) -> None:
    assert not cast(TextIO, LineWriter(pipe[1])).isatty()


def test_lost_lines_are_all_counted_and_told_once_in_a_while() -> None:
    lost, counted, clock, stream = [0], list[int](), StillClock(), io.StringIO()
    log = make_logger(LoggingConfig(format=LogFormat.JSON), "us-1", stream)
    watch = LostLines(lambda: lost[-1], counted.append, clock, log)
    watch.look()
    for so_far in (2, 5, 5):
        lost.append(so_far)
        watch.look()
    clock.now += 10_000_000_000
    watch.look()
    watch.look()
    assert counted == [2, 3]
    assert [json.loads(line)["lines"] for line in stream.getvalue().splitlines()] == [2, 3]
