"""The words of the mesh: ids, places, targets, outcomes and the plain values that events and effects carry.

Nothing here decides anything. One word stands for one thing, in code, config, metrics and docs alike.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Final, NewType

from gateway.core.value import value

RegionName = NewType("RegionName", str)
Jurisdiction = NewType("Jurisdiction", str)
GatewayId = NewType("GatewayId", str)
ReplicaId = NewType("ReplicaId", str)
ModelName = NewType("ModelName", str)
"""A name that clients put into `model`: a base model or a LoRA adapter, which is routed like a model of its own."""
PoolName = NewType("PoolName", str)
TenantName = NewType("TenantName", str)
RequestId = NewType("RequestId", str)

DEFAULT_POOL = PoolName("default")
PREFIX_HASH_BYTES = 8
"""Width of one block hash in a packed prefix chain."""


@value
class Place:
    """Where plaintext would be seen: a region and the jurisdiction whose law holds there."""

    region: RegionName
    jurisdiction: Jurisdiction


class Word(StrEnum):
    """One of a closed set of words. It is hashed as the text it is, which an enumeration would do in Python."""

    __hash__ = str.__hash__


@value
class ControlVersion:
    """Which controller said it, and when. Whoever took over later has a higher term; within one the version rises with
    each change. Not to be mixed up with a gateway's own count of its assignments."""

    term: int = 0
    version: int = 0

    def is_newer_than(self, other: ControlVersion) -> bool:
        return (self.term, self.version) > (other.term, other.version)


class TargetKind(Word):
    REPLICA = "replica"
    PEER = "peer"


@value
class Target:
    """Something a leg can be sent to: one of our replicas or another gateway."""

    kind: TargetKind
    id: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"


def replica_target(replica_id: ReplicaId) -> Target:
    return Target(TargetKind.REPLICA, replica_id)


def peer_target(gateway_id: GatewayId) -> Target:
    return Target(TargetKind.PEER, gateway_id)


@value
class RegionsWithin:
    """Each of these regions, but only while one of these jurisdictions holds there."""

    regions: frozenset[RegionName]
    jurisdictions: frozenset[Jurisdiction]


@value
class PlaceRule:
    """A set of places, named by jurisdiction or by region; a denied region is out, whatever else names it.

    Each way to be named only adds places, so whoever knows fewer of them reads a rule narrower than it is, never wider.
    """

    jurisdictions: frozenset[Jurisdiction] = frozenset()
    regions: frozenset[RegionName] = frozenset()
    denied_regions: frozenset[RegionName] = frozenset()
    regions_within: tuple[RegionsWithin, ...] = ()
    """What is left where one rule names regions and another one jurisdictions. No file says it."""

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
    """How the engines of a disaggregated pool hand a KV cache over. It decides what the gateway has to say to either,
    and whether decoding is asked for after the prefill or beside it."""

    NIXL = "nixl"
    """vLLM: the prefill's answer says where its blocks are, and the decode worker pulls them."""
    MOONCAKE = "mooncake"
    """vLLM: both are asked at once, and meet under an id that the gateway made."""
    ASCEND = "ascend"
    """vllm-ascend: sequential as NIXL, with a mask on the prefill's one token."""
    SGLANG = "sglang"
    """Both are asked at once, and meet in a bootstrap room."""

    @property
    def is_sequential(self) -> bool:
        """Is the decode worker chosen only when the prompt has been read?"""
        return self in (Connector.NIXL, Connector.ASCEND)


ALL_CONNECTORS: Final = frozenset(Connector)


class Category(Word):
    """What kind of text a prompt is, as far as it matters for how many bytes make a token."""

    CODE = "code"
    PROSE = "prose"
    """In a script whose letters tokenizers know well: Latin, Cyrillic, Greek."""
    CJK = "cjk"
    MIXED = "mixed"
    """None of these, several, or nobody has looked."""


class ServiceClass(Word):
    """What a request's client was promised: how soon it is served, and what becomes of it when others want the room.

    From the best to the least: each yields to those before it."""

    INTERACTIVE = "interactive"
    """Somebody waits for it."""
    BATCH = "batch"
    """Nobody does, but it is to be done: it soaks up what is idle, here or in other regions, and yields."""
    BEST_EFFORT = "best_effort"
    """It runs where somebody is idle, or not at all."""

    @property
    def rank(self) -> int:
        """0 for the best."""
        return _SERVICE_RANKS[self]


