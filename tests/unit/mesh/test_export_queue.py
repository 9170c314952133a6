from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mesh.export_queue import ExportQueue

LONG_S = 60.0


class Collector:
    """Collector that accepts batches once it may."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.is_asked = threading.Event()
        self.has_both = threading.Event()
        self.answer = True

    def take(self, batch: list[int]) -> bool:
        self.is_asked.set()
        assert self.may_go_on.wait(LONG_S)
        self.batches.append(batch)
        if len(self.batches) == 2:
            self.has_both.set()
        return self.answer


@contextmanager
def sending(collector: Collector, *, queue_max: int = 100, batch_max: int = 3) -> Iterator[ExportQueue[int]]:
    outbox = ExportQueue(collector.take, queue_max=queue_max, batch_max=batch_max, interval_s=LONG_S, name="test")
    outbox.start()
    try:
        yield outbox
    finally:
        collector.may_go_on.set()
        outbox.close(LONG_S)


def test_a_full_batch_does_not_wait_and_the_rest_goes_with_the_end() -> None:
    collector = Collector()
    with sending(collector) as outbox:
        for number in range(3):
            outbox.put(number)
        assert collector.is_asked.wait(LONG_S)
        for number in (3, 4):
            outbox.put(number)
        assert outbox.close(LONG_S) == 0
    assert [number for batch in collector.batches for number in batch] == [0, 1, 2, 3, 4]
    assert max(map(len, collector.batches)) <= 3
    assert (outbox.exported, outbox.refused, outbox.overflowed) == (5, 0, 0)


def test_what_came_behind_a_full_batch_waits_for_others() -> None:
    collector = Collector()
    collector.may_go_on.clear()
    with sending(collector) as outbox:
        for number in range(3):
            outbox.put(number)
        assert collector.is_asked.wait(LONG_S)
        for number in range(3, 7):
            outbox.put(number)
        collector.may_go_on.set()
        collector.has_both.wait(LONG_S)
        assert collector.batches == [[0, 1, 2], [3, 4, 5]]
        assert len(outbox) == 1
    assert collector.batches[2:] == [[6]]


def test_what_is_not_taken_is_counted_and_not_tried_again() -> None:
    collector = Collector()
    collector.answer = False
    with sending(collector) as outbox:
        outbox.put(1)
        assert outbox.close(LONG_S) == 0
    assert collector.batches == [[1]]
    assert (outbox.exported, outbox.refused) == (0, 1)


def test_behind_a_stuck_collector_nobody_waits_and_what_has_no_room_is_counted() -> None:
    collector = Collector()
    collector.may_go_on.clear()
    with sending(collector, queue_max=4, batch_max=1) as outbox:
        outbox.put(0)
        assert collector.is_asked.wait(LONG_S)
        for number in range(1, 11):
            outbox.put(number)
        assert len(outbox) == 4
        assert outbox.overflowed == 6


def test_a_stuck_collector_holds_up_the_end_no_longer_than_it_may() -> None:
    collector = Collector()
    collector.may_go_on.clear()
    with sending(collector, batch_max=1) as outbox:
        for number in range(3):
            outbox.put(number)
        assert collector.is_asked.wait(LONG_S)
        assert outbox.close(0.01) == 3, "the one under way counts as lost too"
        collector.may_go_on.set()
    assert collector.batches == [[0]], "behind the end nothing begins any more"
