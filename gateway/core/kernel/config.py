"""Settings that the core's decisions depend on, validated by `gateway.config` and frozen here."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field

from gateway.core.vocabulary import ModelName, ReplicaSpec

_MILLISECOND_NS = 1_000_000
_SECOND_NS = 1_000_000_000


class PlacementPolicy(StrEnum):
    """Built-in rules for picking one target among those available (SkyWalker §3.2 and the baselines of §5.1).
    `gateway.core.placement` describes each."""

    COST = "cost"
    PREFIX = "prefix"
    CONSISTENT_HASH = "consistent_hash"
    ROUND_ROBIN = "round_robin"
    LEAST_LOAD = "least_load"
    RANDOM = "random"
    POWER_OF_TWO = "power_of_two"
    CACHE_AWARE = "cache_aware"
    NEAREST_REGION = "nearest_region"
    LMETRIC = "lmetric"
    AFFINITY_LOAD = "affinity_load"
    SESSION_STICKY = "session_sticky"
    PRICE = "price"


class ExploreRule(StrEnum):
    """Rule by which the prefix policy takes the least loaded replica instead of the one that knows most of a prompt."""

    SHARE = "share"
    """Below `explore_below_share` of the prompt: the paper's rule (SkyWalker §5.1)."""
    WORTH = "worth"
    """The least loaded replica wins when it is less loaded by more than the prompt's known bytes are worth, at
    `explore_load_bytes` a request. The default; docs/results/skywalker.md compares the two."""
    RATIO = "ratio"
    """The least loaded replica wins while the other would have, with this request, more than `explore_load_ratio` times
    the mean load, rounded up: ELDR's rule for prefill workers (ELDR §6), with the bound of consistent hashing with
    bounded loads."""


class RemoteChoice(StrEnum):
    """Rule that picks one of the available regions for a request, under `PlacementPolicy.PREFIX`."""

    PREFIX = "prefix"
    """The region that was sent most of the prompt before, ties by round trip (SkyWalker §3.2)."""
    FIRST_TOKEN = "first_token"  # noqa: S105
    """The region where the first token should come earliest: round trip, queue, and prefill of the part it was not
    sent."""


class PeerAvailability(StrEnum):
    """Condition under which a peer counts as able to take one more request, besides a queue that is short enough."""

    ROOM = "room"
    """The peer's engines have room for the request, by its last heartbeat and less the forwards since."""
    FREE_REPLICA = "free_replica"
    """The peer's heartbeat reports a free replica, whatever was forwarded since: the paper's rule (SkyWalker §3.3)."""


class PushingMode(StrEnum):
    """Condition under which a healthy replica counts as available (SkyWalker §3.3)."""

    PENDING = "pending"
    """SP-P: the engine reports no pending request."""
    OUTSTANDING = "outstanding"
    """SP-O: fewer than `outstanding_max` legs of this gateway are in flight there."""
    BLIND = "blind"
    """BP: always, whatever its load."""


class OverflowMode(StrEnum):
    """Permission to forward requests to another region."""

    OFF = "off"
    SHADOW = "shadow"
    """Requests stay in the region; the forward that overflow would have made is recorded."""
    ON = "on"


