"""Vocabulary of the mesh: ids, places, targets, outcomes and the plain values that events and effects carry.

No decisions are made here. One word stands for one thing, in code, config, metrics and docs alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, NewType

from msgspec import Struct
from msgspec.structs import replace

from gateway.core.block_sizes import EVEN_BLOCKS, bytes_in

RegionName = NewType("RegionName", str)
Jurisdiction = NewType("Jurisdiction", str)
GatewayId = NewType("GatewayId", str)
ReplicaId = NewType("ReplicaId", str)
ModelName = NewType("ModelName", str)
"""Name that clients put into `model`: a base model or a LoRA adapter, which is routed like a model of its own."""
PoolName = NewType("PoolName", str)
TenantName = NewType("TenantName", str)
RequestId = NewType("RequestId", str)

MODEL_NAME_LENGTH_MAX = 256
IDENTITY_BYTES_MAX = 256
"""Longest identity of a model, in bytes of UTF-8."""

DEFAULT_POOL = PoolName("default")
PREFIX_HASH_BYTES = 8
"""Width of one block hash in a packed prefix chain."""


class Place(Struct, frozen=True):
    """Place where plaintext would be seen: a region and the jurisdiction whose law applies there."""

    region: RegionName
    jurisdiction: Jurisdiction


class Word(StrEnum):
    """Member of a closed set of words. It hashes as its text, without the enumeration's slower Python-level hash."""

    __hash__ = str.__hash__


class ControlVersion(Struct, frozen=True):
    """Version of a controller's snapshot. A controller that took over later has a higher term; within a term the
    version rises with each change. Unrelated to a gateway's own count of its assignments."""

    term: int = 0
    version: int = 0

    def is_newer_than(self, other: ControlVersion) -> bool:
        return (self.term, self.version) > (other.term, other.version)


class TargetKind(Word):
    REPLICA = "replica"
    PEER = "peer"


class Target(Struct, frozen=True):
    """Possible destination of a leg: a replica of this gateway, or another gateway."""

    kind: TargetKind
    id: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"


def replica_target(replica_id: ReplicaId) -> Target:
    return Target(TargetKind.REPLICA, replica_id)


def peer_target(gateway_id: GatewayId) -> Target:
    return Target(TargetKind.PEER, gateway_id)


class RegionsWithin(Struct, frozen=True):
    """Set of regions, each included only while one of these jurisdictions applies there."""

    regions: frozenset[RegionName]
    jurisdictions: frozenset[Jurisdiction]


class PlaceRule(Struct, frozen=True):
    """Set of places, named by jurisdiction or by region; a denied region is excluded, whatever else names it.

    Every field but the denials only adds places, so a reader that does not know a field reads the rule as narrower than
    it is, never wider.
    """

    jurisdictions: frozenset[Jurisdiction] = frozenset()
    regions: frozenset[RegionName] = frozenset()
    denied_regions: frozenset[RegionName] = frozenset()
    regions_within: tuple[RegionsWithin, ...] = ()
    """Intersection of rules where one names regions and the other jurisdictions. Policy files cannot state it."""

    def allows(self, place: Place) -> bool:
        if place.region in self.denied_regions:
            return False
        if place.region in self.regions or place.jurisdiction in self.jurisdictions:
            return True
        return bool(self.regions_within) and self._names_within(place)

    def _names_within(self, place: Place) -> bool:
        for each in self.regions_within:
            if place.region in each.regions and place.jurisdiction in each.jurisdictions:
                return True
        return False


class Connector(Word):
    """Protocol by which the engines of a disaggregated pool hand a KV cache over. It determines what the gateway sends
    to each engine, and whether decoding is requested after the prefill or at the same time."""

    NIXL = "nixl"
    """vLLM: the prefill's response says where its blocks are, and the decode worker pulls them."""
    MOONCAKE = "mooncake"
    """vLLM: both engines are called at once, and meet under an id that the gateway made."""
    ASCEND = "ascend"
    """vllm-ascend: sequential as NIXL, with a mask on the prefill's one token."""
    SGLANG = "sglang"
    """SGLang: both engines are called at once, and meet in a bootstrap room."""

    @property
    def is_sequential(self) -> bool:
        """Return whether the decode worker is chosen only after the prompt has been prefilled."""
        return self in (Connector.NIXL, Connector.ASCEND)


