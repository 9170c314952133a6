"""Early rejection of requests that would be late, and the accuracy of the wait that it states."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.features.classes.config import ClassesConfig, InteractiveConfig
from gateway.core.features.limits.config import LimitScope
from gateway.core.features.limits.feature import limits_of
from gateway.core.kernel import events
from gateway.core.kernel.config import PlacementPolicy, QueueConfig
from gateway.core.kernel.effects import Effect, EndRequest
from gateway.core.kernel.goodput import Promise
from gateway.core.tenant_config import TenantConfig
from gateway.core.vocabulary import ServiceClass, TenantName
from tests.support.core import MS, SECOND, Desk, desk, ended, of_kind, profile, started

PROMISED = CoreConfig(classes=ClassesConfig(interactive=InteractiveConfig(first_token_ns=2 * SECOND)))


def drip(config: CoreConfig, waiting: int) -> Desk:
    """One engine with `waiting` requests queued for it; it takes four per second, one at a time."""
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
    rate = one.core.drain_rates.rate(profile("x").model, one.now_ns)
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


BRISK = CoreConfig(classes=ClassesConfig(interactive=InteractiveConfig(first_token_ns=500 * MS)))


def turn(one: Desk, after_ns: int) -> None:
    """Let the engine take one waiting request and answer it."""
    one.now_ns += after_ns
    one.probe(waiting=0)
    one.probe(waiting=1)
    for request in list(one.core.requests.values()):
        if request.attempt is not None:
            one.first_token(request.request_id)
            one.finish(request.request_id)


def slow_once(kind: ServiceClass, config: CoreConfig = BRISK) -> Desk:
    """Engine that took twenty such requests at intervals of 600 ms, and is fast from then on."""
    config = replace(config, pushing=replace(config.pushing, in_band_credit=0))
    one = desk(replicas=1, config=config, placement=PlacementPolicy.LEAST_LOAD)
    one.probe(waiting=1)
    for number in range(30):
        one.tell(events.RequestArrived(replace(profile(f"w{number}"), service_class=kind), 600 * SECOND))
    for _ in range(20):
        turn(one, 600 * MS)
    return one


def test_a_slow_time_that_is_over_does_not_turn_everybody_away_for_ever() -> None:
    one = slow_once(ServiceClass.INTERACTIVE)
    while one.core.waiting:
        turn(one, 600 * MS)
    for number in range(60):
        assert not ended(one.ask(f"alone{number}")), "only from those who wait is anything learnt"
        turn(one, 5 * MS)
    assert not ended(one.ask("first"))
    assert not ended(one.ask("second")), "by now it is known how quick the engine is"


def test_who_yields_and_waits_for_long_makes_nobody_else_late() -> None:
    one = slow_once(ServiceClass.BATCH)
    assert not ended(one.ask("first"))
    assert not ended(one.ask("second")), "nobody who is interactive has waited for long"


def test_time_in_which_nobody_waits_does_not_count() -> None:
    one = drip(CoreConfig(), waiting=12)
    one.ask("gone")
    one.tell(events.RequestAbandoned(profile("gone").request_id))
    one.now_ns += 3600 * SECOND
    assert one.core.drain_rates.clears_ns(one.core.waiting, profile("x").model, one.now_ns) == 250 * MS


def test_who_was_turned_away_by_a_limit_counts_as_refused_and_a_look_at_what_is_stored_never() -> None:
    limited = replace(PROMISED, tenants={TenantName("default"): TenantConfig(concurrency_max=1)})
    one = desk(replicas=1, config=limited)
    one.ask("runs")
    assert last(one.ask("more")).outcome == "rejected_tenant_concurrency"
    one.tell(events.DrainRequested())
    control = replace(profile("look"), is_control=True)
    assert last(one.tell(events.RequestArrived(control, SECOND))).outcome == "rejected_draining"
    assert one.core.goodput.counts == {(ServiceClass.INTERACTIVE, Promise.REFUSED): 1}


def test_who_is_turned_away_for_being_late_has_taken_nothing_of_its_limits() -> None:
    own = TenantConfig(requests_per_minute=60, limit_scope=LimitScope.GATEWAY)
    one = drip(replace(PROMISED, tenants={TenantName("default"): own}), waiting=40)
    (before,) = limits_of(one.core).allowances(TenantName("default"), one.now_ns)
    assert last(one.ask("late")).outcome == "rejected_deadline"
    (after,) = limits_of(one.core).allowances(TenantName("default"), one.now_ns)
    assert after.remaining == before.remaining