_SERVICE_RANKS: Final = {each: rank for rank, each in enumerate(ServiceClass)}


@value
class RequestProfile:
    """What a decision may know of a request. It holds no text, so neither does the journal."""

    request_id: RequestId
    model: ModelName
    tenant: TenantName
    prompt_bytes: int
    """Size of the prompt as engines read it: bytes of its text, and four bytes for each token of its media parts."""
    prefix: bytes
    """Chained 64-bit block hashes, 8 bytes each, salted with model and tenant: equal hash i means equal blocks 0..i."""
    prefix_block_bytes: int
    """Bytes of prompt behind each hash; the last, partial block has none."""
    session_key: str
    """Keeps one user's or session's requests together under consistent hashing; never empty."""
    stream: bool
    output_tokens_max: int | None = None
    follows: str = ""
    """Key of the stored response that this request refers to; it can only run where that response was made."""
    is_control: bool = False
    """Looks at a stored response or cancels it: needs a healthy replica, not a free one, and never waits in the
    queue."""
    process: PlaceRule | None = None
    """What the client's key says besides the policy about where it may be processed: it can only narrow. A forward
    carries none, since the origin's stamp has it in."""
    connectors: frozenset[Connector] = ALL_CONNECTORS
    """Over which its call can be handed from a prefill to a decode worker. None: one replica has to run all of it."""
    prompt_key: bytes = b""
    """Stands for its prompt in what outlives the process: made with a secret. Empty where nobody asks for it."""
    category: Category = Category.MIXED
    text_bytes: int = 0
    """Of its prompt, the UTF-8 bytes that mean text: without JSON's escapes and marks, and without pictures. 0: nobody
    has counted, and `prompt_bytes` stands in."""
    extra_prompt_tokens: int = 0
    """Tokens of the prompt that come of no text: around messages, for pictures, or counted by the client."""
    budget_tokens: int = 0
    """Of a forward: what its origin takes it to come to, answer included. 0: it has not said."""
    goes_on: bool = False
    """It is the rest of an answer that broke: only an engine that continues a text may have it."""
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    sent_bytes: int = 0
    """Bytes of the prompt on the wire, where media parts make them differ from `prompt_bytes`; 0: no difference."""

    @property
    def bytes_to_send(self) -> int:
        return self.sent_bytes or self.prompt_bytes

    @property
    def prefix_blocks(self) -> int:
        return len(self.prefix) // PREFIX_HASH_BYTES

    def uncached_bytes(self, matched_blocks: int) -> int:
        """Of the prompt, what is left to read for whoever knows that many of its first blocks."""
        return max(0, self.prompt_bytes - matched_blocks * self.prefix_block_bytes)


@value
class Hops:
    """How often a request has been forwarded. One in-region hop, then one cross-region hop, which is final."""

    in_region: int = 0
    cross_region: int = 0

    @property
    def may_stay_in_region(self) -> bool:
        return self.in_region == 0 and self.cross_region == 0

    @property
    def may_cross_regions(self) -> bool:
        return self.cross_region == 0

    def is_within_limit(self, *, crosses_regions: bool) -> bool:
        """Could a request that arrives by a hop of this kind honestly carry these counts?"""
        if crosses_regions:
            return self.cross_region == 1 and self.in_region <= 1
        return self.in_region == 1 and self.cross_region == 0

    def after(self, *, crosses_regions: bool) -> Hops:
        return Hops(self.in_region + (not crosses_regions), self.cross_region + crosses_regions)


@value
class ResidencyStamp:
    """What the origin vouches for when it forwards: whose request this is and where it may be processed."""

    origin: Place
    tenant: TenantName
    rule: PlaceRule
    policy_digest: str


@value
class Resumes:
    """Of an answer that breaks: how often it may go on, or did, over all gateways that have to do with it."""

    count: int
    first_step_deaths: int = 0
    """Engines in a row, up to now, that failed what was left of it before they had said anything."""


