"""Interface of the core's optional features: hooks that the kernel calls.

A feature that is off is told its events, changes of config, policy and fleet, and the ends of requests, and is asked
about the attempts that it still plans. All other hooks are called only while a feature is on, and only for the features
that define them.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.kernel.config import KernelConfig
from gateway.core.kernel.effects import EndRequest, StartLeg
from gateway.core.kernel.events import AssignmentApplied, FeatureEvent, ForwardArrived, LegEnded, RequestArrived
from gateway.core.kernel.feature_checker import FeatureChecker
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import AttemptState, LegEnd, LegPlanner, LegState, Rejected, RequestState, Size
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.placement.placer import Placement
from gateway.core.placement.policy import PolicyFactory
from gateway.core.vocabulary import ModelName, PoolChoice, ReplicaObservation, RequestProfile, Target, TenantUse


class Feature(LegPlanner):
    """Optional part of the core. Every hook does nothing unless a feature overrides it; one that plans legs defines the
    methods of `LegPlanner` that have no default, too."""

    def is_on(self) -> bool:
        """Return true if the config or the fleet asks for the feature at present. Asked after each change of either,
        and when another feature says so; one that keeps counts of requests stays on while such a request lives."""
        return False

    # Inputs, whether or not it is on

    def take_in(self, event: FeatureEvent, now_ns: int, /) -> bool:  # noqa: ARG002
        """Take in an event that is this feature's own. Return false for all others."""
        return False

    def configure(self, config: KernelConfig, now_ns: int, /) -> None:
        """Take in new settings."""

    def apply_policy(self, policy: ResidencyPolicy, /) -> None:
        """Take in a new residency policy, before waiting requests are judged by it."""

    def assign(
        self, event: AssignmentApplied, joined: list[ReplicaState], left: list[ReplicaState], now_ns: int, /
    ) -> None:
        """Take in an assignment of own replicas, before that of peers."""

    def assigned(self, now_ns: int, /) -> None:
        """Take care of requests that an assignment has left without what they waited for; all targets are known."""

    def placement_policy(self, name: str, /) -> PolicyFactory | None:  # noqa: ARG002
        """Placement policy of this name, if it is this feature's. Called when a config names one that is not built
        in."""
        return None

    def wake(self, timer: str, now_ns: int, /) -> None:
        """Act on a timer that is due; its name tells whose it is."""

    def describe(self, now_ns: int, /) -> dict[str, object]:  # noqa: ARG002
        """Own part of the gateway's state, as JSON-ready values by name."""
        return {}

    def violations(self) -> list[tuple[str, str]]:
        """Invariants of the feature that do not hold at present, each with a detail; for tests."""
        return []

    def checker(self) -> FeatureChecker | None:
        """Make a checker of the feature's own invariants, for tests; None: it has none."""
        return None

    # Steps, while it is on

    def begins(self, now_ns: int, /) -> None:
        """Take in the time of an event, before anything else of it."""

    def observe(self, observations: Sequence[ReplicaObservation], now_ns: int, /) -> None:
        """Take in probes of own replicas."""

    def reject(self, profile: RequestProfile, now_ns: int, /) -> Rejected | None:  # noqa: ARG002
        """Reject a client's request that the core would admit, or return None. A feature that counts the request from
        here on must be the last in the list that defines this hook, since a later one might reject the request."""
        return None

    def size_of(self, profile: RequestProfile, /) -> Size | None:  # noqa: ARG002
        """Size of an arriving request, where pools are told apart by it; None: this feature does not tell."""
        return None

    def longest_of(self, request_class: RequestClass, /) -> int | None:  # noqa: ARG002
        """Tokens of the longest request that any pool takes to which requests of this class may go; None: this feature
        does not tell."""
        return None

    def awaits(self, model: ModelName, /) -> bool:  # noqa: ARG002
        """Return true if targets of the model are gone for a time, and its requests may wait for them."""
        return False

    def pinned(self, follows: str, /) -> Target | None:  # noqa: ARG002
        """Only target that can serve a request that follows from this key; None: this feature does not know it."""
        return None

    def admitted(self, request: RequestState, event: RequestArrived | ForwardArrived, now_ns: int, /) -> None:
        """Take in a request that was admitted, before it waits."""

    def pools_changed(self) -> bool:
        """Return true if waiting requests are to be judged again, since pools have changed."""
        return False

    def uses(self) -> tuple[TenantUse, ...]:
        """Use of tenants that heartbeats tell. A feature that defines this defines `told_version`, too; both are called
        whether or not it is on, since peers are told when a use has ended."""
        return ()

    def told_version(self) -> int:
        """Number that changes with `uses`."""
        return 0

    def joined(self, request: RequestState, /) -> None:
        """Take in a request that waits from here on, before it is queued. One that is placed at once is never
        queued."""

    def left(self, request: RequestState, /) -> None:
        """Take in a request that waits no longer: it starts, or has ended, or is to be queued anew."""

    def before_placing(self, now_ns: int, /) -> None:
        """Act after an event, before waiting requests are placed."""

    def before_choice(self, request: RequestState, now_ns: int, /) -> None:
        """Act before a target is chosen for a waiting request."""

    def must_wait(self, request: RequestState, now_ns: int, /) -> None:
        """Act on a waiting request for which no target was found."""

    def newcomer_waits(self, request: RequestState, now_ns: int, /) -> None:
        """Act on a client's request that has just arrived and waits."""

    def waited(self, request: RequestState, now_ns: int, /) -> None:
        """Act on a waiting request at its `look_ns`, which this feature has set."""

    def promised_ns(self, request: RequestState, /) -> int | None:  # noqa: ARG002
        """Time within which a client's request was promised its first token; None: this feature promises nothing."""
        return None

    def queue_share(self, profile: RequestProfile, /) -> float:  # noqa: ARG002
        """Share of the queue's limit above which a request that yields to others is not queued."""
        return 1.0

    def wait_max_ns(self, request: RequestState, /) -> int | None:  # noqa: ARG002
        """Longest time that a request may wait for its next attempt; None: as the queue's config says. The first
        feature that gives an answer decides."""
        return None

    def started(self, request: RequestState, /) -> None:
        """Take in a request that starts an attempt."""

    def plan_legs(
        self,
        request: RequestState,  # noqa: ARG002
        attempt: AttemptState,  # noqa: ARG002
        placement: Placement,  # noqa: ARG002
        now_ns: int,  # noqa: ARG002
        /,
    ) -> bool:
        """Open the first legs of an attempt at the placed target and become its planner, or return false."""
        return False

    def pool_choice(self, request: RequestState, placement: Placement, /) -> PoolChoice | None:  # noqa: ARG002
        """Record of how pools were compared for a placement; None where they were not. One feature at most defines
        it."""
        return None

    def on_order(self, request: RequestState, leg: LegState, order: StartLeg, /) -> None:
        """Complete the order that starts a leg, before the driver sees it."""

    def stored(self, leg: LegState, key: str, /) -> None:
        """Take in that a leg's target stores its answer under a key, to which later requests may refer."""

    def leg_answered(self, request: RequestState, leg: LegState, now_ns: int, /) -> None:
        """Take in the first token of a leg."""

    def leg_over(self, request: RequestState, leg: LegState, event: LegEnded, now_ns: int, /) -> None:
        """Take in the end of a leg, before the core concludes what it means for the request."""

    def progressed(self, request: RequestState, output_tokens: int, /) -> None:
        """Take in the length so far of an answer that is being written."""

    def failed(self, request: RequestState, end: LegEnd, /) -> None:
        """Take in the failure of an attempt whose answer had not begun. The request may be ended here; then no further
        feature is told."""

    def why_broken(self, request: RequestState, end: LegEnd, /) -> str | None:  # noqa: ARG002
        """Reason, in words, why an answer that the end of this leg broke is not continued; empty if this feature will
        continue it, None if it says nothing. The first feature that gives an answer decides: at a reason, the request
        ends, and the feature may note that."""
        return None

    def may_append(self, request: RequestState, /) -> bool:  # noqa: ARG002
        """Return true if this feature would continue the request's answer, which has begun, if it broke now."""
        return False

    def go_on(self, request: RequestState, attempt: AttemptState, now_ns: int, /) -> bool:  # noqa: ARG002
        """Continue a broken answer after its attempt's last leg, or end the request. Return false if neither is this
        feature's task."""
        return False

    def ends(self, request: RequestState, end: EndRequest, now_ns: int, /) -> None:
        """Take in the end of a request, and complete the effect that tells of it, before the driver sees it. The hook
        is called whether or not the feature is on: requests outlive the settings under which they arrived."""

    def forgotten(self, request: RequestState, /) -> None:
        """Take in that a request has ended with all its legs, and its state is dropped."""


