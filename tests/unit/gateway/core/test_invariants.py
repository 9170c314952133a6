"""Cores that break an invariant, and the words in which their checker says so.

Each core is right, and is then changed behind the checker's back, or the checker is told of what the core never did.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gateway.core.events import Event
from gateway.core.invariants import Violation
from gateway.core.kernel.effects import Effect, EndRequest, StartLeg
from gateway.core.kernel.events import AssignmentApplied, RequestArrived, TargetLost, TimePassed
from gateway.core.vocabulary import GatewayId, RequestId, peer_target
from tests.support.core import EU, SECOND, US, Desk, desk, occupy, of_kind, peer_spec, profile, replica_spec, rule
from tests.support.placement import desk_with_one_held

LATE_NS = 601 * SECOND


def told(one: Desk, *effects: Effect, event: Event | None = None, now_ns: int = 0) -> list[Violation]:
    return one.checker.after(event or TimePassed(), list(effects), now_ns or one.now_ns)


def started_after_its_end() -> list[Violation]:
    one = desk()
    (start,) = of_kind(StartLeg, one.ask("q"))
    one.finish("q")
    return told(one, start)


def ended_without_arriving() -> list[Violation]:
    one = desk()
    one.ask("q")
    (end,) = of_kind(EndRequest, one.finish("q"))
    return told(one, end)


def arrived_twice() -> list[Violation]:
    one = desk()
    one.ask("q")
    return told(one, event=RequestArrived(profile("q"), LATE_NS))


def vanished() -> list[Violation]:
    one = desk()
    one.ask("q")
    del one.core.requests[RequestId("q")]
    return told(one)


def waited_too_long() -> list[Violation]:
    one = desk(replicas=1)
    occupy(one)
    one.ask("q")
    return told(one, now_ns=LATE_NS)


def taken_from_elsewhere() -> list[Violation]:
    one = desk(replicas=1)
    told(one, event=AssignmentApplied(2, (replace(replica_spec("r0"), accepts=rule(EU)),), ()))
    event = RequestArrived(profile("q"), LATE_NS)
    return told(one, *one.core.handle(event, 0), event=event)


def miscounted() -> list[Violation]:
    one = desk(replicas=1)
    one.ask("q")
    (state,) = one.core.replicas
    state.in_flight += 1
    return told(one)


def left_at_a_silent_peer() -> list[Violation]:
    one = desk(replicas=1, peers=[peer_spec("gw-eu", EU)])
    one.hear("gw-eu", EU)
    occupy(one)
    one.ask("q")
    one.probe()
    return told(one, event=TargetLost(peer_target(GatewayId("gw-eu")), "", is_silent=True))


def held_for_another_model() -> list[Violation]:
    one = desk_with_one_held()
    (state,) = one.core.replicas
    state.spec = replace(state.spec, models=())
    return told(one)


@pytest.mark.parametrize(
    ("broken", "invariant", "detail"),
    [
        (started_after_its_end, "every request ends exactly once", "q was started after its end"),
        (ended_without_arriving, "every request ends exactly once", "q ended without arriving"),
        (arrived_twice, "every request arrives once", "q"),
        (vanished, "nothing is lost", "q vanished"),
        (waited_too_long, "nothing waits past its deadline", "q waits on"),
        (
            taken_from_elsewhere,
            "a replica takes only what its home accepts",
            f"q went to replica:r0 in {US.region}, from {US.region}",
        ),
        (miscounted, "counts of in-flight work equal the legs alive", "replica:r0: 2 counted, 1 alive"),
        (
            left_at_a_silent_peer,
            "no request waits at a silent target that an idle replica could serve",
            "['q']",
        ),
        (
            held_for_another_model,
            "each held request is held for a replica that may serve it",
            "held is held for replica:r0",
        ),
    ],
)
def test_what_is_broken_is_told_with_who_broke_it(
    broken: Callable[[], list[Violation]], invariant: str, detail: str
) -> None:
    assert Violation(invariant, detail) in broken()


def test_with_many_requests_what_is_miscounted_is_told_within_a_few_events() -> None:
    one = desk(replicas=1)
    for number in range(100):
        one.ask(f"q{number}")
    (state,) = one.core.replicas
    state.in_flight += 1
    seen = [bool(told(one)) for _ in range(4)]
    assert sum(seen) == 1, "100 requests are checked after every fourth event"