class Outcome(Word):
    """How a request ended; each request ends with exactly one."""

    COMPLETED = "completed"
    CLIENT_ERROR = "client_error"
    """The engine found fault with the request (4xx); its answer went to the client."""
    ABANDONED = "abandoned"
    """The client, or the gateway that forwarded it, went away first."""
    REJECTED_UNKNOWN_MODEL = "rejected_unknown_model"
    REJECTED_RESIDENCY_INGRESS = "rejected_residency_ingress"
    REJECTED_RESIDENCY_PROCESSING = "rejected_residency_processing"
    """It may come in, but not be processed anywhere that the model is served."""
    REJECTED_QUEUE_FULL = "rejected_queue_full"
    REJECTED_DRAINING = "rejected_draining"
    REJECTED_TENANT_LIMIT = "rejected_tenant_limit"
    """This tenant has as many requests waiting as it may."""
    REJECTED_DEADLINE = "rejected_deadline"
    """As queues drain now, its first token would come later than its class was promised."""
    REJECTED_TENANT_CONCURRENCY = "rejected_tenant_concurrency"
    """It has as many under way as this gateway's share of its limit allows."""
    REJECTED_TENANT_REQUEST_RATE = "rejected_tenant_request_rate"
    REJECTED_TENANT_TOKEN_RATE = "rejected_tenant_token_rate"  # noqa: S105
    REJECTED_UNKNOWN_RESPONSE = "rejected_unknown_response"
    """It refers to a stored response that no replica in reach made, as far as we remember."""
    REJECTED_TOO_LONG = "rejected_too_long"
    """No pool that is known takes a request of so many tokens."""
    REJECTED_UNSUPPORTED = "rejected_unsupported"
    """The model is served, but only where this call cannot be run: a disaggregated pool takes no embeddings."""
    EXPIRED_IN_QUEUE = "expired_in_queue"
    EXPIRED_RUNNING = "expired_running"
    FAILED_BEFORE_FIRST_BYTE = "failed_before_first_byte"
    FAILED_MIDSTREAM = "failed_midstream"
    FAILED_INTERNALLY = "failed_internally"
    """This gateway met an error of its own over it. No target is to blame, and none is tried instead."""


class RefusalReason(Word):
    """Why a gateway did not take a forward. The origin puts the request back at its old place."""

    RESIDENCY_NOT_ACCEPTED = "residency_not_accepted"
    """Our policy does not accept this origin's traffic."""
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
    """Which part of a request a leg runs."""

    WHOLE = "whole"
    """From the prompt to the last token."""
    PREFILL = "prefill"
    """Only the prompt: its answer is not the client's."""
    DECODE = "decode"
    """From the first token on."""


class Extra(Word):
    """What an engine is asked to tell for us, where the client did not ask for it: it is taken out of the answer again
    on its way to the client."""

    USAGE = "usage"
    """How many tokens it counted, at the end of a stream."""
    TOKEN_IDS = "token_ids"  # noqa: S105
    """Which tokens it generated, with each event of a stream."""


class LegResult(Word):
    """How one leg at one target ended, as its owner saw it."""

    COMPLETED = "completed"
    CLIENT_ERROR = "client_error"
    """4xx with the client's name on it: relayed, and never held against the target."""
    TOO_LONG = "too_long"
    """The target takes no request of this length, and its client has not been told: a longer pool may take it. Like a
    client error, never held against the target."""
    BUSY = "busy"
    """The target said it is full (engine 429 or 503): try elsewhere; it is alive."""
    FAILED = "failed"
    """Connection refused or lost, 5xx, garbage, error event, empty stream."""
    REFUSED = "refused"
    """A peer declined, with a RefusalReason."""
    CANCELLED = "cancelled"
    """We stopped it: the client left, the core ordered it, or the process is stopping."""
    INTERNAL = "internal"
    """This gateway failed, not the target: an error of ours, or a descriptor that we do not have. It says nothing about
    the target."""


class PlacementReason(Word):
    """Why this target: which layer and which rule chose it."""

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
    """The only place that has the response it refers to."""
    DECODE_POLICY = "decode_policy"
    """The prompt has been read elsewhere; the decode tier's policy chose who writes the answer."""