class Hooks:
    """Features that are on, by the hooks that they define; for `ends` and `uses`, all features."""

    __slots__ = (
        "admitted",
        "awaits",
        "before_choice",
        "before_placing",
        "begins",
        "ends",
        "failed",
        "forgotten",
        "go_on",
        "joined",
        "left",
        "leg_answered",
        "leg_over",
        "longest_of",
        "may_append",
        "must_wait",
        "newcomer_waits",
        "observe",
        "on_order",
        "pinned",
        "plan_legs",
        "pool_choice",
        "pools_changed",
        "progressed",
        "promised_ns",
        "queue_share",
        "reject",
        "size_of",
        "started",
        "stored",
        "uses",
        "wait_max_ns",
        "waited",
        "why_broken",
    )

    def __init__(self, features: Sequence[Feature]) -> None:
        on = [feature for feature in features if feature.is_on()]
        self.begins = _that_define("begins", on)
        self.observe = _that_define("observe", on)
        self.reject = _that_define("reject", on)
        self.size_of = _that_define("size_of", on)
        self.awaits = _that_define("awaits", on)
        self.pinned = _that_define("pinned", on)
        self.longest_of = _that_define("longest_of", on)
        self.admitted = _that_define("admitted", on)
        self.pools_changed = _that_define("pools_changed", on)
        self.uses = _that_define("uses", features)
        self.joined = _that_define("joined", on)
        self.left = _that_define("left", on)
        self.before_placing = _that_define("before_placing", on)
        self.before_choice = _that_define("before_choice", on)
        self.must_wait = _that_define("must_wait", on)
        self.newcomer_waits = _that_define("newcomer_waits", on)
        self.wait_max_ns = _that_define("wait_max_ns", on)
        self.waited = _that_define("waited", on)
        self.promised_ns = _that_define("promised_ns", on)
        self.queue_share = _that_define("queue_share", on)
        self.started = _that_define("started", on)
        self.stored = _that_define("stored", on)
        self.plan_legs = _that_define("plan_legs", on)
        self.pool_choice = _that_define("pool_choice", on)
        self.on_order = _that_define("on_order", on)
        self.leg_answered = _that_define("leg_answered", on)
        self.leg_over = _that_define("leg_over", on)
        self.progressed = _that_define("progressed", on)
        self.failed = _that_define("failed", on)
        self.why_broken = _that_define("why_broken", on)
        self.may_append = _that_define("may_append", on)
        self.go_on = _that_define("go_on", on)
        self.ends = _that_define("ends", features)
        self.forgotten = _that_define("forgotten", on)


def _that_define(hook: str, features: Sequence[Feature]) -> tuple[Feature, ...]:
    """Features whose class overrides a hook."""
    own = getattr(Feature, hook)
    return tuple([each for each in features if getattr(type(each), hook) is not own])
