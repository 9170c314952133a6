"""State machine of a request, from its arrival to the end of its last leg, and the state that it holds.

A request is tried in numbered attempts, one at a time; an attempt has one leg or several. This module never decides
where a request goes.

           placed            first token
    WAITING ────► RUNNING ──────────────► ANSWERING
       ▲ │          │ │                     │ │
       │ │     retry│ │   answer broke, resumes
       ├─┼──────────┘ │                     │ │
       └─┼────────────┼─────────────────────┘ │
         └────────────┴──────► ENDED ◄────────┘
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gateway.core.decode_pools import DecodePool
from gateway.core.events import LegEnded
from gateway.core.fair_shares import Charge
from gateway.core.peers import PeerState
from gateway.core.pools import PoolFit
from gateway.core.replicas import ReplicaState
from gateway.core.timers import Timer, TimerKind
from gateway.core.token_budget import Estimate
from gateway.core.vocabulary import (
    ALL_CONNECTORS,
    Connector,
    GatewayId,
    Hops,
    LegResult,
    LegRole,
    ModelName,
    Outcome,
    Place,
    PlaceRule,
    PoolName,
    RequestProfile,
    ResidencyStamp,
    ServiceClass,
    Target,
    Word,
)


class ClassTargets:
    """Masks of the targets that one request class may go to, with the versions of the target sets they were computed
    from."""

    __slots__ = (
        "available_peers",
        "config",
        "eligible_replicas",
        "peers_version",
        "preferred_replicas",
        "replicas_version",
    )

    def __init__(self, config: object) -> None:
        self.config = config
        """Placement config that the masks were computed under."""
        self.replicas_version = -1
        self.eligible_replicas = 0
        """Mask of the eligible replicas, in any pool that takes the class."""
        self.preferred_replicas = 0
        """Mask of the eligible replicas in the class's preferred pool."""
        self.peers_version = -1
        self.available_peers = 0


@dataclass(slots=True)
class RequestClass:
    """All properties of a request that decide its eligible targets. Immutable once made, because it is a dictionary
    key."""

    model: ModelName
    rule: PlaceRule
    may_stay_in_region: bool
    """The request may go to another gateway of this region."""
    may_cross_regions: bool
    failed_replicas: int = 0
    """Slots of the replicas where an attempt of this request failed; they are avoided while another target exists. The
    request itself remembers targets, not slots: a new target in the same slot is not blamed."""
    failed_peers: int = 0
    pinned: Target | None = None
    """Only target that may serve it: the one that has the stored response it refers to."""
    is_control: bool = False
    """The request needs a target that answers, not an available one."""
    connectors: frozenset[Connector] = ALL_CONNECTORS
    """Connectors that can hand the request over from prefill to decode worker."""
    origin: Place | None = None
    """Place where the request arrived, set while some replicas accept only certain origins; None: irrelevant."""
    fit: PoolFit | None = None
    """Pools that the request fits into by its token budget; None: any."""
    goes_on: bool = False
    """The request continues a text and needs a replica that can."""
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    """Service class; every class but interactive goes only to targets with spare room."""
    _hash: int = field(init=False, compare=False, repr=False, default=0)
    targets: ClassTargets | None = field(init=False, compare=False, repr=False, default=None)
    """Masks of its eligible targets, cached by `Eligibility` until the fleet changes."""

    def __hash__(self) -> int:
        """Hash computed once: the class is looked up several times per request and never changes."""
        if not self._hash:
            told = (self.model, self.rule, self.may_stay_in_region, self.may_cross_regions)
            own = (
                self.failed_replicas,
                self.failed_peers,
                self.pinned,
                self.is_control,
                self.connectors,
                self.origin,
                self.fit,
                self.goes_on,
                self.service_class,
            )
            self._hash = hash((told, own))
        return self._hash

    @property
    def service_rank(self) -> int:
        return self.service_class.rank


class Phase(Word):
    WAITING = "waiting"
    """Waiting in the queue, without a leg."""
    RUNNING = "running"
    """Legs are open; the client has received nothing of this attempt, so the request may be retried elsewhere."""
    ANSWERING = "answering"
    """The client has received a first token: no retry is possible, only resumption by another target if the answer
    breaks."""
    ENDED = "ended"
    """Over for the client; legs may still have to report their end."""


PHASES_AFTER: Final = {
    Phase.WAITING: frozenset({Phase.RUNNING, Phase.ENDED}),
    Phase.RUNNING: frozenset({Phase.WAITING, Phase.ANSWERING, Phase.ENDED}),
    Phase.ANSWERING: frozenset({Phase.WAITING, Phase.ENDED}),
    Phase.ENDED: frozenset[Phase](),
}
"""Allowed transitions: the phases that may follow each phase."""


