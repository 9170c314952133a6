"""A placement policy that takes the target where a request makes replicas emit least CO2, by the price list in force,
as long as that target is not busy; of equal targets the least loaded one.

It compares all targets at once, so a cleaner region is taken although a replica at home has room. A target without an
entry in the list counts as the dirtiest; without prices, all targets do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.core.features.prices.in_force import carbon_figure, peer_prices, replica_price
from gateway.core.features.prices.price_table import ReplicaPrice, Work, work_milligrams
from gateway.core.kernel.bits import slots_of
from gateway.core.kernel.config import PlacementConfig
from gateway.core.kernel.requests import Hold
from gateway.core.placement.fleet import Fleet
from gateway.core.placement.policy import Choice, Offer, Policy
from gateway.core.vocabulary import Costs, PlacementReason, RequestProfile

_LOAD_MAX = 16
_UNKNOWN_MILLIGRAMS = float("inf")
_WORK = Work(reading_ns=0.0, writing_ns=10e9)
"""Work of one request, the same at every target: an answer of ten seconds beside other answers."""


class LeastCarbon(Policy):
    """Policy that avoids targets with `load_max` or more requests a replica while another target has fewer."""

    def __init__(self, fleet: Fleet, config: PlacementConfig) -> None:
        super().__init__(fleet, config)
        self._load_max = int(config.policy_options.get("load_max", _LOAD_MAX))

    @staticmethod
    def check_options(options: Mapping[str, object]) -> None:
        for name, value in options.items():
            if name != "load_max":
                raise ValueError(f"{name} is not known; there is load_max")
            if not isinstance(value, int) or value < 1:
                raise ValueError("load_max should be a number of requests, 1 or more")

    def configure(self, config: PlacementConfig) -> None:
        super().configure(config)
        self._load_max = int(config.policy_options.get("load_max", _LOAD_MAX))

    def takes_full_replicas(self) -> bool:
        return True

    def weigh(self, profile: RequestProfile, offer: Offer, _now_ns: int, /) -> Choice | None:
        found = [*self._here(offer.ready), *self._there(profile, offer.siblings | offer.remotes)]
        if not found:
            return None
        _, _, _, is_peer, slot = min(found)
        choice = Choice(slot, 0, PlacementReason.REMOTE_POLICY if is_peer else PlacementReason.LOCAL_POLICY)
        choice.is_peer = bool(is_peer)
        return choice

    def costs_at_replica(
        self, _profile: RequestProfile, slot: int, _held: Hold | None, _matched_blocks: int = -1
    ) -> Costs | None:
        return _costs(_milligrams_here(self.fleet, slot))

    def costs_at_peer(self, profile: RequestProfile, slot: int, _matched_blocks: int = -1) -> Costs | None:
        return _costs(_milligrams_there(self.fleet, profile, slot))

    def _here(self, mask: int) -> Iterator[tuple[bool, float, float, int, int]]:
        """Rank of each replica: busy or not, CO2, load, 0 for a replica, and its slot."""
        for slot in slots_of(mask):
            load = self.fleet.replica_load(slot)
            yield load >= self._load_max, _milligrams_here(self.fleet, slot), float(load), 0, slot

    def _there(self, profile: RequestProfile, mask: int) -> Iterator[tuple[bool, float, float, int, int]]:
        for slot in slots_of(mask):
            load = self.fleet.peer_load_per_replica(slot, profile.model)
            yield load >= self._load_max, _milligrams_there(self.fleet, profile, slot), load, 1, slot


def _milligrams_here(fleet: Fleet, slot: int) -> float:
    price = replica_price(fleet, slot)
    return _UNKNOWN_MILLIGRAMS if price is None else work_milligrams(price, _WORK)


def _milligrams_there(fleet: Fleet, profile: RequestProfile, slot: int) -> float:
    """CO2 at a gateway in milligrams: that of its dirtiest replicas, since it chooses among them itself."""
    prices: list[ReplicaPrice] = peer_prices(fleet, slot, profile.model)
    return max((work_milligrams(each, _WORK) for each in prices), default=_UNKNOWN_MILLIGRAMS)


def _costs(milligrams: float) -> Costs | None:
    """Costs as the decision record shows them; None where the list does not say."""
    return None if milligrams == _UNKNOWN_MILLIGRAMS else Costs(further=(carbon_figure(milligrams),))