class PlacementConfig(Struct, frozen=True):
    """Placement of requests on replicas and peers, and overflow to other regions."""

    policy: str = PlacementPolicy.COST
    """Built-in policy, such as `cost`, `price` or `round_robin`, or the name of a plug-in's policy."""
    policy_version: str | None = None
    """Version that a plug-in's policy must have; no other is accepted."""
    policy_options: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Options of a plug-in's policy, defined by the plug-in."""
    explore_below_share: float = 0.5
    """Matched share of the prompt below which the least loaded replica is chosen instead under `explore_rule: share`
    (SkyWalker §5.1), and below which a sibling gateway that knows more is not followed, under either rule."""
    explore_rule: ExploreRule = ExploreRule.WORTH
    explore_load_bytes: int = 128
    """Bytes of prompt whose prefill weighs as much as one more request on a replica, under `explore_rule: worth`."""
    explore_load_ratio: float = 1.25
    """Multiple of the mean load, over all replicas that may serve the request, full ones and the request itself
    included, above which a replica that knows the prompt is passed over for the least loaded one, under `explore_rule:
    ratio`."""
    hold_ns: int = 50 * _MILLISECOND_NS
    """Prefill time above which a request waits at this gateway while its replica has longer than that to prefill, under
    `policy: cost`."""
    hold_size_bytes: int = 2 * 2**10
    """Bytes of prompt that any engine prefills in one iteration (token budgets begin at 512 tokens). A request with
    less to prefill joins the running iteration anyway and never waits here for that."""
    delay_weight: float = 0.5
    """Weight of a second that a client waits, against a second by which prefill delays each request that runs."""
    spill_queue_length: int = 1
    """Number of requests waiting for one pool, with none of its replicas available, at which the first of them spills
    over to another pool that takes it and that no request waits for."""
    too_long_slack_share: float = 0.5
    """Share of the longest pool's limit by which a request's firm tokens (its prompt, and its output if the client set
    a maximum) may exceed that limit and still go there: the estimate is on the high side, and the engine counts
    exactly. A larger excess is refused at once."""
    kept_gaps: float = 3.0
    """Number of average gaps between two turns of a session for which a replica's cache must keep unused prompts. A
    cache that keeps them for less pushes out what is still wanted. Three covers nineteen of twenty gaps, if gaps have
    no memory."""
    price_first_token_ns: int | None = None
    """Time to first token that a target must meet under `policy: price`, for service classes without an
    objective. None: their requests are placed as by `cost`, since nothing would bound the delay that a lower price is
    worth."""
    price_first_token_share: float = 0.5
    """Share of `price_first_token` that an estimate may use for its target to count as in time; the rest covers
    estimation errors."""
    price_of_second: float = 0.0
    """Price of one second of cost as `cost` measures it, in units of the prices' currency. 0: among targets in time,
    money alone decides."""
    overflow: OverflowMode = OverflowMode.ON
    overflow_by_model: dict[ModelName, OverflowMode] = field(default_factory=dict)
    """Overrides of `overflow`, by model."""
    peer_queue_length_max: int = 10
    """τ: a peer with a longer queue for the model is not available (SkyWalker §3.3)."""
    peer_availability: PeerAvailability = PeerAvailability.ROOM
    remote_choice: RemoteChoice = RemoteChoice.PREFIX
    remote_prefix_min_share: float = 0.0
    """Matched share of the prompt below which a region is chosen as if it knew none of it."""
    cache_aware_match_share: float = 0.3
    """Matched share of the prompt above which the best match is chosen under `policy: cache_aware`, while loads are
    close."""
    cache_aware_spread_max: int = 64
    """Difference of loads, in requests, above which they count as far apart, if `cache_aware_spread_ratio` is exceeded
    as well."""
    cache_aware_spread_ratio: float = 1.5
    """Ratio of loads above which they count as far apart, if `cache_aware_spread_max` is exceeded as well. The three
    `cache_aware` keys are SGLang's `--cache-threshold`, `--balance-abs-threshold` and `--balance-rel-threshold`."""
    affinity_match_share: float = 0.8
    """Matched share of the prompt from which a replica counts as having it."""
    affinity_prefill_bytes: int = 64 * 2**10
    """Bytes of prompt that an idle engine prefills in a second."""
    affinity_wait_max_ns: int = 18 * _SECOND_NS
    """Longest additional prefill ahead of a request, compared with other replicas, at a replica that has its prompt.
    The three `affinity` keys are llm-d's `affinityThreshold`, `peakPrefillThroughput` (15,928 tokens, for Qwen 32B on
    two H100) and `maxTTFTPenaltyMs`."""
    sticky_load_ratio: float = 1.5
    """Multiple of the average number of requests at which a replica loses its sessions to others (HAProxy's
    `hash-balance-factor`)."""
    ring_virtual_nodes: int = 160
    """Points of each target on the hash ring, under `policy: consistent_hash`."""
    prefix_index_bytes_max: int = 64 * 2**20
    """Memory of the prefix index; beyond it, the prefixes used least recently are forgotten."""
    prefix_ttl_ns: int = 3600 * _SECOND_NS
    """Time after its last use at which a prefix is forgotten."""
    considered_max: int = 5
    """Targets recorded with each decision, for `explain`; 0 records none."""
    stored_responses_max: int = 100_000
    """Stored responses whose target is remembered; over it, the oldest is forgotten."""

    def overflow_of(self, model: ModelName) -> OverflowMode:
        return self.overflow_by_model.get(model, self.overflow)