ALL_CONNECTORS: Final = frozenset(Connector)


class Category(Word):
    """Kind of text of a prompt, as far as it affects how many bytes make a token."""

    CODE = "code"
    PROSE = "prose"
    """Text in a script that tokenizers know well: Latin, Cyrillic, Greek."""
    CJK = "cjk"
    MIXED = "mixed"
    """Other text, several kinds, or not examined."""


Classifier = Callable[[bytes], Category]
"""Function from excerpts of a text in UTF-8, together at most half a kilobyte and never empty, to its category. It runs
on the event loop for each request that is estimated, so it has microseconds. An exception of it counts as the gateway's
own error, and affects that request alone."""


class ServiceClass(Word):
    """Service class of a request: how soon it is served, and whether it yields to other requests.

    Ordered from the highest to the lowest: each yields to those before it.
    """

    INTERACTIVE = "interactive"
    """A user waits for the answer."""
    BATCH = "batch"
    """No user waits, but the request must be done: it uses idle capacity, here or in other regions, and yields."""
    BEST_EFFORT = "best_effort"
    """The request runs where a target is idle, or not at all."""

    @property
    def rank(self) -> int:
        """Rank of the class; 0 is the highest."""
        return _SERVICE_RANKS[self]


_SERVICE_RANKS: Final = {each: rank for rank, each in enumerate(ServiceClass)}


class NeededIdentity(Struct, frozen=True):
    """Identity of a model that a request is bound to: that of the target which answered it first, or failed it. An
    identity tells apart models of one name: revision, quantization and chat template of the weights."""

    name: str
    """The identity; empty: not known, so that no target is known to have the same."""
    takes_unknown: bool
    """A target whose identity is not known counts as having this one."""

    def takes(self, identity: str) -> bool:
        """Return whether a target of this identity may have the request; empty: the target's is not known."""
        return identity == self.name if identity else self.takes_unknown


HINTED_TOKENS_MAX = 2**31
HINTED_PRIORITY_MAX = 2**21


class HintKind(Word):
    """Kind of a hint: the name of its field in `Hints`."""

    OUTPUT_TOKENS = "output_tokens"
    PRIORITY = "priority"
    ENDS_SESSION = "ends_session"
    COMES_AGAIN = "comes_again"


class Hints(Struct, frozen=True, omit_defaults=True):
    """Hints of the client about a request and its session. They may spare work; none overrides a policy or a limit."""

    output_tokens: int = 0
    """Expected length of the answer; 0: not stated."""
    priority: int = 0
    """Order among the waiting requests of the same tenant, the highest first."""
    ends_session: bool = False
    """No further request of the session is expected."""
    comes_again: bool = False
    """Requests with the same beginning are expected."""

    def with_changes(self, changes: Mapping[str, int]) -> Hints:
        """Replace some fields by name; `NO_HINTS` itself where none is left that says anything."""
        changed = replace(self, **changes)
        return NO_HINTS if changed == NO_HINTS else changed

    def given(self) -> list[HintKind]:
        """Kinds of the hints that are given."""
        return [kind for kind in HintKind if getattr(self, kind)]

    def words(self) -> str:
        """The hints that are given, in words for operators; empty: there are none."""
        told = {kind: getattr(self, kind) for kind in self.given()}
        return ", ".join(kind if value is True else f"{kind} {value}" for kind, value in told.items())

    def output_within(self, output_tokens_max: int | None) -> int:
        """Expected length of the answer, at most its limit; 0: not stated."""
        return self.output_tokens if output_tokens_max is None else min(self.output_tokens, output_tokens_max)


NO_HINTS: Final = Hints()


