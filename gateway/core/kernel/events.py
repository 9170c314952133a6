"""Events: all that can happen to a gateway core. Frozen values, so that replaying a journal of them gives the same
effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from msgspec import Struct

from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.nearness import Nearness
from gateway.core.vocabulary import (
    ControlVersion,
    GatewayId,
    Hops,
    LegResult,
    ModelName,
    Notes,
    PeerObservation,
    PeerSpec,
    PoolName,
    PoolSpec,
    RefusalReason,
    ReplicaObservation,
    ReplicaSpec,
    RequestId,
    RequestProfile,
    ResidencyStamp,
    Target,
)


class FeatureEvent(Struct, frozen=True):
    """Event that is one feature's own, and that the kernel passes to it."""

    def with_hashes(self, permuted: Callable[[bytes], bytes], /) -> Self:  # noqa: ARG002
        """Same event with the block hashes of prompts in it permuted, for records that must not hold them. `permuted`
        takes packed hashes."""
        return self


class PolicyApplied(Struct, frozen=True):
    """A residency policy replaces the one before; running legs finish under their stamps."""

    policy: ResidencyPolicy


class AssignmentApplied(Struct, frozen=True):
    """Complete, versioned list of the replicas this gateway owns and the peers it knows; older versions are ignored."""

    version: int
    replicas: tuple[ReplicaSpec, ...]
    peers: tuple[PeerSpec, ...]
    control: ControlVersion = ControlVersion()
    """Version of the controller's snapshot that this assignment follows from; zeros: none. `version` is this gateway's
    own count."""
    away: tuple[ModelName, ...] = ()
    """Models of described replicas that another gateway serves for now. They exist, whether or not a peer that has them
    was heard yet."""
    pools: tuple[PoolSpec, ...] = ()
    """Specifications of those pools among the replicas' of which more is configured than a name."""


class DrainRequested(Struct, frozen=True):
    """Drain: finish running and waiting requests, accept no new ones."""


class DrainLifted(Struct, frozen=True):
    """End of a drain: accept new requests again."""


class ReplicasObserved(Struct, frozen=True):
    observations: tuple[ReplicaObservation, ...]


class PeersObserved(Struct, frozen=True):
    observations: tuple[PeerObservation, ...]


class TargetLost(Struct, frozen=True):
    """Loss of a target that the edge sees at once, without waiting for staleness: its connection broke, or nothing is
    heard on it."""

    target: Target
    detail: str
    is_silent: bool = False
    """The target is not heard, on a connection that has not broken: its legs may end late, or never."""


class RequestArrived(Struct, frozen=True):
    """Arrival of a client's request. `deadline_ns` is absolute, on the clock of `now_ns`."""

    profile: RequestProfile
    deadline_ns: int


class ForwardArrived(Struct, frozen=True):
    """Arrival of a request that another gateway asks this one to run."""

    profile: RequestProfile
    deadline_ns: int
    origin_gateway_id: GatewayId
    hops: Hops
    """Hops of the request, counted with the one that brought it here."""
    stamp: ResidencyStamp
    notes: Notes = {}
    """Counts that features of the origin tell."""


class RequestAbandoned(Struct, frozen=True):
    """The request's owner left: the client disconnected, or the origin cancelled its forward."""

    request_id: RequestId


class LegAccepted(Struct, frozen=True):
    """A peer accepted the forward. An engine sends no such event; its first output implies it."""

    request_id: RequestId
    attempt: int
    leg: int


class FirstToken(Struct, frozen=True):
    """First token of a stream, or start of an answer that may take a while to send. From here on there are no
    retries."""

    request_id: RequestId
    attempt: int
    leg: int
    is_sent: bool = True
    """False: the client has not been sent any of it, so the request may still be tried elsewhere."""


class TooLong(Struct, frozen=True):
    """Limits stated by an engine that refused a request for its length."""

    limit_tokens: int | None = None
    """Longest request that the engine takes; None: not stated."""
    asked_tokens: int | None = None
    """Length of the request by the engine's count, with the output that was asked for; None: not stated."""


class LegEnded(Struct, frozen=True):
    """End of a leg, sent exactly once for each StartLeg, from the owner's `finally`, even if the effect was never
    carried out."""

    request_id: RequestId
    attempt: int
    leg: int
    result: LegResult
    refusal: RefusalReason | None = None
    """Reason of the refusal; set when `result` is REFUSED."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    detail: str = ""
    nearness: Nearness | None = None
    """Similarity of a prefilled prompt to the experts of decode workers; None: not asked for, or not reported."""
    too_long: TooLong | None = None
    """Limits the engine stated; set when `result` is TOO_LONG, and for a client error about length."""
    remainder: RequestProfile | None = None
    """Remainder of a broken answer, as a request. None: nothing can be appended to it."""
    is_final: bool = False
    """True: a peer has failed to append to it and says that no other gateway must."""
    has_reached: bool = True
    """False: the target never saw the request, since no connection to it was made."""
    notes: Notes = {}
    """Counts that features of the peer tell."""
    identity: str = ""
    """Identity of the model that began a broken answer at a peer, as the peer tells it; empty: not known."""


class TimePassed(Struct, frozen=True):
    """Wake-up that the core asked for with `next_wakeup_ns()`."""


class ResponseStored(Struct, frozen=True):
    """The engine stores this leg's answer under a key; requests that refer to it must go to the same target."""

    request_id: RequestId
    attempt: int
    leg: int
    key: str


class TokensSettled(FeatureEvent, frozen=True):
    """Tokens that a request has used, prompt and output together. Sent once, after its end, for each request whose end
    is charged."""

    request_id: RequestId
    tokens: int


class LegProgress(Struct, frozen=True):
    """Progress of one leg."""

    request_id: RequestId
    attempt: int
    output_tokens: int
    """Tokens since its first; an estimate where the engine reports only events."""


class ProgressSampled(FeatureEvent, frozen=True):
    """Answer to SampleProgress: each leg of that pool that has begun its answer."""

    pool: PoolName
    progress: tuple[LegProgress, ...]
