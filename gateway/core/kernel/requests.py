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

from typing import Final

from gateway.core.kernel.effects import EndRequest, RecordShadow, RefuseForward
from gateway.core.kernel.events import ForwardArrived, LegEnded, RequestArrived
from gateway.core.kernel.peers import PeerState
from gateway.core.kernel.pools import PoolFit
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.kernel.timers import Timer, TimerKind
from gateway.core.vocabulary import (
    Connector,
    Decision,
    GatewayId,
    Hops,
    LegResult,
    LegRole,
    ModelName,
    Outcome,
    PeerSpec,
    Place,
    PlaceRule,
    PoolName,
    ReplicaSpec,
    RequestId,
    RequestProfile,
    ResidencyStamp,
    Target,
    Word,
)


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

    __slots__ = ("appends", "beginning", "is_cold", "is_next", "slot", "uncached_bytes")

    def __init__(
        self, slot: int, uncached_bytes: int, beginning: bytes, *, is_cold: bool = False, appends: bool = False
    ) -> None:
        self.slot = slot
        self.is_next = False
        """Under fair sharing it is this request's turn, regardless of requests held for longer."""
        self.is_cold = is_cold
        """Held because its prompt would evict cached data there that is still wanted. Such requests form a separate
        queue: requests that wait for the replica's compute do not wait behind them."""
        self.appends = appends
        """The request's answer has begun: it goes before all new requests held there."""
        self.uncached_bytes = uncached_bytes
        """Prompt bytes that the replica would have to prefill."""
        self.beginning = beginning
        """Hash of the last prompt block that the replica has cached; empty if it has none. For a request that follows a
        stored response, that response's key."""


class LegState:
    """One connection to one target, alive until its LegEnded event; afterwards, the record of it."""

    __slots__ = (
        "attempt",
        "decision",
        "ended",
        "ended_ns",
        "first_token_ns",
        "gave_way_ns",
        "is_stopping",
        "is_withdrawn",
        "kept_blocks",
        "number",
        "policy",
        "replicas_here",
        "role",
        "segment",
        "spec",
        "started_ns",
        "state",
        "stop_detail",
        "target",
        "uncached_bytes",
    )

    def __init__(
        self,
        attempt: int,
        number: int,
        role: LegRole,
        state: ReplicaState | PeerState,
        decision: Decision,
        *,
        policy: ResidencyPolicy,
        started_ns: int,
        kept_blocks: int,
        replicas_here: int,
    ) -> None:
        self.attempt = attempt
        self.number = number
        self.role = role
        self.state = state
        self.target = state.target
        self.spec: ReplicaSpec | PeerSpec = state.spec
        """Description of the target, with its place, when the leg started."""
        self.decision = decision
        self.policy = policy
        """Policy of this gateway when the leg started."""
        self.replicas_here = replicas_here
        """Replicas of this gateway for the model when the leg started."""
        self.segment = 0
        """Segment of the answer that the leg writes; 0: the leg starts an answer."""
        self.started_ns = started_ns
        self.first_token_ns: int | None = None
        self.ended: LegEnded | None = None
        """Event that ended it, with result, refusal, detail and tokens."""
        self.ended_ns: int | None = None
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
        self.gave_way_ns: int | None = None
        """Time at which the leg was ordered to end so that an interactive request has its slot."""

    @property
    def place(self) -> Place:
        """Place of the target, as assigned when the leg started."""
        return self.spec.place

    @property
    def result(self) -> LegResult | None:
        """Result that the target or its edge reported; None while the leg runs."""
        return None if self.ended is None else self.ended.result


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


class LegPart:
    """Part of a request that one leg runs in a disaggregated pool."""

    __slots__ = ("connector", "pool", "prefill")

    def __init__(self, connector: Connector | None, pool: PoolName, prefill: Target | None) -> None:
        self.connector = connector
        self.pool = pool
        self.prefill = prefill
        """Prefill worker to fetch the KV cache from, for a leg that decodes."""


class Size:
    """Size of a request, as the feature that tells pools apart by it estimates it."""

    __slots__ = ()

    @property
    def prompt_tokens(self) -> int:
        """Estimated tokens of the prompt."""
        raise NotImplementedError

    def fit_in(self, request_class: RequestClass, /) -> PoolFit | None:
        """Pools that the request fits into, among those that its class may go to; None: any."""
        raise NotImplementedError


class LegPlanner:
    """Plans the legs of an attempt in place of the core, which would open one leg that runs the whole request. An
    optional feature is one."""

    def part_of(self, attempt: AttemptState, leg: LegState, /) -> LegPart:
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


class Plan:
    """State of one attempt that its planner keeps."""

    __slots__ = ()