class RequestProfile(Struct, frozen=True):
    """Properties of a request that decisions may use. It holds no text, so neither does the journal."""

    request_id: RequestId
    model: ModelName
    tenant: TenantName
    prompt_bytes: int
    """Size of the prompt as engines read it: bytes of its text, and four bytes for each token of its media parts."""
    prefix: bytes
    """Chained 64-bit block hashes, 8 bytes each, salted with model and tenant: equal hash i means equal blocks 0..i."""
    prefix_block_bytes: int
    """Bytes of prompt behind each hash, but for those of a long prompt's growing blocks (`block_sizes`)."""
    session_key: str
    """Key that keeps one user's or session's requests together under consistent hashing; never empty."""
    stream: bool
    output_tokens_max: int | None = None
    follows: str = ""
    """Key of the stored response that this request refers to; it can only run where that response was made."""
    is_control: bool = False
    """The request reads or cancels a stored response: it needs a healthy replica, not an available one, and never waits
    in the queue."""
    process: PlaceRule | None = None
    """Rule of the client's key on where it may be processed; it can only narrow the policy. None for a forward, whose
    residency stamp already includes it."""
    connectors: frozenset[Connector] = ALL_CONNECTORS
    """Connectors that can hand this call over from a prefill to a decode worker. Empty: one replica must run all of
    it."""
    prompt_key: bytes = b""
    """Hash of the prompt's full blocks, for data that outlives the process; made with a secret. Empty if not needed."""
    category: Category = Category.MIXED
    text_bytes: int = 0
    """UTF-8 bytes of the prompt's text, without JSON escapes and syntax and without pictures. 0: not counted;
    `prompt_bytes` is used instead."""
    extra_prompt_tokens: int = 0
    """Prompt tokens that come from no text: around messages, for pictures, or counted by the client."""
    budget_tokens: int = 0
    """Token budget of a forward, answer included, as its origin estimated it. 0: not stated."""
    appends: bool = False
    """The request is for a further segment of an answer: it needs an engine that can append to a text."""
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    sent_bytes: int = 0
    """Bytes of the prompt on the wire, where media parts make them differ from `prompt_bytes`; 0: no difference."""
    identity: NeededIdentity | None = None
    """Identity that the request is bound to since an attempt of it failed or broke; None: to none."""
    hints: Hints = NO_HINTS
    keeps_yielding: bool = False
    """The request is never served like an interactive one, however long it waits: its batch knows when it is urgent."""
    is_patient: bool = False
    """A placement policy may let the request wait beside targets that would take it at once: its batch has time to
    spare."""

    @property
    def bytes_to_send(self) -> int:
        return self.sent_bytes or self.prompt_bytes

    @property
    def prefix_blocks(self) -> int:
        return len(self.prefix) // PREFIX_HASH_BYTES

    def uncached_bytes(self, matched_blocks: int) -> int:
        """Bytes of the prompt that a target must still prefill if it has cached its first `matched_blocks` blocks."""
        if matched_blocks > EVEN_BLOCKS:
            return max(0, self.prompt_bytes - bytes_in(matched_blocks, self.prefix_block_bytes))
        return max(0, self.prompt_bytes - matched_blocks * self.prefix_block_bytes)

    def cached_bytes(self, matched_blocks: int) -> int:
        """Bytes of the prompt in its first `matched_blocks` blocks."""
        if matched_blocks > EVEN_BLOCKS:
            return min(self.prompt_bytes, bytes_in(matched_blocks, self.prefix_block_bytes))
        return matched_blocks * self.prefix_block_bytes


class Hops(Struct, frozen=True):
    """Number of times a request has been forwarded: at most one in-region hop, then one cross-region hop, which is
    final."""

    in_region: int = 0
    cross_region: int = 0

    @property
    def may_stay_in_region(self) -> bool:
        return self.in_region == 0 and self.cross_region == 0

    @property
    def may_cross_regions(self) -> bool:
        return self.cross_region == 0

    def is_within_limit(self, *, crosses_regions: bool) -> bool:
        """Return whether a request that arrives by a hop of this kind can carry these counts without breaking the hop
        rules."""
        if crosses_regions:
            return self.cross_region == 1 and self.in_region <= 1
        return self.in_region == 1 and self.cross_region == 0

    def after(self, *, crosses_regions: bool) -> Hops:
        return Hops(self.in_region + (not crosses_regions), self.cross_region + crosses_regions)


class ResidencyStamp(Struct, frozen=True):
    """Origin's statement about a forward: whose request it is and where it may be processed."""

    origin: Place
    tenant: TenantName
    rule: PlaceRule
    policy_digest: str


Notes = Mapping[str, tuple[int, ...]]
"""Counts that features of gateways tell each other about a request, by the feature's name."""