class PoolStep(Word):
    """By which step a request came to the pool that it runs in."""

    PREFERRED = "preferred"
    """Of all that it fits into, the one that is meant for its budget."""
    SPILLED = "spilled"
    """That one was overloaded, and nobody waited for this one."""
    STOOD_IN = "stood_in"
    """Nobody of that one answered."""
    REMOTE = "remote"
    """Another gateway: it prefers among its own."""


@value
class PoolChoice:
    """Which pool a placement is in, and what that rested on. Only of models whose pools have a threshold."""

    step: PoolStep
    pool: PoolName | None
    """None at another gateway, which chooses."""
    preferred: PoolName | None
    """Of ours; None: we have none that it fits into."""
    need_tokens: int
    """The least context that will do: the next bound above its budget."""
    prompt_tokens: int
    output_tokens: int
    is_soft: bool
    """The client named no maximum, so that the answer may be longer."""
    refused_tokens: int = 0
    """What an engine that refused it for its length takes; 0: none has."""


class Standing(Word):
    """Whether a target could have taken a request, and if not, the first thing that stood against it."""

    AVAILABLE = "available"
    NOT_ALLOWED = "not_allowed"
    """The request's residency rule excludes its place, or it takes nothing from where the request arrived."""
    FAILED_BEFORE = "failed_before"
    """A leg of this request failed there."""
    UNHEALTHY = "unhealthy"
    LOST = "lost"
    STALE = "stale"
    DISTRUSTED = "distrusted"
    """It failed or turned away a leg, and has not been heard of since."""
    NOT_ACCEPTING = "not_accepting"
    BREAKER = "breaker"
    RAMP = "ramp"
    PENDING = "pending"
    """The engine reports pending requests."""
    CREDIT = "credit"
    """Our own pushes since its last probe have used up the in-band credit."""
    OUTSTANDING = "outstanding"
    KV_FULL = "kv_full"
    """A prefill worker whose KV cache is fuller than it may be: what it has handed over stays until it is fetched."""
    DECODE_FULL = "decode_full"
    """A prefill worker whose pool has no decode slot left for what it would read."""
    TOO_SHORT = "too_short"
    """It has no pool that takes so long a request, or does not say that it has."""
    QUEUE = "queue"
    """The peer's queue is longer than τ."""
    BUSY = "busy"
    """The peer has no available replica left that we have not used up."""


@value
class Costs:
    """What a request would cost at a target, part by part: estimates, each weighed as it was compared."""

    reading_ns: float = 0.0
    """Of what the target does not know of the prompt."""
    crowding_ns: float = 0.0
    """By one request more for those who run there."""
    waiting_ns: float = 0.0
    """For what is ahead of it."""
    distance_ns: float = 0.0
    first_token_ns: float | None = None
    """When the first token should come from there, from now on: an estimate that nothing weighs. Where prices are
    known."""
    money_micros: float | None = None
    """What the request would add to the bill, in millionths of the currency's unit. None: nobody knows the price."""
    currency: str = ""
    carbon_milligrams: float | None = None
    """Of CO2 that it would have made a replica emit beyond idling. None: nobody knows."""

    @property
    def total_ns(self) -> float:
        return self.reading_ns + self.crowding_ns + self.waiting_ns + self.distance_ns


@value
class DecodeLoad:
    """A decode worker as it stood when it was looked at."""

    group: str
    free_slots: int
    load_tokens: int
    """In its KV cache."""
    margin_tokens: int
    """How much less that is than what the fullest of its group has."""


@value
class Candidate:
    """One target that was looked at for a placement, with what spoke for and against it."""

    target: Target
    standing: Standing
    matched_blocks: int
    load: int
    """Requests there: for a replica running and waiting ones, for a peer its queue and our unreflected forwards."""
    rtt_ns: int = 0
    costs: Costs | None = None
    """Where costs were compared."""
    decode: DecodeLoad | None = None
    """Of a decode worker."""


