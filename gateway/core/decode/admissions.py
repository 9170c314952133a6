"""What the decode tier answers: who goes where and why, and the figures of a pool. Values, and nothing else."""

from __future__ import annotations

from gateway.core.decode.locality.nearness import SignatureState
from gateway.core.value import value
from gateway.core.vocabulary import ReplicaId, RequestId, Word


class AdmissionReason(Word):
    POLICY = "policy"
    """A baseline's choice."""
    AGED = "aged"
    """It had waited for half of its time, and went first."""
    GREEDY = "greedy"
    """Many slots were free: the one request that fits the emptiest worker best (stage 1)."""
    SUBSET = "subset"
    """One of those that together fit the worker best (stage 2)."""
    SINGLE = "single"
    """Nothing fits: the one that does least harm (the end of stage 2)."""
    BYPASS = "bypass"
    """Sent at once, without a turn in the pool."""
    COMMITTED = "committed"
    """Chosen before its prompt was read."""


@value
class WorkerView:
    """A decode worker as it stood when it was looked at."""

    worker_id: ReplicaId
    group: str
    free_slots: int
    load_tokens: int
    margin_tokens: int
    """How much less that is than what the fullest of its group has."""


@value
class Admission:
    key: RequestId
    worker_id: ReplicaId
    reason: AdmissionReason
    waited_ns: int
    considered: tuple[WorkerView, ...] = ()
    """The chosen one first, then those that had most room when the tick began."""


@value
class GroupFigures:
    name: str
    workers: int
    free_slots: int
    """Of those that may be sent something."""
    load_max: int
    load_min: int
    deficit: int
    """How far all are below the fullest, together: Σ (L_max − L_g)."""

    @property
    def imbalance(self) -> int:
        """As the paper reports it (§6.1)."""
        return self.load_max - self.load_min


@value
class DecodeFigures:
    groups: tuple[GroupFigures, ...]
    pooled: int
    oldest_age_ns: int
    """Of those that wait; 0: nobody does."""
    dispatched: int
    """Sent, and has generated nothing yet."""
    running: int
    inherited: int
    free_slots: int
    admitted: dict[AdmissionReason, int]
    """Since the tier began, as the next three."""
    expired: int
    ticks: int
    ticks_degraded: int
    """Went on without the predictor that the policy asks for."""
    is_degraded: bool
    """The last one did."""
    signatures: dict[SignatureState, int]
    """Since the tier began, of those sent by a policy that goes by them."""
    clusters: int
    """Of the artifact in force; 0: there is none."""
    unseated: int
    """Groups of workers for which that has no centroid."""
