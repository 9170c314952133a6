"""A request from its arrival to the end of its last leg: a small state machine, and what it holds meanwhile.

A request is tried in numbered attempts, one at a time; an attempt runs in one leg or in several. Nothing here decides
where a request goes.

           placed            first token
    WAITING ────► RUNNING ──────────────► ANSWERING
       ▲ │          │ │                     │ │
       │ │ try again│ │        it broke, and goes on
       ├─┼──────────┘ │                     │ │
       └─┼────────────┼─────────────────────┘ │
         └────────────┴──────► ENDED ◄────────┘
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gateway.core.decode_pools import DecodePool
from gateway.core.fair_shares import Charge
from gateway.core.peers import PeerState
from gateway.core.pools import PoolFit
from gateway.core.replicas import ReplicaState
from gateway.core.tenant_meter import TenantMeter
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
    Place,
    PlaceRule,
    RefusalReason,
    RequestProfile,
    ResidencyStamp,
    Resumes,
    ServiceClass,
    Target,
    Word,
)


class ClassTargets:
    """Masks of the targets that one class may go to, and the versions of the sets that they were found in."""

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
        """Placement settings that they were found under."""
        self.replicas_version = -1
        self.eligible_replicas = 0
        """In whatever pool that takes it."""
        self.preferred_replicas = 0
        """Those among them in the pool that it is meant for."""
        self.peers_version = -1
        self.available_peers = 0


@dataclass(slots=True)
class RequestClass:
    """Everything that decides which targets a request may go to. Never changed once it is made: it is a key of maps."""

    model: ModelName
    rule: PlaceRule
    may_stay_in_region: bool
    """May go to another gateway of this region."""
    may_cross_regions: bool
    failed_replicas: int = 0
    """Slots of those where an attempt of this very request failed; it goes elsewhere if there is an elsewhere. What
    the request remembers are the targets: whoever takes over a slot answers for nobody."""
    failed_peers: int = 0
    pinned: Target | None = None
    """The one target that has the stored response it refers to."""
    is_control: bool = False
    """Needs a target that answers, not one that is free."""
    connectors: frozenset[Connector] = ALL_CONNECTORS
    """Prefill workers will do whose pool hands over by one of these."""
    origin: Place | None = None
    """Where it arrived, while we have replicas that do not take everything; None: nobody asks."""
    fit: PoolFit | None = None
    """Into which pools it fits, by its budget; None: nobody asks."""
    goes_on: bool = False
    """Only replicas will do that continue a text."""
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    """What it is served as: any other goes where there is room to spare."""
    _hash: int = field(init=False, compare=False, repr=False, default=0)
    targets: ClassTargets | None = field(init=False, compare=False, repr=False, default=None)
    """Masks of the targets that it may go to, kept by `Eligibility` until the fleet changes."""

    def __hash__(self) -> int:
        """It is looked up several times for each request, and the same all its life."""
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
    """In the queue, without a leg."""
    RUNNING = "running"
    """Legs are open; the client has nothing of this attempt yet, so it may still be tried elsewhere."""
    ANSWERING = "answering"
    """The client has had a first token: there is no retry any more, only somebody who goes on where it breaks."""
    ENDED = "ended"
    """Over for the client; legs may still have to report their end."""


PHASES_AFTER: Final = {
    Phase.WAITING: frozenset({Phase.RUNNING, Phase.ENDED}),
    Phase.RUNNING: frozenset({Phase.WAITING, Phase.ANSWERING, Phase.ENDED}),
    Phase.ANSWERING: frozenset({Phase.WAITING, Phase.ENDED}),
    Phase.ENDED: frozenset[Phase](),
}
"""The whole life of a request: which phase may follow on which."""


class Hold:
    """That a request waits here for one replica, which is cheapest for it although it has something to do first."""

    __slots__ = ("beginning", "is_cold", "is_next", "slot", "uncached_bytes")

    def __init__(self, slot: int, uncached_bytes: int, beginning: bytes, *, is_cold: bool = False) -> None:
        self.slot = slot
        self.is_next = False
        """Of tenants who share, it is this one's turn, whoever has been held for longer."""
        self.is_cold = is_cold
        """For what it would push out of the replica's cache. Those are a queue of their own: who waits for the
        replica's time does not wait behind them."""
        self.uncached_bytes = uncached_bytes
        """What it brings the replica to read."""
        self.beginning = beginning
        """The last hash of what the replica knows of the prompt; empty if it knows nothing of it. Of what follows a
        stored response, that one's key."""


class LegState:
    """One connection to one target, alive until its LegEnded."""

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
        """When a replica of ours gave it."""
        self.kept_blocks = kept_blocks
        """How much of the prefix the index had for this target before: a refusal takes back only what was added."""
        self.uncached_bytes = 0
        """What it has to read of this prompt."""
        self.is_stopping = False
        self.stop_detail = ""
        """Why we ordered it to stop for what it did or did not do; then its CANCELLED is a failure of the target."""
        self.is_withdrawn = False
        """We took the forward back, through no fault of the peer."""


