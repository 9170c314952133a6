"""Placement by price: the cheapest target in money among those expected to give the first token in time; where none is,
as under `cost`.

It compares what a request adds to the bill: nothing for capacity that is paid by the hour anyway, its share of a
replica that is paid by use, and egress for bytes that leave the region. Targets with equal price are ranked by `cost`.
Without prices, or for a class without a first-token objective, it decides exactly as `cost` does. A line of a batch is
always in time, and a patient one waits for capacity that is paid for anyway.
"""

from __future__ import annotations

from math import inf
from typing import Final

from msgspec.structs import replace

from gateway.core.features.prices.in_force import (
    carbon_figure,
    first_token_figure,
    money_figure,
    peer_prices,
    prices_in,
    replica_price,
)
from gateway.core.features.prices.price_table import MICROS, PriceTable, ReplicaPrice, Work, work_milligrams
from gateway.core.kernel.bits import slots_of
from gateway.core.kernel.config import PlacementConfig
from gateway.core.kernel.requests import Hold
from gateway.core.placement.cost import CostPolicy
from gateway.core.placement.fleet import Fleet
from gateway.core.placement.policy import Choice, Offer
from gateway.core.vocabulary import Costs, PlacementReason, PoolName, RegionName, RequestProfile, Target, TargetKind

_SECOND_NS: Final = 1_000_000_000
_PRIOR_WRITING_NS: Final = 10.0 * _SECOND_NS
"""Decode time of an answer until some have been measured here: 256 tokens at 40 ms each."""
_KEEPS: Final = 0.98
"""Weight of the old average when one more sample comes; the last fifty make it."""
_STREAMED_TOKEN_BYTES: Final = 250
"""Bytes of a streamed token on the wire: each is an event of its own, in JSON."""
_TOKEN_BYTES: Final = 5


class _Option:
    """Target with its price, cost and expected time to first token."""

    __slots__ = ("blocks", "cost_ns", "first_token_ns", "is_peer", "micros", "slot")

    def __init__(self, slot: int, blocks: int, cost_ns: float, first_token_ns: float, micros: float) -> None:
        self.slot = slot
        self.blocks = blocks
        self.cost_ns = cost_ns
        self.first_token_ns = first_token_ns
        self.micros = micros
        """Amount the request adds to the bill, in millionths of the currency; negative: not known."""
        self.is_peer = False