class Outcome(Word):
    """Outcome of a request; each request ends with exactly one."""

    COMPLETED = "completed"
    CLIENT_ERROR = "client_error"
    """The engine rejected the request (4xx); its response was relayed to the client."""
    ABANDONED = "abandoned"
    """The client, or the gateway that forwarded the request, disconnected first."""
    REJECTED_UNKNOWN_MODEL = "rejected_unknown_model"
    REJECTED_RESIDENCY_INGRESS = "rejected_residency_ingress"
    REJECTED_RESIDENCY_PROCESSING = "rejected_residency_processing"
    """The request may enter, but may not be processed anywhere that the model is served."""
    REJECTED_QUEUE_FULL = "rejected_queue_full"
    REJECTED_DRAINING = "rejected_draining"
    REJECTED_TENANT_LIMIT = "rejected_tenant_limit"
    """The tenant has reached its limit of waiting requests."""
    REJECTED_DEADLINE = "rejected_deadline"
    """The first token would come later than the objective of its class, at the rate at which queues drain."""
    REJECTED_TENANT_CONCURRENCY = "rejected_tenant_concurrency"
    """The tenant has reached this gateway's share of its concurrency limit."""
    REJECTED_TENANT_REQUEST_RATE = "rejected_tenant_request_rate"
    REJECTED_TENANT_TOKEN_RATE = "rejected_tenant_token_rate"  # noqa: S105
    REJECTED_UNKNOWN_RESPONSE = "rejected_unknown_response"
    """The request refers to a stored response that no reachable replica is remembered to have made."""
    REJECTED_TOO_LONG = "rejected_too_long"
    """No known pool takes a request of so many tokens."""
    REJECTED_UNSUPPORTED = "rejected_unsupported"
    """The model is served, but only by pools that cannot run this call: a disaggregated pool takes no embeddings."""
    EXPIRED_IN_QUEUE = "expired_in_queue"
    EXPIRED_RUNNING = "expired_running"
    FAILED_BEFORE_FIRST_BYTE = "failed_before_first_byte"
    FAILED_MIDSTREAM = "failed_midstream"
    FAILED_INTERNALLY = "failed_internally"
    """Internal error of this gateway. No target is blamed, and the request is not retried."""


class RefusalReason(Word):
    """Reason why a gateway refused a forward. The origin puts the request back at its original place in the queue."""

    RESIDENCY_NOT_ACCEPTED = "residency_not_accepted"
    """The receiver's policy does not accept traffic of this origin."""
    RESIDENCY_STAMP = "residency_stamp"
    """The origin's own stamp does not allow processing here."""
    UNKNOWN_MODEL = "unknown_model"
    BUSY = "busy"
    QUEUE_FULL = "queue_full"
    DRAINING = "draining"
    HOP_LIMIT = "hop_limit"
    DUPLICATE = "duplicate"
    DEADLINE = "deadline"
    UNKNOWN_RESPONSE = "unknown_response"
    TOO_LONG = "too_long"
    """No pool here takes a request of so many tokens."""
    LOCKDOWN = "lockdown"
    """An operator has stopped all forwarding."""


class LegRole(Word):
    """Part of a request that a leg runs."""

    WHOLE = "whole"
    """Whole request, from the prompt to the last token."""
    PREFILL = "prefill"
    """Only the prompt: the response is not sent to the client."""
    DECODE = "decode"
    """Decoding, from the first token on."""


class Extra(Word):
    """Extra output that the gateway requests from an engine although the client did not; it is removed from the
    response before the client sees it."""

    USAGE = "usage"
    """Token counts at the end of a stream."""
    TOKEN_IDS = "token_ids"  # noqa: S105
    """Ids of the generated tokens, with each event of a stream."""


class LegResult(Word):
    """Result of one leg at one target, as seen by the gateway that owns the leg."""

    COMPLETED = "completed"
    CLIENT_ERROR = "client_error"
    """4xx caused by the client: relayed, and never counted against the target."""
    TOO_LONG = "too_long"
    """The target does not take requests of this length, and the client has not been told: a longer pool may take it.
    Never counted against the target."""
    BUSY = "busy"
    """The target reported that it is full (engine 429 or 503): retry elsewhere; the target is alive."""
    FAILED = "failed"
    """Connection refused or lost, 5xx, garbage, error event, empty stream."""
    REFUSED = "refused"
    """A peer declined, with a RefusalReason."""
    CANCELLED = "cancelled"
    """Stopped by this gateway: the client left, the core ordered it, or the process is stopping."""
    TAKEN_BACK = "taken_back"
    """Closed by this gateway because nothing was heard of the target, or it will soon be gone: the request goes on
    elsewhere. Never counted against the target: the alarm may be false, and an announced end is no fault."""
    INTERNAL = "internal"
    """Failure of this gateway, not of the target: an internal error, or no free file descriptor. It says nothing about
    the target."""


