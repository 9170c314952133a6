"""A replica's death and return are in the log once each, with the reason."""

from __future__ import annotations

import io
import json

from gateway.core.events import Event
from gateway.core.kernel import events
from gateway.core.vocabulary import GatewayId, ReplicaId, ReplicaObservation
from gateway.records.replica_log import LINE_EVERY_NS, ReplicaLog
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from tests.support.core import MS, SECOND, Desk, desk, replica_spec
from tests.support.steps import tell_step


class Told:
    """A gateway with replicas r0 and r1, neither of which has been probed."""

    def __init__(self) -> None:
        self.desk: Desk = desk(replicas=2, probed=False)
        self.stream = io.StringIO()
        logger = make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("us-1"), self.stream)
        self.log = ReplicaLog(self.desk.core.replicas, logger)

    def tell(self, event: Event) -> None:
        tell_step(self.log, self.desk.now_ns, event, self.desk.tell(event))

    def probe(self, name: str, detail: str = "") -> None:
        self.desk.now_ns += 100 * MS
        seen = ReplicaObservation(ReplicaId(name), self.desk.now_ns, not detail, detail=detail)
        self.tell(events.ReplicasObserved((seen,)))

    def lines(self) -> list[tuple[str, str, str]]:
        """Event, replica and reason of each line since the last call."""
        told = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        self.stream.seek(0)
        self.stream.truncate()
        return [(line["event"], line["replica"], line.get("reason", "")) for line in told]


def test_down_and_up_are_told_once_each() -> None:
    told = Told()
    told.probe("r0")
    told.probe("r0")
    assert told.lines() == [("replica_up", "r0", "")]
    told.desk.now_ns += LINE_EVERY_NS
    told.probe("r0", "ConnectionRefusedError")
    told.probe("r0", "ConnectionRefusedError")
    assert told.lines() == [("replica_down", "r0", "ConnectionRefusedError")]
    told.desk.now_ns += LINE_EVERY_NS
    told.probe("r0")
    assert told.lines() == [("replica_up", "r0", "")]


def test_one_that_never_was_up_is_told_of_and_one_that_was_not_asked_is_not() -> None:
    told = Told()
    told.probe("r1", "no route to host")
    assert told.lines() == [("replica_down", "r1", "no route to host")]


def test_silence_is_a_death_too() -> None:
    told = Told()
    told.probe("r0")
    told.lines()
    told.desk.now_ns += 5 * SECOND
    told.tell(events.TimePassed())
    assert told.lines() == [("replica_down", "r0", "no probe came back for 5.0 s")]


def test_one_that_comes_and_goes_all_the_time_is_told_of_at_a_pace_and_in_the_end_truly() -> None:
    told = Told()
    for _ in range(20):
        told.probe("r0")
        told.probe("r0", "gone")
    assert 4 <= len(told.lines()) <= 10
    for _ in range(11):
        told.probe("r0", "gone")
    assert told.lines()[-1:] in ([], [("replica_down", "r0", "gone")])
    assert not told.log._is_up[ReplicaId("r0")]


def test_one_that_left_is_forgotten() -> None:
    told = Told()
    told.probe("r0")
    told.tell(events.AssignmentApplied(2, (replica_spec("r1"),), ()))
    assert not told.log._is_up
    assert not told.log._told_ns
