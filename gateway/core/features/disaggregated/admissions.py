"""Results of the decode tier: which request goes to which worker and why, and the figures of a pool. Values only."""

from __future__ import annotations

from msgspec import Struct

from gateway.core.nearness import SignatureState
from gateway.core.vocabulary import ReplicaId, RequestId, Word


class AdmissionReason(Word):
    POLICY = "policy"
    """Chosen by a baseline."""
    AGED = "aged"
    """Sent first because it had waited for half of its time."""
    GREEDY = "greedy"
    """Many slots were free: the one request that fits the emptiest worker best (stage 1)."""
    SUBSET = "subset"
    """One of the requests that together fit the worker best (stage 2)."""
    SINGLE = "single"
    """No subset scores above 0: the one request that does least harm (end of stage 2). For a worker in a group of its
    own: the oldest request that fits."""
    BYPASS = "bypass"
    """Sent at once, without waiting in the pool."""
    COMMITTED = "committed"
    """Chosen before its prompt was prefilled."""


class WorkerView(Struct, frozen=True):
    """Load of a decode worker when it was considered."""

    worker_id: ReplicaId
    group: str
    free_slots: int
    load_tokens: int
    margin_tokens: int
    """Difference between the load of the group's fullest worker and this load."""


class DecodeAdmission(Struct, frozen=True):
    key: RequestId
    worker_id: ReplicaId
    reason: AdmissionReason
    waited_ns: int
    considered: tuple[WorkerView, ...] = ()
    """The chosen worker first, then those with most room when the tick began."""


class GroupFigures(Struct, frozen=True):
    name: str
    workers: int
    free_slots: int
    """Free slots of the workers that may be sent requests."""
    load_max: int
    load_min: int
    deficit: int
    """Total distance of all workers from the fullest: Σ (L_max − L_g)."""

    @property
    def imbalance(self) -> int:
        """Imbalance as the paper reports it (§6.1)."""
        return self.load_max - self.load_min


class DecodeFigures(Struct, frozen=True):
    groups: tuple[GroupFigures, ...]
    pooled: int
    oldest_age_ns: int
    """Age of the oldest waiting entry; 0: none waits."""
    dispatched: int
    """Entries sent to a worker that have generated no token yet."""
    running: int
    inherited: int
    free_slots: int
    admitted: dict[AdmissionReason, int]
    """Admissions since the tier began; the next three figures count from there too."""
    expired: int
    ticks: int
    ticks_degraded: int
    """Ticks that ran without the predictor that the policy needs."""
    is_degraded: bool
    """The last tick was degraded, and no other predictor has come since."""
    signatures: dict[SignatureState, int]
    """Requests since the tier began that a locality policy sent, by the state of their signature."""
    clusters: int
    """Clusters of the artifact in force; 0: there is none."""
    unseated: int
    """Groups of workers without a centroid in the artifact."""
