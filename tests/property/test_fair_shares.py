"""Fairness under any order and cost of requests: of two tenants that always have requests waiting, neither is served
more than the other by more than a bound that does not grow with time (Virtual Token Counter, Theorem 4.4).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.features.sharing.config import SharingConfig
from gateway.core.features.sharing.fair_queue import FairOrder
from gateway.core.features.sharing.fair_shares import FairShares, charge_of
from gateway.core.kernel.requests import RequestState
from gateway.core.kernel.waiting_requests import WaitingRequests
from gateway.core.tenant_config import TenantConfig
from gateway.core.vocabulary import TenantName
from tests.unit.gateway.core.kernel.test_waiting_requests import LLAMA, request

INPUT_MAX, OUTPUT_MAX = 400, 200
BACKLOG = 3
"""Least number of waiting requests of each of the two tenants at any time."""
STEPS = 150


@dataclass
class Run:
    """Two tenants that always have requests waiting, and a third that comes and goes."""

    rng: random.Random
    slack: int
    running_max: int
    weights: tuple[float, float]

    def __post_init__(self) -> None:
        self.names = [TenantName(name) for name in ("first", "second", "guest")]
        self.shares = FairShares()
        tenants = {name: TenantConfig(weight=weight) for name, weight in zip(self.names, self.weights, strict=False)}
        self.shares.configure(SharingConfig(prefix_slack_tokens=self.slack), tenants)
        self.waiting = WaitingRequests()
        self.waiting.order_by(FairOrder(self.shares, lambda _: self.rng.random()))
        self.running: list[RequestState] = []
        self.number = 0
        self.counts = dict.fromkeys(self.names, 0)
        self.served = dict.fromkeys(self.names, 0.0)
        """Charges per tenant, divided by weight: as charged at the start, and corrected at the end of each request."""

    def arrive(self, name: TenantName) -> None:
        self.number += 1
        arrived = request(self.number, tenant=name)
        charge = arrived.queue_part = self.shares.opened(name)
        self.shares.joined(charge.account)
        self.waiting.join(arrived)
        self.counts[name] += 1

    def start(self) -> None:
        head = self.waiting.head_of(LLAMA)
        assert head is not None
        self.waiting.leave(head)
        self.shares.left(charge_of(head).account)
        name = head.profile.tenant
        self.counts[name] -= 1
        before = charge_of(head).account.counter
        limit = self.rng.choice([None, OUTPUT_MAX])
        head.profile = replace(head.profile, output_tokens_max=limit)
        self.shares.started(charge_of(head), head.profile, self.rng.randint(1, INPUT_MAX))
        self.served[name] += charge_of(head).account.counter - before
        self.running.append(head)

    def end(self) -> None:
        ended = self.running.pop(self.rng.randrange(len(self.running)))
        charge = charge_of(ended)
        before = charge.account.counter
        self.shares.ended(charge, None, self.rng.randint(0, OUTPUT_MAX))
        self.shares.closed(charge)
        self.served[ended.profile.tenant] += charge.account.counter - before

    def step(self) -> None:
        for name in self.names[:2]:
            while self.counts[name] < BACKLOG:
                self.arrive(name)
        if self.rng.random() < 0.2:
            self.arrive(self.names[2])
        if len(self.running) >= self.running_max:
            self.end()
        self.start()

    @property
    def bound(self) -> float:
        """Twice the slack, the most that one request may be charged, and the corrections of all running requests."""
        config = SharingConfig()
        most = config.input_weight * INPUT_MAX + config.output_weight * OUTPUT_MAX
        put_right = self.running_max * config.output_weight * OUTPUT_MAX
        return 2 * (self.slack + (most + put_right) / min(self.weights))


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    slack=st.sampled_from([0, 500, 2000]),
    running_max=st.sampled_from([1, 4]),
    weights=st.sampled_from([(1.0, 1.0), (1.0, 3.0)]),
)
def test_neither_is_served_more_than_the_bound_allows(
    seed: int, slack: int, running_max: int, weights: tuple[float, float]
) -> None:
    run = Run(random.Random(seed), slack, running_max, weights)
    one, other, _ = run.names
    differences = []
    for _ in range(STEPS):
        run.step()
        differences.append(run.served[one] - run.served[other])
    assert max(differences) - min(differences) <= run.bound, "over any stretch of it"
    assert min(run.served[one], run.served[other]) > 0