class Hold:
    """A request's wait for one particular replica, the cheapest for it although that replica is busy."""

    __slots__ = ("beginning", "is_cold", "is_next", "slot", "uncached_bytes")

    def __init__(self, slot: int, uncached_bytes: int, beginning: bytes, *, is_cold: bool = False) -> None:
        self.slot = slot
        self.is_next = False
        """Under fair sharing it is this request's turn, regardless of requests held for longer."""
        self.is_cold = is_cold
        """Held because its prompt would evict cached data there that is still wanted. Such requests form a separate
        queue: requests that wait for the replica's compute do not wait behind them."""
        self.uncached_bytes = uncached_bytes
        """Prompt bytes that the replica would have to prefill."""
        self.beginning = beginning
        """Hash of the last prompt block that the replica has cached; empty if it has none. For a request that follows a
        stored response, that response's key."""


class LegState:
    """One connection to one target, alive until its LegEnded event."""

    __slots__ = (
        "first_token_ns",
        "is_stopping",
        "is_withdrawn",
        "kept_blocks",
        "number",
        "role",
        "started_ns",
        "state",
        "stop_detail",
        "target",
        "uncached_bytes",
    )

    def __init__(
        self, number: int, role: LegRole, state: ReplicaState | PeerState, started_ns: int, kept_blocks: int
    ) -> None:
        self.number = number
        self.role = role
        self.state = state
        self.target = state.target
        self.started_ns = started_ns
        self.first_token_ns: int | None = None
        """Time of the first token, if a replica of this gateway gave it."""
        self.kept_blocks = kept_blocks
        """Prefix blocks that the index already had for this target; a refusal removes only the blocks added since."""
        self.uncached_bytes = 0
        """Bytes of the prompt that the target has to prefill."""
        self.is_stopping = False
        self.stop_detail = ""
        """Reason why this gateway stopped the leg for a fault of the target; its CANCELLED end then counts as the
        target's failure."""
        self.is_withdrawn = False
        """Withdrawn by this gateway through no fault of the peer."""


class LegEnd:
    """End of a leg, interpreted in the light of what this gateway had ordered the leg to do."""

    __slots__ = ("detail", "event", "leg", "result")

    def __init__(self, leg: LegState, result: LegResult, detail: str, event: LegEnded) -> None:
        self.leg = leg
        self.result = result
        self.detail = detail
        self.event = event
        """End as the driver reported it."""

    @property
    def in_words(self) -> str:
        return f"{self.leg.target}: {self.detail or self.result}"


class Rejected:
    """Rejection of a client's request by a feature."""

    __slots__ = ("detail", "outcome", "retry_after_ns")

    def __init__(self, outcome: Outcome, detail: str, retry_after_ns: int) -> None:
        self.outcome = outcome
        self.detail = detail
        self.retry_after_ns = retry_after_ns
        """Time after which the request would be admitted; 0: not known."""


class Part:
    """Part of a request that one leg runs in a disaggregated pool."""

    __slots__ = ("connector", "pool", "prefill")

    def __init__(self, connector: Connector | None, pool: PoolName, prefill: Target | None) -> None:
        self.connector = connector
        self.pool = pool
        self.prefill = prefill
        """Prefill worker to fetch the KV cache from, for a leg that decodes."""


class LegPlanner:
    """Plans the legs of an attempt in place of the core, which would open one leg that runs the whole request. An
    optional feature is one."""

    def part_of(self, attempt: AttemptState, leg: LegState, /) -> Part:
        """Part of the request that this leg runs, and what its engine needs for that."""
        raise NotImplementedError

    def first_token(self, request: RequestState, leg: LegState, /) -> bool:  # noqa: ARG002
        """Take in the first token of a leg. Return true if its time says nothing of prefill."""
        return False

    def leg_ended(
        self, request: RequestState, attempt: AttemptState, leg: LegState, event: LegEnded, now_ns: int, /
    ) -> None:
        """Take in the end of a leg, before the core concludes what it means for the request."""

    def withdraw(self, request: RequestState, attempt: AttemptState, /) -> None:
        """Stop planning an attempt that waits between its legs: its request ends, or is tried again."""
        raise NotImplementedError

    def what_it_lacks(self) -> str:
        """Reason why an attempt waits between its legs, in words."""
        raise NotImplementedError

    def why_it_stopped(self, attempt: AttemptState, /) -> str:
        """Reason why an attempt is over whose legs neither failed nor completed the request."""
        raise NotImplementedError


