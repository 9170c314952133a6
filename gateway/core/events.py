"""What can happen to a gateway. Frozen values, so a journal of them replays to the same story."""

from __future__ import annotations

from gateway.core.config import CoreConfig
from gateway.core.decode.locality.nearness import Nearness
from gateway.core.decode.predictors.arrays import ExactMatchArrays, LearnedArrays, PredictorArrays, SurvivalArrays
from gateway.core.decode.predictors.history import Ended
from gateway.core.prices import Prices
from gateway.core.residency import ResidencyPolicy
from gateway.core.token_budget import TokenBudgetSnapshot
from gateway.core.value import value
from gateway.core.vocabulary import (
    ControlVersion,
    GatewayId,
    Hops,
    LegResult,
    ModelName,
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
    Resumes,
    Target,
)


@value
class ConfigApplied:
    """Placement, pushing and limits change; what waits is decided again at once."""

    config: CoreConfig


@value
class PolicyApplied:
    """A residency policy replaces the one before; running legs finish under their stamp."""

    policy: ResidencyPolicy


@value
class AssignmentApplied:
    """The replicas this gateway owns and the peers it knows, whole and versioned; older versions are ignored."""

    version: int
    replicas: tuple[ReplicaSpec, ...]
    peers: tuple[PeerSpec, ...]
    control: ControlVersion = ControlVersion()
    """Of the controller's snapshot that it follows from; zeros: from none. `version` is this gateway's own count."""
    away: tuple[ModelName, ...] = ()
    """Models of replicas that are described here and that somebody else serves for now: they exist, whether or not
    anybody was heard of yet who has them."""
    pools: tuple[PoolSpec, ...] = ()
    """Those among the replicas' pools of which there is more to say than their names."""


@value
class DrainRequested:
    """Finish what runs or waits; take nothing new."""


@value
class DrainLifted:
    """Take what is new again."""


@value
class LockdownChanged:
    """An operator stops all forwarding, in and out, or allows it again.

    Forwards that gave no token yet come back at once; with `cut`, streams that cross gateways end as well.
    """

    active: bool
    cut: bool = False


@value
class ReplicasObserved:
    observations: tuple[ReplicaObservation, ...]


@value
class PeersObserved:
    observations: tuple[PeerObservation, ...]


@value
class TargetLost:
    """The edge knows at once that a target is gone (its connection broke): no need to wait for staleness."""

    target: Target
    detail: str


@value
class RequestArrived:
    """A client's request. `deadline_ns` is absolute, on the clock of `now_ns`."""

    profile: RequestProfile
    deadline_ns: int


@value
class ForwardArrived:
    """Another gateway asks us to run a request."""

    profile: RequestProfile
    deadline_ns: int
    origin_gateway_id: GatewayId
    hops: Hops
    """Counted with the hop that brought it here."""
    stamp: ResidencyStamp
    resumes_left: Resumes | None = None
    """What its origin allows, should its answer break. None: it does not say."""


@value
class RequestAbandoned:
    """The owner left: the client disconnected or the origin cancelled its forward."""

    request_id: RequestId


@value
class LegAccepted:
    """A peer accepted the forward. Of an engine, what it sends next says the same."""

    request_id: RequestId
    attempt: int
    leg: int


@value
class FirstToken:
    """The first token of a stream came back, or an answer that may take a while to send has begun: there is no retry
    any more."""

    request_id: RequestId
    attempt: int
    leg: int
    is_sent: bool = True
    """False: the client has nothing of it yet, and it may still be had elsewhere."""


@value
class ResponseStored:
    """The engine keeps the answer of this leg under a key; what follows on it has to go to the same place."""

    request_id: RequestId
    attempt: int
    leg: int
    key: str


@value
class TooLong:
    """What an engine that refused a request for its length said of that."""

    limit_tokens: int | None = None
    """What it takes; None: it did not say."""
    asked_tokens: int | None = None
    """What the request comes to there, as far as it counted: the answer that was asked for included."""


@value
class LegEnded:
    """Sent exactly once for each StartLeg, from the owner's `finally`, even if the order was never read."""

    request_id: RequestId
    attempt: int
    leg: int
    result: LegResult
    refusal: RefusalReason | None = None
    """Set when `result` is REFUSED."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    detail: str = ""
    nearness: Nearness | None = None
    """Of a prompt that was read, to the experts of decode workers; None: nobody asks for it, or nothing was said."""
    too_long: TooLong | None = None
    """Set when `result` is TOO_LONG, and where a client error was about that."""
    rest: RequestProfile | None = None
    """Of an answer that broke: what is left to do, as a request. None: nobody could go on with it."""
    is_final: bool = False
    """A peer has tried in vain to go on with it, and says that nobody should."""
    has_reached: bool = True
    """False: the target has seen nothing of it, since nobody took the connection."""
    resumes_used: Resumes | None = None
    """Of a peer: how often it went on there. None: it does not say."""


@value
class DecodeProgress:
    """How far one decode leg has come."""

    request_id: RequestId
    attempt: int
    output_tokens: int
    """Since its first; an estimate, where the engine tells only events."""


@value
class ProgressSampled:
    """The answer to SampleProgress: each decode leg of that pool that has begun."""

    pool: PoolName
    progress: tuple[DecodeProgress, ...]


@value
class DecodeHistoryRestored:
    """What is remembered of the requests that a pool decoded before this process began."""

    pool: PoolName
    ended: tuple[Ended, ...]
    added: int
    """Ever, those among them that are not kept any more."""
    ended_max: int
    """How many are to be remembered from now on."""


@value
class PredictorFitted:
    """What predicts how long requests of a pool still decode: one kind of arrays, which have been checked."""

    pool: PoolName
    until_ns: int
    """They are too old from then on."""
    survival: SurvivalArrays | None = None
    exact_match: ExactMatchArrays | None = None
    learned: LearnedArrays | None = None

    @property
    def arrays(self) -> PredictorArrays:
        arrays = self.survival or self.exact_match or self.learned
        assert arrays is not None, "one of them is there"
        return arrays


@value
class ArtifactReady:
    """What tells who is near to whose experts in a pool. Its arrays stay at the edge, where requests are compared with
    them: of each of those the core is told cosines, and here how many."""

    pool: PoolName
    digest: str
    """Empty: there is none any more."""
    clusters: int


@value
class TokenBudgetRestored:
    """What was learnt of the tokens that requests come to before this process began."""

    snapshot: TokenBudgetSnapshot


@value
class PricesChanged:
    """Other prices are in force from now on: another list, or another time of day. None: nobody knows any."""

    prices: Prices | None


@value
class TokensSettled:
    """What a request has used of its tenant's tokens, prompt and answer together; sent once for each request that
    tokens were set aside for, after its end."""

    request_id: RequestId
    tokens: int


@value
class TimePassed:
    """The wake-up the core asked for with `next_wakeup_ns()`."""


Event = (
    ConfigApplied
    | PolicyApplied
    | AssignmentApplied
    | DrainRequested
    | DrainLifted
    | LockdownChanged
    | ReplicasObserved
    | PeersObserved
    | TargetLost
    | RequestArrived
    | ForwardArrived
    | RequestAbandoned
    | LegAccepted
    | FirstToken
    | ResponseStored
    | LegEnded
    | ProgressSampled
    | DecodeHistoryRestored
    | PredictorFitted
    | ArtifactReady
    | TokenBudgetRestored
    | PricesChanged
    | TokensSettled
    | TimePassed
)