class PushingConfig(Struct, frozen=True):
    """Condition under which replicas are sent requests, and the bounds on it (SkyWalker §3.3)."""

    mode: PushingMode = PushingMode.PENDING
    in_band_credit: int | None = 4
    """Legs started since the last probe and without a first token, beyond which they count as pending. None: probes
    alone count."""
    outstanding_max: int = 32
    """Requests of this gateway in flight at one replica, under `mode: outstanding`, and at engines that report no
    load."""


def pushing_mode_of(spec: ReplicaSpec, mode: PushingMode) -> PushingMode:
    """Pushing mode of one replica: an engine that reports no load is limited by this gateway's own legs there."""
    if spec.sign_of_life_ns is not None and mode is PushingMode.PENDING:
        return PushingMode.OUTSTANDING
    return mode


class QueueConfig(Struct, frozen=True):
    """Queue of requests that wait for a target."""

    length_max: int = 10_000
    """Most requests in the queue; further ones are refused."""
    tenant_length_max: int = 10_000
    """Most requests of one tenant in the queue; further ones are refused."""
    wait_max_ns: int = 60 * _SECOND_NS
    """Longest wait in the queue; then the request is refused."""


class IdentityRule(StrEnum):
    """Rule on the identity of a model (revision, quantization and chat template) at targets that take over a
    request."""

    SAME_NAME = "same_name"
    """The rest of a broken answer never goes to a target that is known to have another identity. One that is not known
    counts as the same."""
    SAME = "same"
    """Identities must be known and equal, also for a request that fails before its first token."""


class AttemptConfig(Struct, frozen=True):
    """Attempts of a request, the retry budget, and the circuit breaker and ramp of each target."""

    attempts_max: int = 3
    """Most attempts of one request that may fail. A request is taken back from silent peers one time fewer, so that 1
    leaves it there."""
    refusals_max: int = 8
    """Most refused forwards of one request; after them it waits for its own region. Refusals are not failures. Also the
    most times that a request may find engines full before it is rejected."""
    retry_budget_share: float = 0.2
    """Share that retries may add to the attempts, over all requests."""
    retry_budget_min: int = 10
    """Retries that are always available, so that a quiet gateway can retry at all."""
    first_token_deadline_ns: int = 120 * _SECOND_NS
    """Time within which an attempt has to bring its first token; then it counts as failed."""
    breaker_failures_in_row: int = 5
    """Consecutive failed legs that open the circuit breaker of a target."""
    breaker_window: int = 20
    """Latest legs of a target over which the share of failures is computed."""
    breaker_failure_share: float = 0.5
    """Share of failures in a full window of legs that opens the breaker too, so that failing fast never looks idle."""
    breaker_open_ns: int = 5 * _SECOND_NS
    """First time for which an open breaker keeps requests away; it doubles with each failure after it."""
    breaker_open_max_ns: int = 60 * _SECOND_NS
    """Longest time for which an open breaker keeps requests away."""
    ramp_step_ns: int = 1 * _SECOND_NS
    """Time between steps of the ramp: a returning target may hold 1 leg, then twice as many after each step."""
    ramp_limit: int = 64
    """Number of legs at which the ramp ends."""
    model_identity: IdentityRule = IdentityRule.SAME_NAME
    """Rule on the identity of the model where a request goes on after a failure."""
    model_identity_by_model: dict[ModelName, IdentityRule] = field(default_factory=dict)
    """Overrides of `model_identity`, by model."""

    def identity_rule_of(self, model: ModelName) -> IdentityRule:
        return self.model_identity_by_model.get(model, self.model_identity)


class ObservationConfig(Struct, frozen=True):
    """Age of engines' load reports, and the rate of heartbeats to peers."""

    replica_stale_ns: int = 2 * _SECOND_NS
    """Time without a successful probe after which a replica is not available."""
    publish_interval_ns: int = 100 * _MILLISECOND_NS
    """Shortest interval between two heartbeats; they are sent on change."""
    keep_alive_ns: int = 1 * _SECOND_NS
    """Longest interval between two heartbeats, if nothing has changed."""
    publish_change_share: float = 0.0
    """Share by which a number in the heartbeat must differ from the last one sent to count as changed; 0: any
    difference."""


class KernelConfig(Struct, frozen=True):
    """Settings that the kernel's decisions depend on. `gateway.core.config` adds those of features."""

    placement: PlacementConfig = field(default_factory=PlacementConfig)
    pushing: PushingConfig = field(default_factory=PushingConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
    attempt: AttemptConfig = field(default_factory=AttemptConfig)
    observation: ObservationConfig = field(default_factory=ObservationConfig)