class AttemptState:
    """One numbered try of one request, alive until the last of its legs has ended."""

    __slots__ = (
        "failures",
        "is_between_legs",
        "legs",
        "legs_opened",
        "number",
        "plan",
        "planner",
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
        self.plan: Plan | None = None
        """State that the planner keeps of the attempt."""
        self.is_between_legs = False
        """The attempt is alive without a leg: its planner will open the next one."""


class ForwardOrigin:
    """Gateway that forwarded a request here, as the forward states it."""

    __slots__ = ("gateway_id", "hops", "stamp")

    def __init__(self, gateway_id: GatewayId, hops: Hops, stamp: ResidencyStamp) -> None:
        self.gateway_id = gateway_id
        self.hops = hops
        self.stamp = stamp

    @property
    def place(self) -> Place:
        return self.stamp.origin

    @property
    def policy(self) -> ResidencyPolicy:
        """Policy of the origin, as far as the stamp states it."""
        stamp = self.stamp
        return ResidencyPolicy(stamp.origin, stamp.rule, PlaceRule(), digest=stamp.policy_digest)


class RequestRecord:
    """Part of a request's state that outlives it: what the log, metrics, decisions, audit and spans read. Only the core
    writes it. It names neither tenant nor text, so every observer may keep it.

    A request that is rejected on arrival and a forward that is refused have a record and no other state.
    """

    __slots__ = (
        "arrived_ns",
        "end",
        "first_leg",
        "first_token_ns",
        "hints",
        "identity_mismatch",
        "is_control",
        "keeps_yielding",
        "legs",
        "model",
        "origin",
        "policy",
        "refusal",
        "request_id",
        "shadow",
    )

    def __init__(self, event: RequestArrived | ForwardArrived, policy: ResidencyPolicy, now_ns: int) -> None:
        profile = event.profile
        self.request_id: RequestId = profile.request_id
        self.model: ModelName = profile.model
        self.is_control: bool = profile.is_control
        """A call about a stored response, which has no model."""
        self.keeps_yielding: bool = profile.keeps_yielding
        self.hints = profile.hints
        self.arrived_ns = now_ns
        self.policy = policy
        """Policy of this gateway when the request arrived."""
        self.origin: ForwardOrigin | None = None
        """Unset for a client's request."""
        if isinstance(event, ForwardArrived):
            self.origin = ForwardOrigin(event.origin_gateway_id, event.hops, event.stamp)
        self.legs: list[LegState] = []
        """Legs of all attempts in the order of their start."""
        self.first_leg: LegState | None = None
        """Leg that brought the first token that the client was sent."""
        self.first_token_ns: int | None = None
        self.shadow: RecordShadow | None = None
        """Forward that overflow in shadow mode would have made."""
        self.refusal: RefuseForward | None = None
        self.identity_mismatch = ""
        """Targets of another model identity that the request was kept from after a failure, in words for operators;
        empty: there were none."""
        self.end: EndRequest | None = None

    def number_of(self, leg: LegState) -> int | None:
        """Number of a leg where its attempt has more than one leg; None where it is the only one."""
        is_alone = len(self.legs) == 1 or not any(each.attempt == leg.attempt and each is not leg for each in self.legs)
        return None if is_alone else leg.number

    def ended_by(self, attempt: int) -> LegResult | None:
        """Result that ended an attempt: of several legs, the one because of which the others were cancelled."""
        results = [leg.result for leg in self.legs if leg.attempt == attempt]
        others = (LegResult.COMPLETED, LegResult.CANCELLED, None)
        return next((each for each in results if each not in others), results[-1] if results else None)


class RequestState:
    """A request from its arrival to the end of its last attempt."""

    __slots__ = (
        "arrival_number",
        "arrived_ns",
        "attempt",
        "attempts",
        "barred_at",
        "busy_answers",
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
        "look_ns",
        "origin_gateway_id",
        "parts",
        "phase",
        "profile",
        "queue_deadline_ns",
        "queue_part",
        "record",
        "refusals",
        "request_class",
        "request_id",
        "size",
        "stamp",
        "timer",
        "was_too_long_before",
    )

    def __init__(
        self,
        profile: RequestProfile,
        request_class: RequestClass,
        *,
        record: RequestRecord,
        arrival_number: int,
        arrived_ns: int,
        deadline_ns: int,
        queue_deadline_ns: int,
        stamp: ResidencyStamp,
        hops: Hops,
        origin_gateway_id: GatewayId | None,
        size: Size | None = None,
    ) -> None:
        self.profile, self.request_id, self.request_class = profile, profile.request_id, request_class
        self.record, self.arrival_number, self.arrived_ns = record, arrival_number, arrived_ns
        self.deadline_ns = deadline_ns
        self.queue_deadline_ns = queue_deadline_ns
        self.look_ns: int | None = None
        """Time at which a feature wants to look at the request if it still waits; None: none does."""
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
        self.size = size
        """Estimated size, where pools are told apart by it; None: not needed."""
        self.parts: dict[str, object] | None = None
        """State that optional features keep with the request, by name; None while there is none."""
        self.queue_part: object | None = None
        """State that the feature which orders the queues keeps with the request, by a name of its own since each
        request has it; None until the request first waits."""
        self.has_begun = False
        """True if the client has part of the answer of an attempt that was made here, and what follows continues it.
        The rest of an answer that began at another gateway is a request like any other."""
        self.is_too_long = self.was_too_long_before = False
        """An engine or a peer refused it for its length; `was_too_long_before`: it was retried after such a refusal."""
        self.attempts = self.failures = self.refusals = self.busy_answers = 0
        self.last_failure = ""
        self.leaves_room = False
        """True if the request runs only where there is room to spare, as of the last look; a feature says so."""

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
        look_ns = self.look_ns
        return self.next_deadline_ns if look_ns is None else min(look_ns, self.next_deadline_ns)
