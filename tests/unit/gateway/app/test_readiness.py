"""`/ready` of a gateway whose engines are dead: ready by default; not ready if a key says so, except for the last
gateway.
"""

from __future__ import annotations

import pytest

from gateway.app.readiness import Readiness, engines_note
from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.kernel.config import OverflowMode, PlacementConfig
from gateway.core.kernel.residency import closed_policy
from tests.support.core import AP, EU, SECOND, US, Desk, desk, peer_spec, policy, rule

GRACE_NS = 30 * SECOND
HOME_ONLY = policy(US, process=rule(US))


class Watched:
    """A gateway in the US with one engine, and peers in the EU and in AP, which its policy does not allow by
    default.
    """

    def __init__(self, grace_ns: int | None = GRACE_NS, *, own_policy: object = HOME_ONLY, **details: object) -> None:
        peers = [peer_spec("gw-eu", EU), peer_spec("gw-ap", AP)]
        self.desk: Desk = desk(replicas=1, peers=peers, own_policy=own_policy, **details)  # type: ignore[arg-type]
        self.readiness = Readiness(self.desk.core, grace_ns, self.desk.now_ns)

    def passes(self, seconds: int, *, engine: bool = False, eu: int | None = 1, accepting: bool = True) -> str:
        """Let this time pass and return the reason for not being ready.

        `engine` says if the engine is up; `eu` is the number of free replicas in the EU, None for a silent peer.
        """
        for _ in range(seconds):
            self.desk.wait(1 * SECOND)
            self.desk.probe(healthy=engine)
            if eu is not None:
                self.desk.hear("gw-eu", EU, available=eu, accepting=accepting)
            self.readiness.look(self.desk.now_ns)
        return self.readiness.why_not(self.desk.now_ns)


def test_engines_change_nothing_unless_they_are_given_a_say() -> None:
    assert Watched(None).passes(600) == ""


def test_after_the_grace_it_is_not_ready_and_with_an_engine_it_is_again() -> None:
    watched = Watched()
    assert watched.passes(30) == ""
    assert watched.passes(2) == "no engine here or at an allowed peer could serve a request for 32 s"
    assert watched.passes(1, engine=True) == ""
    assert watched.passes(30) == "", "the grace begins anew"


def test_a_busy_engine_is_no_dead_one() -> None:
    watched = Watched()
    for _ in range(60):
        watched.desk.wait(1 * SECOND)
        watched.desk.probe(waiting=5)
        watched.desk.hear("gw-eu", EU)
        watched.readiness.look(watched.desk.now_ns)
    assert watched.readiness.why_not(watched.desk.now_ns) == ""


def test_a_peer_that_may_be_used_serves_as_well_as_an_engine() -> None:
    assert Watched(own_policy=policy(US, process=rule(US, EU))).passes(60) == ""


@pytest.mark.parametrize("eu", [None, 0])
def test_the_last_gateway_is_never_withdrawn(eu: int | None) -> None:
    """No other gateway is heard of, or none has room either."""
    assert Watched().passes(120, eu=eu) == ""


def test_a_gateway_that_takes_nothing_is_nobody_to_leave_it_to() -> None:
    assert Watched().passes(120, accepting=False) == ""


def test_it_comes_back_when_the_other_one_is_gone() -> None:
    watched = Watched()
    assert watched.passes(40) != ""
    assert watched.passes(10, eu=None) == "", "silent for three keep-alives"


@pytest.mark.parametrize(
    "details",
    [
        {"own_policy": policy(US), "config": CoreConfig(placement=PlacementConfig(overflow=OverflowMode.OFF))},
        {"own_policy": closed_policy(US, "unreadable")},
    ],
    ids=["overflow is off", "policy is closed"],
)
def test_a_peer_where_nothing_goes_does_not_count(details: dict[str, object]) -> None:
    assert Watched(**details).passes(32) != ""  # type: ignore[arg-type]


def test_in_lockdown_a_peer_does_not_count() -> None:
    watched = Watched(own_policy=policy(US))
    watched.desk.tell(events.LockdownChanged(active=True))
    assert watched.passes(32) != ""


def test_an_operator_is_told_that_no_engine_is_up() -> None:
    watched = Watched(None)
    assert engines_note(watched.desk.core) == ""
    watched.passes(1)
    assert engines_note(watched.desk.core) == "none of 1 is up"
    assert engines_note(desk(replicas=0).core) == ""
    assert engines_note(desk(replicas=1, probed=False).core) == "", "nobody knows yet"
