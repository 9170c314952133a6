from __future__ import annotations

import io

from gateway.features.batches.checking import check_file
from gateway.features.batches.lines import LineChecker
from tests.support.batches import CHAT_PATH, line_of, lines_of


def test_a_file_is_read_piece_by_piece_and_closed() -> None:
    data = lines_of(5)
    file = io.BytesIO(data)
    read: list[int] = []
    taken: list[tuple[int, bytes]] = []
    checker = LineChecker(CHAT_PATH, 10, 1_000, take_request=lambda *told: taken.append(told))
    assert check_file(file, checker, 1_000, read.append) == ()
    assert (file.closed, sum(read), len(read)) == (True, len(data), 5)
    assert [number for number, _ in taken] == [1, 2, 3, 4, 5]


def test_lines_with_a_fault_are_not_taken() -> None:
    taken: list[int] = []
    checker = LineChecker(CHAT_PATH, 10, 1_000, take_request=lambda number, _: taken.append(number))
    data = line_of(0) + line_of(0) + line_of(2, url="/v1/completions") + line_of(3)
    assert [each.line for each in check_file(io.BytesIO(data), checker, 1_000)] == [2, 3]
    assert taken == [1, 4]


def test_a_line_that_is_too_long_is_never_held_as_a_whole() -> None:
    data = line_of(0) + b"x" * 1_000_000 + b"\n" + line_of(1)
    read: list[int] = []
    (fault,) = check_file(io.BytesIO(data), LineChecker(CHAT_PATH, 10, 1_000), 1_000, read.append)
    assert (fault.code, fault.line) == ("line_too_long", 2)
    assert (sum(read), max(read)) == (len(data), 1_001)


def test_reading_ends_with_the_last_line_that_counts() -> None:
    read: list[int] = []
    (fault,) = check_file(io.BytesIO(lines_of(100)), LineChecker(CHAT_PATH, 3, 1_000), 1_000, read.append)
    assert (fault.code, len(read)) == ("too_many_tasks", 4)
