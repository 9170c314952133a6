"""What is said early, and how honest it is."""

from __future__ import annotations

from dataclasses import replace

from gateway.core import events
from gateway.core.config import CoreConfig, PlacementPolicy, QueueConfig
from gateway.core.effects import Effect, EndRequest
from gateway.core.goodput import Promise
from gateway.core.sharing_config import ClassesConfig, InteractiveConfig, TenantConfig
from gateway.core.vocabulary import ServiceClass, TenantName
from tests.support.core import MS, SECOND, Desk, desk, ended, of_kind, profile, started

PROMISED = CoreConfig(classes=ClassesConfig(interactive=InteractiveConfig(first_token_ns=2 * SECOND)))


def drip(config: CoreConfig, waiting: int) -> Desk:
    """One engine, for which so many wait, of whom four a second get their turn, one at a time."""
    config = replace(config, pushing=replace(config.pushing, in_band_credit=0))
    one = desk(replicas=1, config=config, placement=PlacementPolicy.LEAST_LOAD)
    one.probe(waiting=1)
    for number in range(waiting):
        one.ask(f"w{number}")
    for _ in range(12):
        one.now_ns += 250 * MS
        assert started(one.probe(waiting=0)) == ["r0"]
        one.probe(waiting=1)
        for request in list(one.core.requests.values()):
            if request.attempt is not None:
                one.first_token(request.request_id)
                one.finish(request.request_id)
    return one


def last(effects: list[Effect]) -> EndRequest:
    return of_kind(EndRequest, effects)[-1]


def test_who_would_be_late_is_told_at_once_and_when_to_come_again() -> None:
    one = drip(PROMISED, waiting=40)
    length = len(one.core.waiting)
    rate = one.core.drains.rate(profile("x").model, one.now_ns)
    assert rate is not None
    assert 3.5 < rate < 4.5
    end = last(one.ask("late"))
    assert end.outcome == "rejected_deadline"
    wait_ns = (length + 1) * SECOND / rate
    assert abs(end.retry_after_ns - (wait_ns - 2 * SECOND)) < 0.1 * wait_ns, "the estimate less the promise"
    assert f"{length} are before it" in end.detail
    assert one.core.goodput.counts[ServiceClass.INTERACTIVE, Promise.REFUSED] == 1


def test_before_anything_is_known_everybody_is_let_in() -> None:
    one = desk(replicas=1, config=PROMISED, placement=PlacementPolicy.LEAST_LOAD)
    one.probe(waiting=1)
    for number in range(50):
        assert not ended(one.ask(f"w{number}"))


def test_who_can_be_in_time_waits() -> None:
    one = drip(PROMISED, waiting=15)
    assert 0 < len(one.core.waiting) < 6
    assert not ended(one.ask("in time"))


def test_without_a_promise_only_a_deadline_that_ends_before_patience_counts() -> None:
    one = drip(CoreConfig(), waiting=40)
    assert not ended(one.ask("patient"))
    end = last(one.ask("hasty", deadline_ns=3 * SECOND))
    assert end.outcome == "rejected_deadline"
    assert "its client gives it 3000 ms" in end.detail


def test_another_tenant_s_queue_is_not_before_whoever_has_nobody_waiting() -> None:
    config = replace(PROMISED, tenants={TenantName("vip"): TenantConfig(weight=2)})
    one = drip(config, waiting=40)
    assert last(one.ask("same")).outcome == "rejected_deadline"
    assert not ended(one.ask("other", tenant="vip")), "it is next but one"


def test_a_full_queue_says_when_those_who_wait_will_have_gone() -> None:
    one = drip(CoreConfig(queue=QueueConfig(length_max=30)), waiting=30)
    while not (ends := of_kind(EndRequest, one.ask(f"more{len(one.core.requests)}"))):
        pass
    (end,) = ends
    assert end.outcome == "rejected_queue_full"
    assert 6 * SECOND < end.retry_after_ns < 9 * SECOND, "thirty, at four a second"


def test_a_first_token_in_time_and_a_whole_answer_keep_the_promise() -> None:
    one = desk(replicas=1, config=PROMISED)
    for name, after_ns in (("soon", SECOND), ("late", 3 * SECOND)):
        one.ask(name)
        one.now_ns += after_ns
        one.first_token(name)
        one.finish(name)
    one.ask("gone")
    one.tell(events.RequestAbandoned(profile("gone").request_id))
    assert one.core.goodput.counts == {
        (ServiceClass.INTERACTIVE, Promise.KEPT): 1,
        (ServiceClass.INTERACTIVE, Promise.LATE): 1,
    }
