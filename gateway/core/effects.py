"""What the core orders. Whoever drives it performs these in order; each names its reason."""

from __future__ import annotations

from gateway.core.value import value
from gateway.core.vocabulary import (
    Connector,
    Decision,
    Extra,
    Hops,
    LegRole,
    LoadReport,
    Outcome,
    PoolName,
    RefusalReason,
    RequestId,
    ResidencyStamp,
    Resumes,
    Target,
)


@value
class StartLeg:
    """Open this leg of this attempt at this target. The owner must answer it with exactly one LegEnded.

    Legs of an attempt are numbered from 1."""

    request_id: RequestId
    attempt: int
    leg: int
    role: LegRole
    target: Target
    decision: Decision
    deadline_ns: int
    hops: Hops | None = None
    """For a peer: the hops to put on the wire."""
    stamp: ResidencyStamp | None = None
    """For a peer: the residency stamp to put on the wire."""
    connector: Connector | None = None
    """For a leg that runs a part: how the other part is handed over."""
    prefill: Target | None = None
    """For a decode leg: who read the prompt, or reads it at this moment."""
    pool: PoolName | None = None
    """For a leg that runs a part: whose it is."""
    budget_tokens: int = 0
    """For a peer: what the request is taken to come to, to put on the wire; 0: nobody asks."""
    may_be_longer: bool = False
    """There are longer pools: where this target refuses it for its length, the client is not told, for it may be had
    there."""
    extras: tuple[Extra, ...] = ()
    """For a replica that runs the whole: what it is asked to tell besides."""
    may_break: bool = False
    """Should its answer break, somebody else may go on with it: what the client is sent is worth keeping."""
    resume: int = 0
    """It goes on with an answer that broke; how often that has happened to this request."""
    resumes_left: Resumes | None = None
    """For a peer, where its answer may break: how often it may go on there."""
    yields: bool = True
    """For a peer: False if it has waited for so long that it is served like what is interactive, there too."""


@value
class StopLeg:
    """Close this leg's connection now; its LegEnded follows."""

    request_id: RequestId
    attempt: int
    leg: int
    detail: str


@value
class AcceptForward:
    """Tell the origin that its request waits or runs here."""

    request_id: RequestId


@value
class RefuseForward:
    """Tell the origin no, and why. The request was never ours: no EndRequest follows."""

    request_id: RequestId
    reason: RefusalReason
    detail: str


@value
class EndRequest:
    """The request is over. If nothing was sent to the client yet, the owner sends the outcome's error."""

    request_id: RequestId
    outcome: Outcome
    detail: str
    attempts: int
    is_final: bool = False
    """Of an answer that broke: it may be what the request asks for that breaks engines, and nobody should go on."""
    resumes_used: Resumes = Resumes(0)
    """How often it went on, here and wherever it was forwarded."""
    retry_after_ns: int = 0
    """Of one that was turned away: when it would be let in, or could be served as the queue drains now. 0: nobody can
    say more than the outcome does."""


@value
class RecordShadow:
    """Overflow is in shadow mode: this forward would have been started. The request stays here: it goes on waiting, or
    was to be placed at this very moment, which is ordered next."""

    request_id: RequestId
    target: Target
    decision: Decision


@value
class SampleProgress:
    """Tell the core, with ProgressSampled and at once, how far the decode legs of this pool have come: it is about to
    decide where others go."""

    pool: PoolName


@value
class PublishLoad:
    """Send this heartbeat to every peer."""

    report: LoadReport


Effect = StartLeg | StopLeg | AcceptForward | RefuseForward | EndRequest | RecordShadow | SampleProgress | PublishLoad