class LegEnd:
    """How a leg ended, judged by what we had ordered it to do."""

    __slots__ = ("detail", "has_reached", "is_final", "leg", "refusal", "rest", "result", "resumes_used")

    def __init__(
        self,
        leg: LegState,
        result: LegResult,
        detail: str,
        refusal: RefusalReason | None,
        *,
        rest: RequestProfile | None = None,
        is_final: bool = False,
        has_reached: bool = True,
        resumes_used: Resumes | None = None,
    ) -> None:
        self.leg = leg
        self.result = result
        self.detail = detail
        self.refusal = refusal
        self.rest = rest
        """Of an answer that broke, what is left to do."""
        self.is_final = is_final
        self.has_reached = has_reached
        self.resumes_used = resumes_used
        """There, of a peer that says so."""

    @property
    def in_words(self) -> str:
        return f"{self.leg.target}: {self.detail or self.result}"


class AttemptState:
    """One numbered try of one request, alive until the last of its legs has ended."""

    __slots__ = ("failures", "is_pooled", "is_retained", "legs", "legs_opened", "number", "pool", "prefill")

    def __init__(self, number: int) -> None:
        self.number = number
        self.legs: dict[int, LegState] = {}
        """Those alive, by number."""
        self.legs_opened = 0
        self.failures: list[LegEnd] = []
        """Of its legs, before the client had anything. Once there is one, what still lives is on its way out."""
        self.prefill: ReplicaState | None = None
        """In a disaggregated pool: who reads the prompt, or has read it."""
        self.pool: DecodePool | None = None
        self.is_retained = False
        """The prefill worker keeps what it has read, until the decode worker has begun."""
        self.is_pooled = False
        """The prompt has been read, and no decode worker is chosen yet: it lives without a leg."""

    @property
    def is_over(self) -> bool:
        return not self.legs and not self.is_pooled


class RequestState:
    """A request from arrival to the end of its last attempt."""

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
        "first_step_deaths",
        "first_token_ns",
        "held",
        "hops",
        "is_poison",
        "is_queued",
        "is_too_long",
        "last_failure",
        "leaves_room",
        "meter",
        "origin_gateway_id",
        "phase",
        "profile",
        "promotion_ns",
        "queue_deadline_ns",
        "refusals",
        "refused_tokens",
        "request_class",
        "request_id",
        "resumes",
        "resumes_begun",
        "resumes_left",
        "stamp",
        "timer",
        "was_shadowed",
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
        resumes_left: Resumes | None = None,
        promotion_ns: int | None = None,
        meter: TenantMeter | None = None,
    ) -> None:
        self.profile, self.request_id, self.request_class = profile, profile.request_id, request_class
        self.arrival_number, self.arrived_ns = arrival_number, arrived_ns
        self.deadline_ns = deadline_ns
        self.queue_deadline_ns = queue_deadline_ns
        self.promotion_ns = promotion_ns
        """Still waiting then, it is served like what is interactive. None: it is, or never will be."""
        self.first_token_ns: int | None = None
        self.stamp, self.hops = stamp, hops
        self.origin_gateway_id = origin_gateway_id
        """The gateway that forwarded it to us; None for a client's own request."""
        self.timer = Timer(TimerKind.REQUEST, profile.request_id)
        self.phase = Phase.WAITING
        self.is_queued = False
        """It stands in a queue; only the waiting room changes this."""
        self.attempt: AttemptState | None = None
        self.held: Hold | None = None
        """While it waits: for which replica, if it waits for one and no other."""
        self.failed_at: tuple[Target, ...] = ()
        """Targets that failed it, also those that are no longer or not again ours."""
        self.barred_at: tuple[Target, ...] = ()
        """Those among them whose own policy, or its stamp, kept it out: they are not waited for."""
        self.charge: Charge | None = None
        """What its tenant has for it on its counter; None until it first waits, as everybody does."""
        self.budget = budget
        """What it is taken to come to; None: nobody asks."""
        self.meter = meter
        """Of its tenant, where that has limits; None of a forward, which counts where it came in."""
        self.refused_tokens = 0
        """What an engine takes that refused it for its length; 0: none has."""
        self.is_too_long = self.was_too_long_before = False
        """An engine, or another gateway, has refused it for its length; and it was tried again for that."""
        self.attempts = self.failures = self.refusals = self.busy_answers = 0
        self.last_failure = ""
        self.was_shadowed = self.is_poison = self.leaves_room = False  # the last, when it was looked at last
        self.resumes = self.resumes_begun = 0
        """How often its answer broke and was to go on, here and wherever it was forwarded: once it is no more 0, the
        client has a part of an answer. And how often of these somebody was asked to."""
        self.resumes_left = resumes_left
        """What whoever forwarded it to us allows of that; None: it does not say, or is nobody."""
        self.first_step_deaths = 0 if resumes_left is None else resumes_left.first_step_deaths
        """Engines that failed its rest before their first token, since it last broke, here or before it came here."""

    def move_to(self, phase: Phase) -> None:
        assert phase in PHASES_AFTER[self.phase], f"{self.request_id} goes from {self.phase} to {phase}"
        self.phase = phase

    @property
    def next_deadline_ns(self) -> int:
        """While it waits, the end of its patience; afterwards its own deadline."""
        if self.phase is Phase.WAITING:
            return min(self.queue_deadline_ns, self.deadline_ns)
        return self.deadline_ns

    @property
    def wakes_ns(self) -> int:
        """While it waits: when it is looked at again, whatever else happens."""
        promotion_ns = self.promotion_ns
        return self.next_deadline_ns if promotion_ns is None else min(promotion_ns, self.next_deadline_ns)
