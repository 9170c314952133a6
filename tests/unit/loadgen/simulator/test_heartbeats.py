"""Heartbeats arrive one by one or window by window, in order, and never at a gateway that was not there."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.vocabulary import GatewayId, Jurisdiction, LoadReport, Place, RegionName
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.heartbeats import Arrival, HeartbeatQueue

PLACE = Place(RegionName("eu-west-1"), Jurisdiction("EU"))


def report(sequence: int) -> LoadReport:
    return LoadReport(GatewayId("eu"), PLACE, sequence, True, 1, "digest")


class Desk:
    """Receiver that records the time of each delivery, and the sequence and arrival of each heartbeat."""

    def __init__(self, window_ns: int) -> None:
        self.agenda = Agenda()
        self.heartbeats = HeartbeatQueue(self.agenda, window_ns, self.take)
        self.heard: list[tuple[int, list[tuple[int, int]]]] = []

    def take(self, arrived: Sequence[Arrival]) -> None:
        self.heard.append((self.agenda.now_ns, [(at_ns, report.sequence) for at_ns, report in arrived]))


def test_without_a_window_each_comes_in_by_itself() -> None:
    desk = Desk(0)
    desk.heartbeats.expect(report(2), 20)
    desk.heartbeats.expect(report(1), 10)
    desk.agenda.run_until(100)
    assert desk.heard == [(10, [(10, 1)]), (20, [(20, 2)])]


def test_a_window_opens_with_the_first_and_holds_all_that_come_before_its_end() -> None:
    desk = Desk(10)
    for sequence, at_ns in ((1, 25), (2, 14), (3, 5), (4, 15)):
        desk.heartbeats.expect(report(sequence), at_ns)
    desk.agenda.run_until(100)
    assert desk.heard == [(15, [(5, 3), (14, 2), (15, 4)]), (35, [(25, 1)])]


def test_one_sent_later_may_come_in_earlier() -> None:
    desk = Desk(10)
    desk.heartbeats.expect(report(1), 50)
    desk.agenda.run_until(20)
    desk.heartbeats.expect(report(2), 30)
    desk.agenda.run_until(100)
    assert desk.heard == [(40, [(30, 2)]), (60, [(50, 1)])]


def test_what_came_in_while_nobody_was_there_is_forgotten_and_the_rest_is_not() -> None:
    desk = Desk(10)
    for sequence, at_ns in ((1, 5), (2, 12), (3, 18)):
        desk.heartbeats.expect(report(sequence), at_ns)
    desk.agenda.run_until(14)
    desk.heartbeats.forget()
    desk.agenda.run_until(100)
    assert desk.heard == [(28, [(18, 3)])]