@value
class Decision:
    """The record of one placement, kept for the log line, the metrics and `explain`."""

    reason: PlacementReason
    matched_blocks: int
    prompt_blocks: int
    candidates: int
    """How many targets could have taken it when it was placed."""
    waited_ns: int
    considered: tuple[Candidate, ...] = ()
    """The chosen target first, then others up to `considered_max`."""
    pool: PoolChoice | None = None
    """Where pools were compared."""


class PoolKind(Word):
    UNIFIED = "unified"
    """Each replica runs a request from the prompt to the last token."""
    DISAGGREGATED = "disaggregated"
    """Prefill workers read prompts, and hand their KV cache over to decode workers, which write answers."""


class ReplicaRole(Word):
    """What a replica does for its pool."""

    UNIFIED = "unified"
    PREFILL = "prefill"
    DECODE = "decode"


@value
class PoolSpec:
    """What the replicas of one pool have in common. A pool stands in one place."""

    name: PoolName
    kind: PoolKind = PoolKind.UNIFIED
    connector: Connector | None = None
    """Of a disaggregated pool, and of no other."""
    decode_batch_max: int = 0
    """Requests that one decode worker runs at once: B. Of a disaggregated pool."""
    kv_tokens: int = 0
    """Room in the KV cache of one decode worker, in tokens; 0: what the engine tells."""
    context_tokens_max: int = 0
    """Tokens that one request may come to, its answer included; 0: no limit is known."""
    lease_ns: int = 30_000_000_000
    """How long a prefill worker keeps what nobody has fetched: NIXL's default is 30 s."""
    threshold_tokens: int = 0
    """Requests that come to so many tokens or less are meant for this pool, before any longer one; 0: whatever fits.
    (B_short of token-budget pool routing, §2.2.)"""
    resumes: bool = True
    """Answers that break here go on elsewhere, and others' here, where that is sound."""


@value
class ReplicaSpec:
    """One engine we own, as configuration or the controller describes it."""

    replica_id: ReplicaId
    place: Place
    models: tuple[ModelName, ...]
    """Base models and LoRA adapters it serves."""
    pool: PoolName = DEFAULT_POOL
    sign_of_life_ns: int | None = None
    """Set for an engine that tells no load: how often it is asked whether it lives. The limit on outstanding legs
    then stands in for its queue, and it is stale once three signs are missing."""
    accepts: PlaceRule | None = None
    """Where a request must have arrived that this replica may take, besides what our own policy says: what the policy
    of its home accepts. None: what our own policy lets in; an empty rule: nowhere."""
    role: ReplicaRole = ReplicaRole.UNIFIED
    group: str = ""
    """Of a decode worker: with whom it steps in time. Ranks that are data-parallel for one model wait for each other at
    every step; whoever stands alone is a group of its own."""
    continues: bool = True
    """The engine is known to go on with a text that another one began."""
    slots: int = 0
    """Requests that the engine runs at once, as the operator declares it; 0: not declared."""


@value
class PeerSpec:
    """Another gateway, as our own operator describes it. What the peer claims must agree, or it is no target."""

    gateway_id: GatewayId
    place: Place


@value
class ReplicaObservation:
    """One probe of one replica."""

    replica_id: ReplicaId
    sampled_ns: int
    """When the probe was *sent*, on our clock: what we pushed later is not in its numbers."""
    healthy: bool
    running: int = 0
    waiting: int = 0
    """Accepted by the engine, not yet in its batch: what makes a replica unavailable."""
    kv_usage: float = 0.0
    """Share of the KV cache in use, 0..1."""
    kv_tokens: int = 0
    """Room in the KV cache; 0 where the engine does not tell."""
    detail: str = ""
    deferred: int = 0
    """Of those waiting, the ones that wait for something else than room, such as a KV cache that is on its way."""
    preemptions: int = 0
    """Sequences that it has put back into its queue for want of room, since it started; 0 where it does not tell."""
    slots: int = 0
    """Requests that the engine runs at once, as it tells; 0 where it does not tell."""


