"""Order of requests in a queue that tenants share."""

from __future__ import annotations

from dataclasses import replace

from gateway.core.features.sharing.config import SharingConfig
from gateway.core.features.sharing.fair_queue import FairOrder
from gateway.core.features.sharing.fair_shares import FairShares, charge_of
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import Hold, RequestState
from gateway.core.kernel.waiting_requests import WaitingRequests
from gateway.core.tenant_config import TenantConfig
from gateway.core.vocabulary import ServiceClass, TenantName
from tests.support.core import ANYWHERE, MODEL, SECOND
from tests.unit.gateway.core.kernel.test_waiting_requests import LLAMA, MISTRAL, request

ACME, ZETA = "acme", "zeta"
NO_SLACK = SharingConfig(prefix_slack_tokens=0)


class Room:
    """A waiting room with the shares by which it is ordered."""

    def __init__(self, shares: FairShares, known: dict[str, float]) -> None:
        self.shares = shares
        self.queues = WaitingRequests()
        self.queues.order_by(FairOrder(shares, lambda each: known.get(each.profile.tenant, 0.0)))

    def join(self, request: RequestState) -> None:
        if request.queue_part is None:
            request.queue_part = self.shares.opened(request.profile.tenant)
        self.shares.joined(charge_of(request).account)
        self.queues.join(request)

    def leave(self, request: RequestState) -> None:
        self.queues.leave(request)
        self.shares.left(charge_of(request).account)

    def start(self, request: RequestState, tokens: int) -> None:
        """Start a request that has left, at a cost of `tokens`."""
        self.shares.started(charge_of(request), request.profile, tokens)

    def head(self) -> RequestState | None:
        return self.queues.head_of(LLAMA)


def room(config: SharingConfig = NO_SLACK, tenants: dict[str, TenantConfig] | None = None, **known: float) -> Room:
    """`known`: by tenant, the share of its prompts that the free replica has cached."""
    shares = FairShares()
    shares.configure(config, {TenantName(name): each for name, each in (tenants or {}).items()})
    return Room(shares, known)


def serve(one: Room, tokens: int = 100) -> str:
    """Start the next request, at a cost of `tokens`, and return its tenant."""
    head = one.head()
    assert head is not None
    one.leave(head)
    one.start(head, tokens)
    return str(head.profile.tenant)


def test_tenants_take_turns_by_what_they_had() -> None:
    one = room()
    for number in range(6):
        one.join(request(number, tenant=ACME))
    for number in range(6, 8):
        one.join(request(number, tenant=ZETA))
    assert [serve(one) for _ in range(5)] == [ACME, ZETA, ACME, ZETA, ACME]


def test_who_had_more_waits_until_the_other_has_had_as_much() -> None:
    one = room()
    for number in range(6):
        one.join(request(number, tenant=(ACME, ZETA)[number % 2]))
    assert serve(one, tokens=250) == ACME
    assert [serve(one) for _ in range(4)] == [ZETA, ZETA, ZETA, ACME]


def test_within_a_tenant_and_with_one_alone_it_is_first_come_first_served() -> None:
    one = room()
    for number in (3, 1, 2):
        one.join(request(number))
    assert [each.arrival_number for each in one.queues] == [1, 2, 3]
    head = one.head()
    assert head is not None
    assert head.arrival_number == 1
    assert one.queues.heads()[0][:6] == (0, True, 0, 0, 0.0, 1), "no counter is looked at"


def numbers(one: Room) -> list[int]:
    """Arrival numbers in the order in which requests of one size get their turn."""
    order: list[int] = []
    while (head := one.head()) is not None:
        one.leave(head)
        one.start(head, 100)
        order.append(head.arrival_number)
    return order


def test_a_priority_hint_orders_the_requests_of_one_tenant_and_takes_no_turn_from_another() -> None:
    one = room()
    for number, (tenant, priority) in enumerate(
        [(ACME, 0), (ZETA, 0), (ACME, 3), (ZETA, 9), (ACME, 5), (ZETA, 0), (ACME, 5)]
    ):
        one.join(request(number, tenant=tenant, priority=priority))
    order = numbers(one)
    turns = [ACME if number in (0, 2, 4, 6) else ZETA for number in order]
    assert turns[:6].count(ACME) == turns[:6].count(ZETA) == 3
    assert [number for number in order if number in (1, 3, 5)] == [3, 1, 5]
    assert [number for number in order if number in (0, 2, 4, 6)] == [4, 6, 2, 0]


def test_tenants_that_share_an_account_go_by_arrival_whatever_they_hint() -> None:
    one = room(SharingConfig(fair=False))
    for number, (tenant, priority) in enumerate([(ACME, 0), (ZETA, 9), (ACME, 3)]):
        one.join(request(number, tenant=tenant, priority=priority))
    assert numbers(one) == [0, 1, 2]


def test_a_priority_hint_orders_the_heads_of_one_tenant_and_never_its_classes_of_service() -> None:
    one = room()
    batch = replace(LLAMA, service_class=ServiceClass.BATCH)
    first, second, last = request(0, MISTRAL), request(1, LLAMA, priority=4), request(2, batch, priority=900)
    for each in (first, second, last):
        one.join(each)
    assert [turn[-1].arrival_number for turn in sorted(one.queues.heads())] == [1, 0, 2]


