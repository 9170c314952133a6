"""Lockdown stops forwarding in both directions, and may cut streams that cross gateways."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.kernel import effects as ordered
from gateway.core.kernel.config import AttemptConfig, PlacementPolicy
from gateway.core.vocabulary import (
    LegResult,
    RefusalReason,
    RequestId,
)
from tests.support.core import (
    BOTH,
    EU_PEER,
    MS,
    busy_desk,
    desk,
    ended,
    forward,
    of_kind,
    profile,
    started,
    words,
)

under_both = pytest.mark.parametrize("placement", BOTH)


@under_both
class TestLockdown:
    def test_nothing_leaves_and_nothing_comes_in(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement)
        one.tell(events.LockdownChanged(active=True))
        assert started(one.ask("q")) == []
        (refusal,) = one.tell(forward("f"))[:1]
        assert isinstance(refusal, ordered.RefuseForward)
        assert refusal.reason is RefusalReason.LOCKDOWN

    def test_a_forward_without_a_token_comes_home(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement)
        one.ask("q")
        (stop,) = of_kind(ordered.StopLeg, one.tell(events.LockdownChanged(active=True)))
        assert stop.request_id == "q"
        one.finish("q", LegResult.CANCELLED)
        assert ended(one.effects) == []
        one.wait(1 * MS)
        assert started(one.probe("r0")) == ["r0"]

    def test_a_stream_goes_on_unless_cut(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement)
        one.ask("q")
        one.first_token("q")
        assert not of_kind(ordered.StopLeg, one.tell(events.LockdownChanged(active=True)))
        assert [
            effect
            for effect in one.tell(events.LockdownChanged(active=True, cut=True))
            if isinstance(effect, ordered.StopLeg)
        ]
        assert ended(one.finish("q", LegResult.CANCELLED)) == [("q", "failed_midstream")]

    def test_a_request_from_outside_is_stopped_without_blaming_the_replica(self, placement: PlacementPolicy) -> None:
        config = CoreConfig(attempt=AttemptConfig(breaker_failures_in_row=1))
        one = desk(replicas=1, peers=[EU_PEER], config=config, placement=placement)
        one.tell(forward("f"))
        assert ended(one.tell(events.LockdownChanged(active=True))) == [("f", "failed_before_first_byte")]
        one.finish("f", LegResult.CANCELLED)
        assert started(one.ask("own")) == ["r0"]

    def test_own_work_at_home_is_untouched_and_the_release_opens_again(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement)
        one.tell(events.LockdownChanged(active=True))
        one.ask("q")
        assert started(one.tell(events.LockdownChanged(active=False))) == ["gw-eu"]


def test_forwards_that_are_held_for_a_replica_end_and_own_requests_stay_held() -> None:
    one = desk(replicas=1, peers=[EU_PEER])
    assert started(one.ask("first", prompt=words("first"))) == ["r0"]
    one.ask("waits", prompt=words("waits"))
    one.tell(replace(forward("f"), profile=profile("f", prompt=words("f"))))
    held = [one.core.requests[RequestId(name)].held for name in ("waits", "f")]
    assert None not in held
    told = one.tell(events.LockdownChanged(active=True))
    assert (ended(told), started(told)) == ([("f", "failed_before_first_byte")], [])
    assert one.core.requests[RequestId("waits")].held is not None
    assert started(one.first_token("first")) == ["r0"]
