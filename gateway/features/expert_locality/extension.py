"""Compares requests with the expert-locality artifacts of disaggregated pools, and tells the core which artifacts are
in force. It only wires: the core judges which workers are near enough, and a gateway without an artifact keeps serving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import ClassVar

from gateway.config.orders import Orders
from gateway.config.sections import GatewayConfig
from gateway.core.features.disaggregated.config import LOCAL_POLICIES
from gateway.core.features.disaggregated.feature import decode_pools_of
from gateway.core.features.expert_locality.events import ArtifactReady
from gateway.core.features.expert_locality.signature import Comparer
from gateway.core.nearness import Nearness, SignatureState
from gateway.core.vocabulary import PoolName
from gateway.features.expert_locality.config import ExpertLocalityConfig, locality_of
from gateway.features.expert_locality.expert_counts import BadCounts, read_counts
from gateway.features.expert_locality.keeper import LocalityKeeper
from gateway.features.extension import Extension, Host
from mesh.series import Label
from mesh.supervisor import OwnedLoops, Supervisor


class ExpertLocalityExtension(Extension):
    """Keepers of artifacts, one for each pool that names an artifact: own pools and adopted ones."""

    name = "expert_locality"
    labels: ClassVar = {
        ("nightside_decode_signatures_total", "state"): Label("State of the signature.", tuple(SignatureState)),
    }

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        self._config = config
        self._host = host
        self._loops: OwnedLoops | None = None
        self._has_begun = False
        self._wanted: dict[PoolName, ExpertLocalityConfig] = {}
        """Pools that name an artifact, by the config and the orders in force."""
        self._followed: dict[PoolName, ExpertLocalityConfig] = {}
        self._comparers: dict[PoolName, Comparer] = {}
        self._keepers: dict[PoolName, LocalityKeeper] = {}
        self._stops: dict[PoolName, Callable[[], object]] = {}
        self.compare = self.nearness

    def apply(self, config: GatewayConfig, orders: Orders, /) -> None:
        self._config = config
        told = ((spec.name, locality_of(spec)) for spec in orders.pools)
        self._wanted = {name: locality for name, locality in told if locality is not None}
        if self._has_begun:
            self._follow()

    def run(self, loops: Supervisor, tenure: OwnedLoops, /) -> None:  # noqa: ARG002
        self._loops = tenure

    def begin(self) -> None:
        """Start the keepers, once the core has the first pools."""
        self._has_begun = True
        self._follow()

    def _follow(self) -> None:
        """Keep the artifacts of the wanted pools, and of no others."""
        for name, config in list(self._followed.items()):
            if self._wanted.get(name) != config:
                self._leave(name)
        for name, config in self._wanted.items():
            if name not in self._followed:
                self._begin(name, config)

    def _leave(self, name: PoolName) -> None:
        self._stops.pop(name)()
        del self._followed[name], self._keepers[name]
        if self._comparers.pop(name, None) is not None:
            self._host.submit(ArtifactReady(name, "", 0))

    def _begin(self, name: PoolName, config: ExpertLocalityConfig) -> None:
        assert self._loops is not None, "loops run before requests are served"
        self._followed[name] = config
        keeper = self._keepers[name] = LocalityKeeper(
            self._config.gateway_id,
            name,
            config,
            self._config.state.folder,
            clock=self._host.clock,
            log=self._host.log,
        )
        run = partial(keeper.run, self._groups_of(name), partial(self._take, keeper, name))
        self._stops[name] = self._loops.run("locality", run)

    def _take(self, keeper: LocalityKeeper, pool: PoolName, comparer: Comparer) -> None:
        if self._keepers.get(pool) is keeper:
            self.take(pool, comparer)

    def take(self, pool: PoolName, comparer: Comparer) -> None:
        """Put an artifact in force and tell the core in the same turn of the event loop, so that no request is compared
        with an artifact that the core does not know."""
        self._comparers[pool] = comparer
        self._host.submit(ArtifactReady(pool, comparer.digest, comparer.clusters))

    def nearness(self, pool: PoolName, counts: bytes) -> Nearness | None:
        """Nearness of a request by the expert counts of its prefill, given as received. None where no policy uses it,
        or without counts."""
        comparer = self._comparers.get(pool)
        if comparer is None or not counts:
            return None
        there = decode_pools_of(self._host.core).get(pool)
        if there is None or there.config.policy not in LOCAL_POLICIES:
            return None
        try:
            told = read_counts(counts)
        except BadCounts:
            return Nearness(SignatureState.MALFORMED)
        return comparer.nearness(told.counts, told.model)

    def describe(self) -> dict[str, object]:
        return {name: keeper.describe() for name, keeper in self._keepers.items()}

    def refits(self) -> Iterable[tuple[PoolName, int, int]]:
        """Pools with their successful and failed refits."""
        return [(name, keeper.refits, keeper.failures) for name, keeper in self._keepers.items()]

    def _groups_of(self, name: PoolName) -> Callable[[], int]:
        def groups() -> int:
            pool = decode_pools_of(self._host.core).get(name)
            return 0 if pool is None else pool.tier.seats.groups

        return groups
