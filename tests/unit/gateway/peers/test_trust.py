from __future__ import annotations

import io
import json

from gateway.core.events import Event
from gateway.core.kernel.events import PeersObserved, TargetLost
from gateway.core.vocabulary import GatewayId, ReplicaId, RequestId, peer_target
from gateway.peers.trust import Trust
from gateway.request.legs import RanAt
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from tests.support.core import AP

PEER, OTHER = GatewayId("eu-1"), GatewayId("eu-2")
RAN_AT = RanAt(ReplicaId("ap-a"), AP)
HEARTBEAT = PeersObserved(())


class Office:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.told: list[tuple[str, str, RanAt]] = []
        self.stream = io.StringIO()
        log = make_logger(LoggingConfig(LogFormat.JSON), GatewayId("us-1"), self.stream)
        self.trust = Trust(self.events.append, log, lambda *violation: self.told.append(violation))

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


def test_what_peers_say_reaches_the_core_while_they_are_trusted() -> None:
    office = Office()
    office.trust.hear(PEER, HEARTBEAT)
    assert office.events == [HEARTBEAT]
    assert office.trust.notes() == {}


def test_a_violation_sounds_every_alarm_and_the_peer_is_lost() -> None:
    office = Office()
    office.trust.violated(PEER, RequestId("r1"), RAN_AT)
    (event,) = office.events
    assert isinstance(event, TargetLost)
    assert (event.target, AP.region in event.detail) == (peer_target(PEER), True)
    assert office.told == [(PEER, "r1", RAN_AT)]
    (line,) = office.lines()
    assert (line["level"], line["peer"], line["request_id"], line["replica"]) == ("error", PEER, "r1", "ap-a")


def test_a_peer_that_is_not_trusted_is_heard_no_more_until_an_operator_says_so() -> None:
    office = Office()
    office.trust.violated(PEER, RequestId("r1"), RAN_AT)
    office.events.clear()
    office.trust.hear(PEER, HEARTBEAT)
    assert office.events == []
    office.trust.hear(OTHER, HEARTBEAT)
    assert office.events == [HEARTBEAT]
    assert list(office.trust.notes()) == ["distrusted_peers"]
    office.trust.restore()
    office.trust.hear(PEER, HEARTBEAT)
    assert office.events == [HEARTBEAT, HEARTBEAT]
    assert office.trust.notes() == {}


def test_each_violation_is_told_and_nothing_is_said_where_everybody_is_trusted() -> None:
    office = Office()
    office.trust.restore()
    assert office.lines() == []
    for request_id in ("r1", "r2"):
        office.trust.violated(PEER, RequestId(request_id), RAN_AT)
    assert [told[1] for told in office.told] == ["r1", "r2"]
