"""Expert locality's own event."""

from __future__ import annotations

from gateway.core.kernel.events import FeatureEvent
from gateway.core.vocabulary import PoolName


class ArtifactReady(FeatureEvent, frozen=True):
    """Locality artifact of a pool, by which requests are compared with decode workers' experts. Its arrays stay at the
    edge, which compares; the core is told the number of clusters here, and cosines with each request."""

    pool: PoolName
    digest: str
    """Digest of the artifact; empty: the pool has none."""
    clusters: int