class PlacementReason(Word):
    """Layer and rule that chose the target."""

    LOCAL_PREFIX = "local_prefix"
    LOCAL_EXPLORE = "local_explore"
    LOCAL_POLICY = "local_policy"
    LOCAL_PRICE = "local_price"
    SIBLING_PREFIX = "sibling_prefix"
    SIBLING_OVERFLOW = "sibling_overflow"
    SIBLING_PRICE = "sibling_price"
    REMOTE_PREFIX = "remote_prefix"
    REMOTE_NEAREST = "remote_nearest"
    REMOTE_POLICY = "remote_policy"
    REMOTE_PRICE = "remote_price"
    STORED_RESPONSE = "stored_response"
    """Only target that has the stored response the request refers to."""
    DECODE_POLICY = "decode_policy"
    """The prompt was prefilled elsewhere; the decode tier's policy chose the decode worker."""


class PoolStep(Word):
    """Step by which a request was assigned to the pool that it runs in."""

    PREFERRED = "preferred"
    """The pool meant for the request's budget, of all that it fits into."""
    SPILLED = "spilled"
    """The preferred pool was overloaded, and this pool's queue was empty."""
    STOOD_IN = "stood_in"
    """No replica of the preferred pool answered."""
    REMOTE = "remote"
    """Another gateway, which chooses among its own pools."""


class PoolChoice(Struct, frozen=True):
    """Pool of a placement and the reasons for it; only for models whose pools have a threshold."""

    step: PoolStep
    pool: PoolName | None
    """Chosen pool; None: another gateway was chosen, which chooses the pool itself."""
    preferred: PoolName | None
    """Preferred pool of this gateway; None: the request fits into none here."""
    need_tokens: int
    """Least context window that is sufficient: the next bound above the request's budget."""
    prompt_tokens: int
    output_tokens: int
    is_soft: bool
    """The client set no maximum, so the answer may be longer."""
    refused_tokens: int = 0
    """Context window of an engine that refused the request for its length; 0: none has."""


class Standing(Word):
    """First reason why a target could not take a request, or AVAILABLE."""

    AVAILABLE = "available"
    NOT_ALLOWED = "not_allowed"
    """The request's residency rule excludes the target's place, or the target does not accept requests from its
    origin."""
    FAILED_BEFORE = "failed_before"
    """A leg of this request failed there."""
    UNHEALTHY = "unhealthy"
    LOST = "lost"
    STALE = "stale"
    LEAVING = "leaving"
    """The replica was announced to be gone by a known time, and is sent nothing more."""
    DISTRUSTED = "distrusted"
    """The target failed or refused a leg, and no later observation has cleared it."""
    NOT_ACCEPTING = "not_accepting"
    BREAKER = "breaker"
    RAMP = "ramp"
    PENDING = "pending"
    """The engine reports pending requests."""
    CREDIT = "credit"
    """Own requests pushed since its last probe have used up the in-band credit."""
    OUTSTANDING = "outstanding"
    KV_FULL = "kv_full"
    """A prefill worker whose KV cache is fuller than allowed: prefilled prompts stay there until they are fetched."""
    DECODE_FULL = "decode_full"
    """A prefill worker whose pool has no free decode slot for another prompt."""
    TOO_SHORT = "too_short"
    """The target has no pool that is known to take so long a request."""
    OTHER_IDENTITY = "other_identity"
    """The target serves another model under the same name than the one that the request is bound to."""
    QUEUE = "queue"
    """The peer's queue is longer than τ."""
    BUSY = "busy"
    """The peer reports no available replica, or its queue and this gateway's own forwards use up its reported room."""


