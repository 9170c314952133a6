"""Compares requests with the expert-locality artifacts of disaggregated pools, and tells the core which artifacts are
in force. It only wires: the core judges which workers are near enough, and a gateway without an artifact keeps serving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import ClassVar

from gateway.config.sections import GatewayConfig
from gateway.core.config import all_of
from gateway.core.features.disaggregated.config import LOCAL_POLICIES
from gateway.core.features.disaggregated.feature import decode_pools_of
from gateway.core.features.expert_locality.events import ArtifactReady
from gateway.core.features.expert_locality.signature import Comparer
from gateway.core.nearness import Nearness, SignatureState
from gateway.core.vocabulary import PoolName
from gateway.features.expert_locality.expert_counts import BadCounts, read_counts
from gateway.features.expert_locality.keeper import LocalityKeeper
from gateway.features.extension import Extension, Host
from mesh.series import Label
from mesh.supervisor import OwnedLoops, Supervisor


class ExpertLocalityExtension(Extension):
    """Keepers of artifacts, one for each pool that the region file names an artifact for."""

    name = "expert_locality"
    state_key = "locality"
    labels: ClassVar = {
        ("nightside_decode_signatures_total", "state"): Label("State of the signature.", tuple(SignatureState)),
    }

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        self._config = config
        self._host = host
        self._loops: OwnedLoops | None = None
        self._comparers: dict[PoolName, Comparer] = {}
        self._keepers: dict[PoolName, LocalityKeeper] = {}
        if config.locality.pools:
            self.compare = self.nearness

    def run(self, loops: Supervisor, tenure: OwnedLoops, /) -> None:  # noqa: ARG002
        self._loops = tenure

    def begin(self) -> None:
        """Start the keepers, once the core has the first pools."""
        assert self._loops is not None, "loops run before requests are served"
        locality = self._config.locality
        for files in locality.pools:
            keeper = LocalityKeeper(
                self._config.gateway_id,
                files,
                locality,
                self._config.state.folder,
                clock=self._host.clock,
                log=self._host.log,
            )
            self._keepers[files.pool] = keeper
            self._loops.run(
                "locality", partial(keeper.run, self._groups_of(files.pool), partial(self.take, files.pool))
            )

    def take(self, pool: PoolName, comparer: Comparer) -> None:
        """Put an artifact in force and tell the core in the same turn of the event loop, so that no request is compared
        with an artifact that the core does not know."""
        self._comparers[pool] = comparer
        self._host.submit(ArtifactReady(pool, comparer.digest, comparer.clusters))

    def nearness(self, pool: PoolName, counts: bytes) -> Nearness | None:
        """Nearness of a request by the expert counts of its prefill, given as received. None where no policy uses it,
        or without counts."""
        comparer = self._comparers.get(pool)
        if comparer is None or not counts or all_of(self._host.core.config).decode.policy not in LOCAL_POLICIES:
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
