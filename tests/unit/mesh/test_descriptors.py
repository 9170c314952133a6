from __future__ import annotations

import io
import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.descriptors import TELL_INTERVAL_NS, DescriptorWatch
from mesh.logs import make_logger


class Told(Clock):
    """A clock that the test sets, the log, and the counters."""

    def __init__(self) -> None:
        super().__init__()
        self.at_ns = 1
        self.stream = io.StringIO()
        self.counted = 0
        log = make_logger(LoggingConfig(format=LogFormat.JSON), "us-1", self.stream)
        self.watch = DescriptorWatch(self, log, self.count)

    def now_ns(self) -> int:
        return self.at_ns

    def count(self) -> None:
        self.counted += 1

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def exhausted(told: Told) -> Iterator[None]:
    """Leave no descriptor for as long as the test runs."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def open_now() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_while_there_are_some_nothing_is_said_and_none_is_kept(told: Told) -> None:
    before = open_now()
    for _ in range(50):
        told.watch.look()
    assert (told.lines(), told.counted) == ([], 0)
    assert open_now() <= before, "what earlier tests left may be closed meanwhile; fifty more would show"


@pytest.mark.usefixtures("exhausted")
def test_when_none_is_left_it_is_told_once_in_a_while_and_counted_each_time(told: Told) -> None:
    for _ in range(5):
        told.watch.look()
    (line,) = told.lines()
    assert (line["level"], line["reason"], line["samples"]) == ("error", "Too many open files", 1)
    assert line["limit"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert told.counted == 5
    told.at_ns += TELL_INTERVAL_NS
    told.watch.look()
    assert [each["samples"] for each in told.lines()] == [1, 5]