@value
class ModelCapacity:
    """What a gateway can do for one (model, pool) on replicas of one place."""

    model: ModelName
    pool: PoolName
    place: Place
    replicas: int
    available: int
    accepts: PlaceRule | None = None
    """Where a request must have arrived that these may take. Only we know it: see `LoadReport.told_to`."""
    load: int = 0
    """Requests on them, running and waiting."""
    backlog_bytes: int = 0
    """Of prompts, what the one among them that has least to read has to read."""
    free_tokens: int | None = None
    """Room in the KV cache of the one among them that has most; None: nobody knows."""
    connector: Connector | None = None
    """Of a disaggregated pool, whose replicas are its prefill workers: only calls that can be handed over it are for
    it."""
    context_tokens_max: int = 0
    """Tokens that one request may come to there; 0: nobody says, and whoever needs more than the least stays away."""
    threshold_tokens: int = 0
    """As in `PoolSpec`."""
    room: int = 0
    """Requests that could begin at once on these replicas; negative: requests in their engines that wait for a slot."""
    release_ns: int = 0
    """Mean time between two requests leaving these replicas while all of their slots are taken; 0: not known."""


@value
class ModelQueue:
    model: ModelName
    length: int
    pool: PoolName | None = None
    """Of these, those that are meant for one pool. None: all that wait for the model."""


_PROMPT_BYTES: Final = 16 * 1024
_PROMPT_TOKENS: Final = 4 * 1024
"""A long prompt: shares of what is left to read, and of the room that is left, are taken of no less."""


@value
class TenantUse:
    """What a tenant with limits does at one gateway, for whoever keeps the limits with it. What was forwarded counts
    where it came in, and nowhere else."""

    tenant: TenantName
    running: int = 0
    """Requests under way."""
    demand: int = 0
    """Of late, the most that would have been under way at once."""
    requests_per_minute: int = 0
    """Of late, asked for."""
    tokens_per_minute: int = 0
    told_in: PlaceRule | None = None
    """Where it may be known that the tenant is there at all. Only we know it: see `LoadReport.told_to`."""


@value
class LoadReport:
    """A heartbeat's content: everything a peer may know of us when it looks for a place."""

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
    """Of the controller's snapshot that it serves by; zeros: by none."""
    uses: tuple[TenantUse, ...] = ()
    """Of tenants with limits that ask for anything."""

    def told_to(self, place: Place | None) -> LoadReport:
        """As a peer in `place` may count on it, or one whose place we do not know: without what would turn away
        whatever arrived there, and without tenants of whom nobody there may know."""
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
        """Does it say more than that some number moved by up to a share of itself? To and from zero is always news, but
        of what is left to read and of room, which are counted from a long prompt's."""
        if self._words() != last._words():
            return True
        if self.uses != last.uses:  # small numbers, of which each one counts
            return True
        if self.capacities == last.capacities and self.queues == last.queues:
            return False
        now, before = self._numbers(), last._numbers()
        pairs = ((now.get(key, 0), before.get(key, 0)) for key in now.keys() | before.keys())
        return any(bool(new) != bool(old) or abs(new - old) > share * old for new, old in pairs)

    def _words(self) -> tuple[object, ...]:
        """All but its number and those that it counts."""
        return self.gateway_id, self.place, self.accepting, self.assignment_version, self.policy_digest, self.control

    def _numbers(self) -> dict[tuple[object, ...], int]:
        """By what each counts."""
        numbers: dict[tuple[object, ...], int] = {}
        for capacity in self.capacities:
            group = capacity.model, capacity.pool, capacity.place, capacity.accepts, capacity.context_tokens_max
            numbers[*group, "replicas"] = capacity.replicas
            numbers[*group, "available"] = capacity.available
            numbers[*group, "room"] = capacity.room
            numbers[*group, "load"] = capacity.replicas + capacity.load  # one more on one of many is no news
            # these come to nothing and back all the time
            numbers[*group, "backlog_bytes"] = _PROMPT_BYTES + capacity.backlog_bytes
            if capacity.free_tokens is not None:
                numbers[*group, "free_tokens"] = _PROMPT_TOKENS + capacity.free_tokens
        return numbers | {(queue.model, queue.pool, "queue"): queue.length for queue in self.queues}


@value
class PeerObservation:
    """One heartbeat as it reached us."""

    report: LoadReport
    generated_ns: int
    """When the peer measured it, on *our* clock: time of receipt less the carried age and half a round trip."""
    heard_ns: int
    rtt_ns: int
    rtt_p99_ns: int