class Figure(Struct, frozen=True):
    """Figure about a target beside its costs, which a placement policy went by."""

    name: str
    amount: float | None
    """Amount in parts of the unit; None where it is not known."""
    unit: str
    per_unit: int = 1
    """Amount that makes one unit."""


class Costs(Struct, frozen=True):
    """Estimated costs of a request at a target, part by part, each weighted as it was compared."""

    reading_ns: float = 0.0
    """Prefill time of the part of the prompt that the target has not cached."""
    crowding_ns: float = 0.0
    """Slow-down that one more request causes to the requests running there."""
    waiting_ns: float = 0.0
    """Wait for the work ahead of it."""
    distance_ns: float = 0.0
    further: tuple[Figure, ...] = ()
    """Figures that are not part of the total."""

    @property
    def total_ns(self) -> float:
        return self.reading_ns + self.crowding_ns + self.waiting_ns + self.distance_ns


class DecodeLoad(Struct, frozen=True):
    """Load of a decode worker when it was considered."""

    group: str
    free_slots: int
    load_tokens: int
    """Tokens in its KV cache."""
    margin_tokens: int
    """Difference between the load of the group's fullest worker and this load."""


class Candidate(Struct, frozen=True):
    """One target that was considered for a placement, with its figures and costs."""

    target: Target
    standing: Standing
    matched_blocks: int
    load: int
    """Requests there: for a replica running and waiting ones, for a peer its queue and this gateway's unreflected
    forwards."""
    rtt_ns: int = 0
    costs: Costs | None = None
    """Set where costs were compared."""
    decode: DecodeLoad | None = None
    """Set for a decode worker."""


class Decision(Struct, frozen=True):
    """Record of one placement, for the log, the metrics and `explain`."""

    reason: PlacementReason
    matched_blocks: int
    prompt_blocks: int
    candidates: int
    """Number of targets that could have taken the request when it was placed."""
    waited_ns: int
    considered: tuple[Candidate, ...] = ()
    """The chosen target first, then others up to `considered_max`."""
    pool: PoolChoice | None = None
    """Set where pools were compared."""


class PoolKind(Word):
    UNIFIED = "unified"
    """Each replica runs a request from the prompt to the last token."""
    DISAGGREGATED = "disaggregated"
    """Prefill workers process prompts and hand their KV cache over to decode workers, which generate the answers."""


class ReplicaRole(Word):
    """Role of a replica in its pool."""

    UNIFIED = "unified"
    PREFILL = "prefill"
    DECODE = "decode"


class PoolSpec(Struct, frozen=True):
    """Common settings of the replicas of one pool, all in one place."""

    name: PoolName
    kind: PoolKind = PoolKind.UNIFIED
    connector: Connector | None = None
    """Set for a disaggregated pool only."""
    decode_batch_max: int = 0
    """Batch limit B: requests that one decode worker of a disaggregated pool runs at once."""
    kv_tokens: int = 0
    """Capacity of one decode worker's KV cache, in tokens; 0: as reported by the engine."""
    context_tokens_max: int = 0
    """Context window: most tokens of one request, its answer included; 0: no limit is known."""
    lease_ns: int = 30_000_000_000
    """Time that a prefill worker keeps a KV cache that is not fetched; NIXL's default is 30 s."""
    threshold_tokens: int = 0
    """Threshold B_short (token-budget pool routing, §2.2): requests of at most so many tokens prefer this pool to any
    longer one; 0: no threshold, any request that fits."""
    appends: bool = True
    """Other pools may append to broken answers of this pool, and this one to theirs, where the engines allow it."""
    features: tuple[tuple[str, str], ...] = ()
    """Settings of optional features for this pool: key of the region file and JSON, each written and read by its
    feature alone."""


REGION_FILE: Final = "region_file"
"""Source of a place that the operator's own region file states."""


Roots = Mapping[ModelName, str]
"""Known identities of an engine's models, as the engine tells them."""


