"""Effects: the core's instructions to its driver, which performs them in order. Each names its reason."""

from __future__ import annotations

from msgspec import Struct

from gateway.core.vocabulary import (
    Connector,
    Decision,
    Extra,
    Hops,
    LegRole,
    LoadReport,
    NeededIdentity,
    Notes,
    Outcome,
    PoolName,
    RefusalReason,
    RequestId,
    ResidencyStamp,
    Target,
)


class StartLeg(Struct):
    """Open one leg of an attempt at a target. The driver must answer it with exactly one LegEnded.

    Legs of an attempt are numbered from 1. The core completes the order before the driver sees it, and nothing changes
    it afterwards.
    """

    request_id: RequestId
    attempt: int
    leg: int
    role: LegRole
    target: Target
    decision: Decision
    deadline_ns: int
    hops: Hops | None = None
    """Hops to put on the wire, for a peer."""
    stamp: ResidencyStamp | None = None
    """Residency stamp to put on the wire, for a peer."""
    connector: Connector | None = None
    """Connector that hands over the KV cache, for a prefill or decode leg."""
    prefill: Target | None = None
    """Prefill worker that has prefilled the prompt or is doing so, for a decode leg."""
    pool: PoolName | None = None
    """Disaggregated pool of a prefill or decode leg."""
    budget_tokens: int = 0
    """Estimated tokens of the request to put on the wire, for a peer; 0: its model's pools are not sorted by budget."""
    may_be_longer: bool = False
    """Longer pools exist: if this target refuses the request for its length, the client is not told, since a longer
    pool may take it."""
    extras: tuple[Extra, ...] = ()
    """Extra facts that a replica running the whole request is asked to report."""
    keeps_answer: bool = False
    """The answer of this leg, as the client is sent it, is to be kept: another leg may append to it if it breaks."""
    segment: int = 0
    """Segment of the answer that this leg writes, counted over all gateways; 0: the leg starts an answer."""
    notes: Notes = {}
    """Counts that features tell a peer."""
    identity: NeededIdentity | None = None
    """Identity of the model that the request is bound to, for a peer; None: to none."""
    answers_as: str = ""
    """Identity of the model that the answer of a decode leg has: that of the prefill worker that the request was placed
    at; empty: not known."""
    yields: bool = True
    """False for a peer if the request has waited so long that it is served as interactive, there too."""


class StopLeg(Struct, frozen=True):
    """Close this leg's connection at once; its LegEnded follows."""

    request_id: RequestId
    attempt: int
    leg: int
    detail: str


class TakeBackLeg(Struct, frozen=True):
    """Close the connection of a leg at a target that is silent or soon gone, or whose slot another request is given, if
    its request can go on: the client has nothing of the answer, or a remainder can be requested. Its LegEnded then
    follows, as TAKEN_BACK. Otherwise the leg is left alone, since it may complete there."""

    request_id: RequestId
    attempt: int
    leg: int
    detail: str
    may_append: bool
    """False: the leg is closed only if the client has nothing of its answer."""
    identity: str
    """Identity of the model that the target is taken to have, and by which it was found that the rest can go on; empty:
    not known. If the answer's head told another one, the rest is left where it is."""


class AcceptForward(Struct, frozen=True):
    """Tell the origin that its request waits or runs here."""

    request_id: RequestId


class RefuseForward(Struct, frozen=True):
    """Refuse a forward and tell the origin why. This gateway never owned the request: no EndRequest follows."""

    request_id: RequestId
    reason: RefusalReason
    detail: str


class EndRequest(Struct):
    """End a request. If the client has not been sent anything yet, the driver sends it the outcome's error. The core
    completes it before the driver sees it, and nothing changes it afterwards."""

    request_id: RequestId
    outcome: Outcome
    detail: str
    attempts: int
    is_final: bool = False
    """True for a broken answer that nothing must be appended to: the request itself may be what breaks engines."""
    notes: Notes = {}
    """Counts that features tell the gateway that forwarded the request."""
    retry_after_ns: int = 0
    """Time after which a rejected request would be admitted, or could be served at the queue's present drain rate. 0:
    not known."""
    is_charged: bool = False
    """The tokens that the request has used are to be reported with TokensSettled."""


class RecordShadow(Struct, frozen=True):
    """Record the forward that overflow in shadow mode would have started. The request stays here: it goes on waiting,
    or is placed by the next effect."""

    request_id: RequestId
    target: Target
    decision: Decision


class SampleProgress(Struct, frozen=True):
    """Ask the driver to report at once, with ProgressSampled, how far this pool's decode legs have come: the next tick
    of its decode tier needs it."""

    pool: PoolName


class PublishLoad(Struct, frozen=True):
    """Send this heartbeat to every peer."""

    report: LoadReport


Effect = (
    StartLeg
    | StopLeg
    | TakeBackLeg
    | AcceptForward
    | RefuseForward
    | EndRequest
    | RecordShadow
    | SampleProgress
    | PublishLoad
)