def test_who_comes_back_goes_before_all_who_have_had_no_turn_yet() -> None:
    one = room()
    back, *others = (request(number, tenant=tenant) for number, tenant in enumerate((ACME, ZETA, ZETA)))
    for each in (back, *others):
        one.join(each)
    one.leave(back)
    one.start(back, 10_000)
    back.attempts = 1
    one.join(back)
    assert one.head() is back


def test_an_answer_that_has_begun_goes_before_all_new_ones_whoever_had_what() -> None:
    one = room(tenants={ZETA: TenantConfig(priority=1)})
    others = [request(number, tenant=tenant) for number, tenant in enumerate((ACME, ZETA, ZETA))]
    rest = request(9, replace(LLAMA, appends=True), tenant=ACME)
    one.join(others[0])
    one.start(others[0], 10_000)
    for each in (*others[1:], rest):
        one.join(each)
    assert one.queues.next_of(one.queues.heads()) is rest
    assert one.queues.ahead_of(rest) == 0
    assert one.queues.ahead_of(others[1]) == 2, "the rest, and one of its own tenant"


def test_the_higher_priority_goes_first_until_the_other_has_waited_for_it() -> None:
    one = room(SharingConfig(aging_ns=10 * SECOND), {ZETA: TenantConfig(priority=1)})
    low, high = request(0, tenant=ACME), request(1, tenant=ZETA)
    one.join(low)
    one.join(high)
    one.start(high, 500)
    one.shares.begin(10 * SECOND - 1)
    assert one.head() is high
    one.shares.begin(10 * SECOND)
    assert one.head() is low, "as high by now, and it had less"


def test_better_classes_go_first_whoever_had_what() -> None:
    one = room()
    batch = RequestClass(MODEL, ANYWHERE, True, True, service_class=ServiceClass.BATCH)
    late, early = request(5, tenant=ACME), request(1, batch, tenant=ZETA)
    for each in (early, late):
        one.join(each)
    assert one.queues.next_of(one.queues.heads()) is late


def test_requests_of_one_tenant_stand_in_one_line() -> None:
    one = room()
    first, other, second = request(0, tenant=ACME), request(1, tenant=ZETA), request(2, tenant=ACME)
    queue_of = one.queues.order.queue_of
    assert queue_of(first) is None, "it has not waited"
    for each in (first, other, second):
        one.join(each)
    assert queue_of(first) is queue_of(second) is not queue_of(other)


class TestPrefixes:
    def test_within_the_slack_whom_the_replica_knows_goes_first(self) -> None:
        one = room(SharingConfig(prefix_slack_tokens=300), zeta=0.9, acme=0.1)
        for number in range(10):
            one.join(request(number, tenant=(ACME, ZETA)[number % 2]))
        assert [serve(one) for _ in range(6)] == [ZETA, ZETA, ZETA, ZETA, ACME, ZETA], "never more than that ahead"

    def test_with_no_slack_nobody_looks(self) -> None:
        one = room(NO_SLACK, zeta=0.9)
        for number in range(4):
            one.join(request(number, tenant=(ACME, ZETA)[number % 2]))
        assert [serve(one) for _ in range(4)] == [ACME, ZETA, ACME, ZETA]

    def test_it_lifts_nobody_above_a_higher_priority(self) -> None:
        one = room(SharingConfig(prefix_slack_tokens=10**6), {ACME: TenantConfig(priority=1)}, zeta=1.0)
        one.join(request(0, tenant=ZETA))
        one.join(request(1, tenant=ACME))
        assert serve(one) == ACME


class TestRounds:
    """Heads that are looked at in one round while some of them are started."""

    def test_a_start_puts_its_tenants_other_heads_behind(self) -> None:
        one = room()
        kinds = [RequestClass(MODEL, ANYWHERE, True, True, failed_replicas=mask) for mask in (1, 2, 4)]
        first, second, other = request(0, kinds[0], ACME), request(1, kinds[1], ACME), request(2, kinds[2], ZETA)
        for each in (first, second, other):
            one.join(each)
        heads = one.queues.heads()
        taken = one.queues.next_of(heads)
        assert taken is first
        one.leave(taken)
        one.start(taken, 100)
        assert one.queues.next_of(heads) is other
        assert one.queues.next_of(heads) is second

    def test_a_start_may_put_another_one_at_the_head_of_a_class(self) -> None:
        one = room()
        elsewhere = RequestClass(MODEL, ANYWHERE, True, True, failed_replicas=1)
        first, behind, ahead = request(0, elsewhere, ACME), request(1, tenant=ACME), request(2, tenant=ZETA)
        for each in (first, behind, ahead):
            one.join(each)
        heads = one.queues.heads()
        one.leave(one.queues.next_of(heads))
        one.start(first, 100)
        assert one.queues.next_of(heads) is ahead

    def test_those_held_for_a_replica_share_it_too(self) -> None:
        one = room()
        everybody: list[RequestState] = [request(number, tenant=(ACME, ACME, ZETA)[number]) for number in range(3)]
        for each in everybody:
            one.join(each)
            one.queues.hold(each, Hold(2, 1, b""))
        first = one.queues.next_of(one.queues.held_heads(2))
        one.leave(first)
        one.start(first, 100)
        assert [first, one.queues.held_head_of(2, LLAMA, is_cold=False)] == [everybody[0], everybody[2]]