class ReplicaSpec(Struct, frozen=True):
    """One replica assigned to this gateway, as configuration or the controller describes it."""

    replica_id: ReplicaId
    place: Place
    models: tuple[ModelName, ...]
    """Base models and LoRA adapters it serves."""
    pool: PoolName = DEFAULT_POOL
    sign_of_life_ns: int | None = None
    """Interval of liveness checks, set only for an engine that reports no load. The limit on outstanding legs then
    replaces its queue length, and it is stale once three checks are missed."""
    accepts: PlaceRule | None = None
    """Origins whose requests this replica may take, besides what this gateway's own policy allows: what the policy of
    its home region accepts. None: no further restriction; an empty rule: no origin."""
    role: ReplicaRole = ReplicaRole.UNIFIED
    group: str = ""
    """Barrier group of a decode worker: data-parallel ranks of one model wait for each other at every step. Empty: the
    worker is a group of its own."""
    appends: bool = True
    """The engine is known to be able to append to a text that another one began."""
    slots: int = 0
    """Requests that the engine runs at once, as declared by the operator; 0: not declared."""
    place_by: str = REGION_FILE
    """Source of the stated place: `region_file`, or `announced_by:GATEWAY`. No decision depends on it."""
    identity: str = ""
    """Identity of its models, as declared by the operator; empty: not declared."""
    roots: Roots = {}
    """Identity of each model as the engine tells it, where none is declared."""
    tells_cache: bool = False
    """The engine publishes what its KV cache stores and removes."""

    def identity_of(self, model: ModelName) -> str:
        """Identity of one model there; empty: not known."""
        return self.identity or self.roots.get(model, "")


class PeerSpec(Struct, frozen=True):
    """Another gateway, as this gateway's operator describes it. If the peer's own claims differ, it is not a target."""

    gateway_id: GatewayId
    place: Place
    place_by: str = REGION_FILE
    """Source of the stated place: `region_file` or `controller`. No decision depends on it."""


class ReplicaObservation(Struct, frozen=True):
    """One probe of one replica."""

    replica_id: ReplicaId
    sampled_ns: int
    """Time at which the probe was *sent*, on this gateway's clock: its numbers do not include later pushes."""
    healthy: bool
    running: int = 0
    waiting: int = 0
    """Requests accepted by the engine but not yet in its batch; these make a replica unavailable."""
    kv_usage: float = 0.0
    """Share of the KV cache in use, 0..1."""
    kv_tokens: int = 0
    """Capacity of the KV cache, in tokens; 0: not reported."""
    detail: str = ""
    deferred: int = 0
    """Waiting requests that wait for something other than room, such as a KV cache in transfer."""
    preemptions: int = 0
    """Sequences put back into the engine's queue for want of room since it started; 0: not reported."""
    slots: int = 0
    """Requests that the engine runs at once, as it reports; 0: not reported."""


class ModelCapacity(Struct, frozen=True):
    """Capacity of a gateway for one (model, pool) on replicas of one place."""

    model: ModelName
    pool: PoolName
    place: Place
    replicas: int
    available: int
    accepts: PlaceRule | None = None
    """Origins whose requests these replicas may take. Never sent to peers; see `LoadReport.told_to`."""
    load: int = 0
    """Requests on these replicas, running and waiting."""
    backlog_bytes: int = 0
    """Prompt bytes left to prefill at the replica that has least left."""
    free_tokens: int | None = None
    """Free KV cache tokens of the replica that has most; None: not known."""
    connector: Connector | None = None
    """Connector of a disaggregated pool, whose prefill workers are counted here: the pool serves only calls that can be
    handed over by it."""
    context_tokens_max: int = 0
    """Context window there, in tokens; 0: not reported, and only requests within the least known one are sent there."""
    threshold_tokens: int = 0
    """Same as `PoolSpec.threshold_tokens`."""
    room: int = 0
    """Requests that could begin at once on these replicas; negative: requests in their engines that wait for a slot."""
    release_ns: int = 0
    """Mean time between two requests leaving these replicas while all of their slots are taken; 0: not known."""
    identity: str = ""
    """Identity of the model on these replicas; empty: not known."""
    yielding: int = 0
    """Running requests whose slots an interactive request would be given at once."""
    spare: int = 0
    """Replicas that would each begin one more batch request at once."""


class ModelQueue(Struct, frozen=True):
    model: ModelName
    length: int
    pool: PoolName | None = None
    """Pool that the counted requests prefer. None: all requests that wait for the model."""
    appending: int = 0
    """Waiting requests for the model whose answer has begun: they go before the others. Told with pool None."""