class AttemptState:
    """One numbered try of one request, alive until the last of its legs has ended."""

    __slots__ = (
        "failures",
        "is_between_legs",
        "is_retained",
        "legs",
        "legs_opened",
        "number",
        "planner",
        "pool",
        "prefill",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.legs: dict[int, LegState] = {}
        """Live legs, by number."""
        self.legs_opened = 0
        self.failures: list[LegEnd] = []
        """Failed legs from before the client received anything. Once there is one, the remaining legs are being
        stopped."""
        self.planner: LegPlanner | None = None
        """Planner of the attempt's legs; None: its one leg runs the whole request."""
        self.prefill: ReplicaState | None = None
        """Prefill worker of the attempt, in a disaggregated pool."""
        self.pool: DecodePool | None = None
        self.is_retained = False
        """The prefill worker keeps the prompt's KV cache until the decode worker has begun."""
        self.is_between_legs = False
        """The attempt is alive without a leg: the prompt is prefilled, and no decode worker is chosen yet."""

    @property
    def is_over(self) -> bool:
        return not self.legs and not self.is_between_legs


class RequestState:
    """A request from its arrival to the end of its last attempt."""

    __slots__ = (
        "arrival_number",
        "arrived_ns",
        "attempt",
        "attempts",
        "barred_at",
        "budget",
        "busy_answers",
        "charge",
        "deadline_ns",
        "failed_at",
        "failures",
        "first_token_ns",
        "has_begun",
        "held",
        "hops",
        "is_queued",
        "is_too_long",
        "last_failure",
        "leaves_room",
        "origin_gateway_id",
        "parts",
        "phase",
        "profile",
        "promotion_ns",
        "queue_deadline_ns",
        "refusals",
        "refused_tokens",
        "request_class",
        "request_id",
        "stamp",
        "timer",
        "was_too_long_before",
    )

    def __init__(
        self,
        profile: RequestProfile,
        request_class: RequestClass,
        *,
        arrival_number: int,
        arrived_ns: int,
        deadline_ns: int,
        queue_deadline_ns: int,
        stamp: ResidencyStamp,
        hops: Hops,
        origin_gateway_id: GatewayId | None,
        budget: Estimate | None = None,
        promotion_ns: int | None = None,
    ) -> None:
        self.profile, self.request_id, self.request_class = profile, profile.request_id, request_class
        self.arrival_number, self.arrived_ns = arrival_number, arrived_ns
        self.deadline_ns = deadline_ns
        self.queue_deadline_ns = queue_deadline_ns
        self.promotion_ns = promotion_ns
        """Time from which it is served like an interactive request if it still waits. None: never, or it is
        interactive."""
        self.first_token_ns: int | None = None
        self.stamp, self.hops = stamp, hops
        self.origin_gateway_id = origin_gateway_id
        """Gateway that forwarded the request to this one; None: it came from a client."""
        self.timer = Timer(TimerKind.REQUEST, profile.request_id)
        self.phase = Phase.WAITING
        self.is_queued = False
        """The request is in a queue; only the waiting room changes this."""
        self.attempt: AttemptState | None = None
        self.held: Hold | None = None
        """Replica that the waiting request is held for; None: it waits for any."""
        self.failed_at: tuple[Target, ...] = ()
        """Targets that failed it, including targets that have left the assignment or returned to it since."""
        self.barred_at: tuple[Target, ...] = ()
        """Targets in `failed_at` that the request does not wait for: refused there by residency policy or stamp, or, at
        a peer, for its length."""
        self.charge: Charge | None = None
        """Fair-share charge on its tenant's counter; None until the request first waits."""
        self.budget = budget
        """Estimated token budget; None: not needed."""
        self.parts: dict[str, object] | None = None
        """State that optional features keep with the request, by name; None while there is none."""
        self.has_begun = False
        """True if the client has part of the answer of an attempt that was made here, and what follows continues it.
        The rest of an answer that began at another gateway is a request like any other."""
        self.refused_tokens = 0
        """Context window of an engine that refused it for its length; 0: none has."""
        self.is_too_long = self.was_too_long_before = False
        """An engine or a peer refused it for its length; `was_too_long_before`: it was retried after such a refusal."""
        self.attempts = self.failures = self.refusals = self.busy_answers = 0
        self.last_failure = ""
        self.leaves_room = False
        """True if the request leaves room for others, since its tenant has more than its share, as of the last look."""

    def keep(self, feature: str, part: object) -> None:
        """Keep a feature's state with the request."""
        if self.parts is None:
            self.parts = {}
        self.parts[feature] = part

    def move_to(self, phase: Phase) -> None:
        assert phase in PHASES_AFTER[self.phase], f"{self.request_id} goes from {self.phase} to {phase}"
        self.phase = phase

    @property
    def next_deadline_ns(self) -> int:
        """Queue deadline or own deadline, whichever comes first, while it waits; its own deadline afterwards."""
        if self.phase is Phase.WAITING:
            return min(self.queue_deadline_ns, self.deadline_ns)
        return self.deadline_ns

    @property
    def wakes_ns(self) -> int:
        """Time at which the waiting request is looked at again at the latest."""
        promotion_ns = self.promotion_ns
        return self.next_deadline_ns if promotion_ns is None else min(promotion_ns, self.next_deadline_ns)
