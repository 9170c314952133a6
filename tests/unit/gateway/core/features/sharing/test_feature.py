"""Each step of a request changes its tenant's account as it should; without the feature, queues go by arrival."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.features.catalogue import features_of
from gateway.core.features.sharing.config import SharingConfig
from gateway.core.features.sharing.fair_shares import Charge, FairShares, TenantShare, charge_of
from gateway.core.features.sharing.feature import Sharing
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.events import LegEnded
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Features, Kernel
from gateway.core.kernel.requests import LegState, RequestState
from gateway.core.vocabulary import GatewayId, Hints, LegResult, LegRole, RequestId, TenantName
from tests.support.core import SECOND, US, Desk, desk, occupy, of_kind, policy, profile, replica_spec, started, words

ACME, ZETA = TenantName("acme"), TenantName("zeta")


def sharing_in(one: Desk) -> Sharing:
    (feature,) = [each for each in one.core.features if isinstance(each, Sharing)]
    return feature


def figures(one: Desk, tenant: TenantName = ACME) -> TenantShare:
    return sharing_in(one)._shares.figures()[tenant]


def full_desk(replicas: int = 1) -> Desk:
    one = desk(replicas=replicas)
    occupy(one)
    return one


class TestSteps:
    def test_a_request_is_charged_an_estimate_when_it_starts_and_what_was_counted_when_it_is_over(self) -> None:
        one = desk(replicas=1)
        assert started(one.ask("a", tenant=ACME)) == ["r0"]
        assert (figures(one).open, figures(one).waiting) == (1, 0)
        assert 0 < figures(one).counter < 100
        one.first_token("a")
        one.finish("a", prompt_tokens=100, output_tokens=50)
        told = figures(one)
        assert (told.open, told.input_tokens, told.output_tokens) == (0, 100, 50)
        assert told.counter == 100 + 2 * 50

    def test_whoever_waits_is_counted_once_until_it_starts_or_ends(self) -> None:
        one = full_desk()
        for name in "ab":
            assert started(one.ask(name, tenant=ACME)) == []
        assert (figures(one).open, figures(one).waiting, figures(one).counter) == (2, 2, 0)
        one.tell(events.RequestAbandoned(RequestId("a")))
        assert (figures(one).open, figures(one).waiting) == (1, 1)
        assert started(one.probe()) == ["r0"]
        assert (figures(one).open, figures(one).waiting) == (1, 0)

    def test_a_tenant_s_waiting_requests_start_by_their_priority_hints(self) -> None:
        one = full_desk()
        for name, priority in zip("abcd", (0, 2, 7, 2), strict=True):
            asked = replace(profile(name, tenant=ACME), hints=Hints(priority=priority))
            assert of_kind(StartLeg, one.tell(events.RequestArrived(asked, one.now_ns + 600 * SECOND))) == []
        order: list[str] = []
        found = of_kind(StartLeg, one.probe())
        while found:
            (leg,) = found
            order.append(leg.request_id)
            found = of_kind(StartLeg, [*one.finish(leg.request_id), *one.probe()])
        assert order == ["c", "b", "d", "a"]

    def test_what_no_engine_had_costs_nothing(self) -> None:
        one = full_desk()
        one.ask("a", tenant=ACME)
        one.tell(events.RequestAbandoned(RequestId("a")))
        assert (figures(one).open, figures(one).counter) == (0, 0)

    def test_whoever_is_judged_again_waits_on_under_the_same_charge(self) -> None:
        one = full_desk()
        one.ask("a", tenant=ACME)
        request = one.core.requests[RequestId("a")]
        before = charge_of(request)
        one.tell(events.PolicyApplied(replace(policy(US), digest="another")))
        assert charge_of(request) is before
        assert (figures(one).open, figures(one).waiting) == (1, 1)

    @pytest.mark.parametrize(
        ("role", "written"), [(LegRole.WHOLE, 7), (LegRole.DECODE, 7), (LegRole.PREFILL, 0)], ids=str
    )
    def test_a_token_that_a_prefill_leg_writes_is_not_counted_twice(self, role: LegRole, written: int) -> None:
        one = desk(replicas=1)
        one.ask("a", tenant=ACME)
        request, leg = running(one, "a")
        leg.role = role
        event = LegEnded(RequestId("a"), 1, 1, LegResult.COMPLETED, prompt_tokens=3, output_tokens=7)
        sharing_in(one).leg_over(request, leg, event, one.now_ns)
        assert (charge_of(request).read_tokens, charge_of(request).written_tokens) == (3, written)

    def test_an_answer_longer_than_its_estimate_is_charged_as_it_is_written(self) -> None:
        one = desk(replicas=1)
        one.ask("a", tenant=ACME)
        before = figures(one).counter
        for tokens in (40, 30):
            sharing_in(one).progressed(running(one, "a")[0], tokens)
            assert figures(one).counter == before + 2 * 40

    def test_nobody_leaves_room_once_it_is_not_asked_for(self) -> None:
        one = desk(replicas=1, config=CoreConfig(sharing=SharingConfig(yields_above=1.0)))
        for name, tenant in zip("zabc", (ZETA, ACME, ACME, ACME), strict=True):
            assert started(one.ask(name, tenant=tenant)) == ["r0"]
            one.first_token(name)
        occupy(one)
        one.ask("d", tenant=ACME)
        request = one.core.requests[RequestId("d")]
        assert request.leaves_room
        one.tell(events.ConfigApplied(CoreConfig()))
        one.probe(healthy=False)
        assert not request.leaves_room


def running(one: Desk, name: str) -> tuple[RequestState, LegState]:
    request = one.core.requests[RequestId(name)]
    assert request.attempt is not None
    return request, request.attempt.legs[1]


def loses_the_charge(request: RequestState, _: FairShares) -> None:
    request.queue_part = None


def forgets_the_account(request: RequestState, shares: FairShares) -> None:
    del shares._accounts[request.profile.tenant]


def owes(request: RequestState, _: FairShares) -> None:
    charge_of(request).output_tokens = -1


def is_not_charged(request: RequestState, _: FairShares) -> None:
    charge_of(request).is_counted = False


def waits_twice(request: RequestState, shares: FairShares) -> None:
    shares.joined(charge_of(request).account)


def runs_twice(_: RequestState, shares: FairShares) -> None:
    shares.running += 1


def fills_with_accounts(_: RequestState, shares: FairShares) -> None:
    for number in range(5000):
        shares._add(TenantName(str(number)))


class TestViolations:
    @pytest.mark.parametrize(
        ("defect", "invariant"),
        [
            (loses_the_charge, "each open request has an account"),
            (forgets_the_account, "an account is kept while its tenant is here"),
            (owes, "no request is charged less than nothing"),
            (is_not_charged, "each started request was charged"),
            (waits_twice, "accounts count those who wait"),
            (runs_twice, "what runs is shared out by what runs"),
            (fills_with_accounts, "every map has a bound"),
        ],
    )
    def test_each_is_told(self, defect: Callable[[RequestState, FairShares], None], invariant: str) -> None:
        one = desk(replicas=1)
        one.ask("a", tenant=ACME)
        feature = sharing_in(one)
        assert feature.violations() == []
        defect(one.core.requests[RequestId("a")], feature._shares)
        assert invariant in [name for name, _ in feature.violations()]

    def test_the_checker_tells_them(self) -> None:
        one = desk(replicas=1)
        one.ask("a", tenant=ACME)
        sharing_in(one)._shares.running += 1
        with pytest.raises(AssertionError, match="what runs is shared out by what runs"):
            one.tell(events.TimePassed())


def none_of(_: Kernel) -> list[Feature]:
    return []


def desk_with(features: Features) -> Desk:
    one = Desk(GatewayCore(GatewayId("gw-us"), US, seed=1, features=features))
    one.tell(events.ConfigApplied(CoreConfig(sharing=SharingConfig(prefix_slack_tokens=0))))
    one.tell(events.PolicyApplied(policy(US)))
    one.tell(events.AssignmentApplied(1, (replica_spec("r0", US),), ()))
    one.probe(healthy=False)
    return one


@pytest.mark.parametrize(
    ("features", "turns"), [(features_of, ["a1", "z1", "a2", "a3"]), (none_of, ["a1", "a2", "a3", "z1"])]
)
def test_tenants_get_their_turns_by_turns_and_without_the_feature_by_arrival(
    features: Features, turns: list[str]
) -> None:
    one = desk_with(features)
    for name in sorted(turns):
        one.ask(name, tenant=ACME if name[0] == "a" else ZETA, prompt=words(name))
    for name in turns:
        one.probe()
        one.first_token(name)
        one.finish(name)
    assert [leg.request_id for leg in of_kind(StartLeg, one.effects)] == turns


def test_without_the_feature_no_tenant_has_a_figure_and_no_request_leaves_room() -> None:
    one = desk_with(none_of)
    one.ask("a", tenant=ACME)
    request = one.core.requests[RequestId("a")]
    assert (request.queue_part, request.leaves_room) == (None, False)
    told = one.core.waiting.order.figures()
    assert (told.waiting, told.known, told.forgotten, told.leaving_room) == ({}, 0, 0, 0)
    assert one.core.waiting.order.queue_of(request) is None


def test_a_charge_is_what_the_order_keeps_with_a_request() -> None:
    one = desk(replicas=1)
    one.ask("a", tenant=ACME)
    request = one.core.requests[RequestId("a")]
    assert isinstance(request.queue_part, Charge)
    assert request.parts is None, "a dictionary for each request would cost more"