_PROMPT_BYTES: Final = 16 * 1024
_PROMPT_TOKENS: Final = 4 * 1024
"""Offset of a long prompt, added to the prompt bytes left and the free tokens before relative changes are computed."""


class TenantUse(Struct, frozen=True):
    """Use of one gateway by a tenant with limits, for the gateways that share the limits. A forward counts only at the
    gateway where it arrived."""

    tenant: TenantName
    running: int = 0
    """Requests in progress."""
    demand: int = 0
    """Recent peak of requests that would have been in progress at once without the limit."""
    requests_per_minute: int = 0
    """Requests per minute asked for recently."""
    tokens_per_minute: int = 0
    told_in: PlaceRule | None = None
    """Places whose gateways may learn that the tenant exists. Never sent to peers; see `LoadReport.told_to`."""


class LoadReport(Struct, frozen=True):
    """Content of a heartbeat: everything that a peer needs to know about this gateway for placement."""

    gateway_id: GatewayId
    place: Place
    sequence: int
    accepting: bool
    """False while draining or without a readable policy."""
    assignment_version: int
    policy_digest: str
    capacities: tuple[ModelCapacity, ...] = ()
    queues: tuple[ModelQueue, ...] = ()
    control: ControlVersion = ControlVersion()
    """Version of the controller's snapshot that the gateway serves by; zeros: none."""
    uses: tuple[TenantUse, ...] = ()
    """Use by tenants with limits that ask for anything."""

    def told_to(self, place: Place | None) -> LoadReport:
        """Report as sent to a peer in `place` (None: its place is unknown): without capacities that would refuse
        requests from there, and without tenants that must not be known there."""
        if not self.uses and all(each.accepts is None for each in self.capacities):
            return self
        taking = (each for each in self.capacities if each.accepts is None or (place and each.accepts.allows(place)))
        uses = (each for each in self.uses if each.told_in is None or (place and each.told_in.allows(place)))
        return replace(
            self,
            capacities=tuple(replace(each, accepts=None) for each in taking),
            uses=tuple(replace(each, told_in=None) for each in uses),
        )

    def is_news_after(self, last: LoadReport, share: float) -> bool:
        """Return whether more has changed than numbers by up to a share of themselves. A change to or from zero always
        counts; prompt bytes left and free tokens are compared with a long prompt's added."""
        if self._words() != last._words():
            return True
        if self.uses != last.uses:  # small numbers, every change counts
            return True
        if self.capacities == last.capacities and self.queues == last.queues:
            return False
        now, before = self._numbers(), last._numbers()
        pairs = ((now.get(key, 0), before.get(key, 0)) for key in now.keys() | before.keys())
        return any(bool(new) != bool(old) or abs(new - old) > share * old for new, old in pairs)

    def _words(self) -> tuple[object, ...]:
        """All fields but the sequence number and the counted ones."""
        return self.gateway_id, self.place, self.accepting, self.assignment_version, self.policy_digest, self.control

    def _numbers(self) -> dict[tuple[object, ...], int]:
        """Counted values by what they count."""
        numbers: dict[tuple[object, ...], int] = {}
        for capacity in self.capacities:
            group = (
                capacity.model,
                capacity.pool,
                capacity.place,
                capacity.accepts,
                capacity.context_tokens_max,
                capacity.identity,
            )
            numbers[*group, "replicas"] = capacity.replicas
            numbers[*group, "available"] = capacity.available
            numbers[*group, "room"] = capacity.room
            numbers[*group, "yielding"] = capacity.yielding
            numbers[*group, "load"] = capacity.replicas + capacity.load  # one more on one of many is not reported
            # these drop to zero and rise again all the time
            numbers[*group, "backlog_bytes"] = _PROMPT_BYTES + capacity.backlog_bytes
            if capacity.free_tokens is not None:
                numbers[*group, "free_tokens"] = _PROMPT_TOKENS + capacity.free_tokens
        return numbers | {(queue.model, queue.pool, "queue"): queue.length for queue in self.queues}


class PeerObservation(Struct, frozen=True):
    """One heartbeat as received."""

    report: LoadReport
    generated_ns: int
    """Time at which the peer measured it, on this gateway's clock: time of receipt less the carried age and half a
    round trip."""
    heard_ns: int
    rtt_ns: int
    rtt_p99_ns: int