class Price(CostPolicy):
    def __init__(self, fleet: Fleet, config: PlacementConfig) -> None:
        super().__init__(fleet, config)
        self._writing_ns = 0.0
        """Mean time from first token to last; 0 until an answer has been measured here."""
        self._alike: dict[tuple[RegionName, PoolName], int] = {}
        """Own replicas by region and pool, as masks; those of one mask have one price."""

    # Questions

    def weigh(self, profile: RequestProfile, offer: Offer, now_ns: int, /) -> Choice | None:
        table = prices_in(self.fleet)
        slo_ns = self.fleet.first_token_slo_ns(profile) or self.config.price_first_token_ns
        if table is None or not (slo_ns or profile.keeps_yielding):
            return super().weigh(profile, offer, now_ns)
        self._now_ns = now_ns
        self._arrived_ns = offer.arrived_ns
        self._look_around(profile, offer)
        options = self._options_here(profile, offer, table)
        options += self._options_there(profile, offer.siblings | offer.remotes, table)
        left_ns = self.config.price_first_token_share * (slo_ns or 0) - (now_ns - offer.arrived_ns)
        if profile.keeps_yielding:
            left_ns = inf
        best = self._cheapest_in_time(options, left_ns)
        if best is not None and profile.is_patient and self._can_save(profile, offer, best):
            return None
        if best is None:  # price does not matter once the deadline is missed
            return super().weigh(profile, offer, now_ns)
        if best.is_peer:
            return _peer_choice(best, is_remote=bool(offer.remotes >> best.slot & 1))
        choice = self._replica_choice(profile, offer, best.slot, best.blocks)
        choice.reason = PlacementReason.LOCAL_PRICE
        return choice

    def _with_rivals(self, choice: Choice) -> Choice:
        """Leave out the compared targets if prices are known: their figures lack money, which `costs_at_replica` and
        `costs_at_peer` add."""
        return choice if prices_in(self.fleet) is not None else super()._with_rivals(choice)

    def costs_at_replica(
        self, profile: RequestProfile, slot: int, held: Hold | None, matched_blocks: int = -1
    ) -> Costs:
        blocks = self.fleet.match_replicas(profile, 1 << slot).blocks if matched_blocks < 0 else matched_blocks
        costs = self._replica_costs(profile, slot, blocks, held)
        table = prices_in(self.fleet)
        if table is None:
            return costs
        price = replica_price(self.fleet, slot)
        carbon = None if price is None else work_milligrams(price, self._work(profile, blocks))
        micros = self._micros_here(profile, slot, blocks, table)
        return _priced(costs, self._first_token_here_ns(profile, slot, blocks, held), micros, carbon, table)

    def costs_at_peer(self, profile: RequestProfile, slot: int, matched_blocks: int = -1) -> Costs:
        blocks = self.fleet.match_peers(profile, 1 << slot).blocks if matched_blocks < 0 else matched_blocks
        costs = self._peer_costs(profile, slot, blocks)
        table = prices_in(self.fleet)
        if table is None:
            return costs
        prices, work = peer_prices(self.fleet, slot, profile.model), self._work(profile, blocks)
        carbon = max([work_milligrams(each, work) for each in prices]) if prices else None
        micros = self._micros_there(profile, slot, blocks, table)
        return _priced(costs, self._first_token_there_ns(profile, slot, blocks), micros, carbon, table)

    def _cheapest_in_time(self, options: list[_Option], left_ns: float) -> _Option | None:
        """Return the cheapest option whose first token is expected in time. An unknown price counts as the dearest of
        the others, so that a gap in the price list is no bargain."""
        dearest = max([each.micros for each in options], default=0.0)
        second_micros = self.config.price_of_second * MICROS
        best: _Option | None = None
        best_key = (0.0, 0.0)
        for each in options:
            if each.first_token_ns > left_ns:
                continue
            micros = each.micros if each.micros >= 0 else max(0.0, dearest)
            key = (micros + second_micros * each.cost_ns / _SECOND_NS, each.cost_ns)
            if best is None or key < best_key:
                best, best_key = each, key
        return best

    def _can_save(self, profile: RequestProfile, offer: Offer, best: _Option) -> bool:
        """Return true if the best option adds work to the bill, and the request may wait for a target that does not."""
        fleet, model = self.fleet, profile.model
        found = peer_prices(fleet, best.slot, model) if best.is_peer else self._prices_here(1 << best.slot)
        if not _is_paid_by_use(found):
            return False
        replicas, peers = offer.awaited
        if any(not each.is_per_use for each in self._prices_here(replicas)):
            return True
        known = [peer_prices(fleet, slot, model) for slot in slots_of(peers)]
        return any(each and not _is_paid_by_use(each) for each in known)

    def _prices_here(self, replicas: int) -> list[ReplicaPrice]:
        """Known prices of own replicas of a mask, by region and pool."""
        slots = [next(iter(slots_of(mask & replicas))) for mask in self._alike.values() if mask & replicas]
        return [price for slot in slots if (price := replica_price(self.fleet, slot)) is not None]

    # Own replicas

    def _options_here(self, profile: RequestProfile, offer: Offer, table: PriceTable) -> list[_Option]:
        """Cheapest replica in time of each price: among equal prices, `cost` decides."""
        options: list[_Option] = []
        full_share = 0.0
        for mask in self._alike.values():
            if not mask & offer.replicas:
                continue
            part = offer if len(self._alike) == 1 else _part_of(offer, mask)
            slot, blocks, cost_ns = self._cheapest_replica(profile, part)
            full_share = max(full_share, self._full_share)
            if slot >= 0:
                first_token_ns = self._first_token_here_ns(profile, slot, blocks, offer.held)
                micros = self._micros_here(profile, slot, blocks, table)
                options.append(_Option(slot, blocks, cost_ns, first_token_ns, micros))
        self._full_share = full_share
        return options

    def _first_token_here_ns(self, profile: RequestProfile, slot: int, blocks: int, held: Hold | None) -> float:
        return self._ahead_ns(slot, held) + self._first_token_ns(profile, blocks)

    def _first_token_ns(self, profile: RequestProfile, blocks: int) -> float:
        """Nanoseconds to the first token once it is the request's turn."""
        uncached_bytes = profile.uncached_bytes(blocks)
        return max(self._line.estimate_ns(uncached_bytes), self._byte_ns * uncached_bytes)

    def _micros_here(self, profile: RequestProfile, slot: int, blocks: int, table: PriceTable) -> float:
        price = replica_price(self.fleet, slot)
        if price is None:
            return -1.0
        there = self._egress_micros(profile, self.fleet.replica_region(slot), table)
        return there + table.work_micros(price, self._work(profile, blocks))

    # Peers

    def _options_there(self, profile: RequestProfile, mask: int, table: PriceTable) -> list[_Option]:
        options: list[_Option] = []
        for slot in slots_of(mask):
            blocks = self.fleet.match_peers(profile, 1 << slot).blocks
            if not self._fits_there(profile, slot, blocks):
                continue
            cost_ns = self._peer_costs(profile, slot, blocks).total_ns
            first_token_ns = self._first_token_there_ns(profile, slot, blocks)
            option = _Option(slot, blocks, cost_ns, first_token_ns, self._micros_there(profile, slot, blocks, table))
            option.is_peer = True
            options.append(option)
        return options

    def _first_token_there_ns(self, profile: RequestProfile, slot: int, blocks: int) -> float:
        """Nanoseconds to the first token at a peer. Its replicas are assumed to prefill as fast as own ones; requests
        it accepts meanwhile become known only with its next heartbeat."""
        fleet = self.fleet
        reading_ns = self._byte_ns * fleet.peer_backlog(slot, profile.model)
        ahead_ns = max(reading_ns, fleet.peer_wait_ns(slot, profile.model, appends=profile.appends))
        return fleet.peer_rtt_ns(slot) + ahead_ns + self._first_token_ns(profile, blocks)

    def _micros_there(self, profile: RequestProfile, slot: int, blocks: int, table: PriceTable) -> float:
        """Price at a peer: that of its dearest replica, since the peer chooses among its replicas."""
        prices: list[ReplicaPrice] = peer_prices(self.fleet, slot, profile.model)
        if not prices:
            return -1.0
        work = self._work(profile, blocks)
        dearest = max([table.work_micros(each, work) for each in prices])
        return dearest + self._egress_micros(profile, self.fleet.peer_region(slot), table)

    # Money

    def _work(self, profile: RequestProfile, blocks: int) -> Work:
        reading_ns = self._byte_ns * profile.uncached_bytes(blocks)
        return Work(reading_ns, self._writing_ns or _PRIOR_WRITING_NS)

    def _egress_micros(self, profile: RequestProfile, region: RegionName, table: PriceTable) -> float:
        """Egress: the prompt leaves this region, and the answer leaves the target's."""
        home = self.fleet.region
        if region == home:
            return 0.0
        token_bytes = _STREAMED_TOKEN_BYTES if profile.stream else _TOKEN_BYTES
        answer_bytes = self._caches.output_tokens * token_bytes
        sent = table.egress_micros(home, region, profile.bytes_to_send)
        return sent + table.egress_micros(region, home, answer_bytes)

    # Events

    def joined(self, target: Target, slot: int) -> None:
        super().joined(target, slot)
        if target.kind is TargetKind.REPLICA:
            key = (self.fleet.replica_region(slot), self.fleet.replica_pool(slot))
            self._alike[key] = self._alike.get(key, 0) | 1 << slot

    def left(self, target: Target, slot: int) -> None:
        super().left(target, slot)
        if target.kind is TargetKind.REPLICA:
            kept = {key: mask & ~(1 << slot) for key, mask in self._alike.items()}
            self._alike = {key: mask for key, mask in kept.items() if mask}

    def written(self, took_ns: int) -> None:
        keeps = _KEEPS if self._writing_ns else 0.0
        self._writing_ns = keeps * self._writing_ns + (1 - keeps) * took_ns


def _is_paid_by_use(prices: list[ReplicaPrice]) -> bool:
    return any(each.is_per_use for each in prices)


def _part_of(offer: Offer, mask: int) -> Offer:
    part = Offer(offer.replicas & mask)
    part.held, part.arrived_ns = offer.held, offer.arrived_ns
    return part


def _peer_choice(option: _Option, *, is_remote: bool) -> Choice:
    reason = PlacementReason.REMOTE_PRICE if is_remote else PlacementReason.SIBLING_PRICE
    choice = Choice(option.slot, option.blocks, reason)
    choice.is_peer = True
    return choice


def _priced(costs: Costs, first_token_ns: float, micros: float, carbon: float | None, table: PriceTable) -> Costs:
    money = money_figure(None if micros < 0 else micros, table.prices.currency)
    return replace(costs, further=(first_token_figure(first_token_ns), money, carbon_figure(carbon)))
