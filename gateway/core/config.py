"""The numbers and choices that decisions depend on, validated by `gateway.config` and frozen here."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gateway.core.decode.config import DecodeConfig
from gateway.core.limits_config import SharesConfig
from gateway.core.sharing_config import ClassesConfig, SharingConfig, TenantConfig
from gateway.core.vocabulary import ModelName, TenantName

_MILLISECOND_NS = 1_000_000
_SECOND_NS = 1_000_000_000


class PlacementPolicy(StrEnum):
    """How one target is picked among those that are available: the policies that come with us (SkyWalker §3.2 and the
    baselines of §5.1). `gateway.core.placement` says what each of them does."""

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
    """When the least loaded replica is taken rather than the one that knows most of a prompt."""

    SHARE = "share"
    """Below `explore_below_share` of the prompt: the paper's rule (SkyWalker §5.1)."""
    WORTH = "worth"
    """When it is less loaded by more than the prompt's known bytes are worth, at `explore_load_bytes` a request: ours,
    and the default; docs/results/skywalker.md compares the two."""


class RemoteChoice(StrEnum):
    """Which of the regions that are available gets a request, under `PlacementPolicy.PREFIX`."""

    PREFIX = "prefix"
    """The one that was sent most of its prompt, ties by round trip (SkyWalker §3.2)."""
    FIRST_TOKEN = "first_token"  # noqa: S105
    """The one where the first token should come earliest: round trip, queue, and prefill of what it was not sent."""


class PeerAvailability(StrEnum):
    """Until when another gateway takes one more request, while its queue is not too long."""

    ROOM = "room"
    """While its engines have room for it, by its last heartbeat and less the forwards since."""
    FREE_REPLICA = "free_replica"
    """While it tells of a free replica, whatever was forwarded since: the paper's rule (SkyWalker §3.3)."""


class PushingMode(StrEnum):
    """When a replica counts as available (SkyWalker §3.3)."""

    PENDING = "pending"
    """SP-P: while the engine reports no pending request."""
    OUTSTANDING = "outstanding"
    """SP-O: while fewer than `outstanding_max` of our legs are in flight there."""
    BLIND = "blind"
    """BP: always."""


class OverflowMode(StrEnum):
    """Whether requests may leave for another region."""

    OFF = "off"
    SHADOW = "shadow"
    """They stay; what would have been forwarded is recorded."""
    ON = "on"


@dataclass(frozen=True, slots=True)
class PlacementConfig:
    policy: str = PlacementPolicy.COST
    """One of `PlacementPolicy`, or one that a plug-in brings."""
    policy_version: str | None = None
    """Of a plug-in: the only version that will do. None in a core's config: the policy came with us."""
    policy_options: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Of a plug-in: whatever it asks for."""
    explore_below_share: float = 0.5
    """Below this matched share of the prompt the least loaded replica is chosen instead under `ExploreRule.SHARE`
    (SkyWalker §5.1), and a sibling gateway that knows more is not followed under either rule."""
    explore_rule: ExploreRule = ExploreRule.WORTH
    explore_load_bytes: int = 128
    """Bytes of prompt whose prefill weighs as much as one more request on a replica, under `ExploreRule.WORTH`."""
    hold_ns: int = 50 * _MILLISECOND_NS
    """Under `PlacementPolicy.COST`: what takes longer to read waits here while a replica has longer to read."""
    hold_size_bytes: int = 2 * 2**10
    """Prompt that any engine reads in one iteration (token budgets begin at 512 tokens): less than that joins what it
    reads anyway, and never waits here for it."""
    delay_weight: float = 0.5
    """What a second of a client's waiting counts against one by which reading delays each of those who run."""
    spill_queue_length: int = 1
    """So many requests that are meant for one pool wait, and none of it is free, when the first of them goes to another
    pool that takes it and that nobody waits for."""
    too_long_slack_share: float = 0.5
    """By this share of what the longest pool takes, a request may be over that and go there all the same: it is an
    estimate, on the high side, and the engine will count. What is over it by more is refused at once."""
    kept_gaps: float = 3.0
    """A cache that keeps what nobody asks for through so many of the gaps between turns pushes out what nobody wants:
    nineteen of twenty come back sooner, were gaps without memory."""
    price_first_token_ns: int | None = None
    """Under `PlacementPolicy.PRICE`: when a first token is in time, for classes that are promised none by themselves.
    None: those are placed as by `COST`, since nothing holds money back."""
    price_first_token_share: float = 0.5
    """Of that time, how much an estimate may take up for a target to count as one in time; the rest is for what no
    estimate knows."""
    price_of_second: float = 0.0
    """What it is worth, in the unit of the prices' currency, that a request costs a second less by `COST`'s measure; 0:
    among those in time, money alone decides."""
    overflow: OverflowMode = OverflowMode.ON
    overflow_by_model: dict[ModelName, OverflowMode] = field(default_factory=dict)
    """Instead of `overflow`, for the models named here."""
    peer_queue_length_max: int = 10
    """τ: a peer with a longer queue for the model is not available (SkyWalker §3.3)."""
    peer_availability: PeerAvailability = PeerAvailability.ROOM
    remote_choice: RemoteChoice = RemoteChoice.PREFIX
    remote_prefix_min_share: float = 0.0
    """Below this matched share of the prompt, a region is chosen as if it knew nothing of it."""
    cache_aware_match_share: float = 0.3
    cache_aware_spread_max: int = 64
    """Loads are far apart when they differ by more than this, and by more than ..."""
    cache_aware_spread_ratio: float = 1.5
    """... this factor. All are SGLang's: `--cache-threshold`, `--balance-abs-threshold`, `--balance-rel-threshold`."""
    affinity_match_share: float = 0.8
    """From this matched share of the prompt on, a replica counts as one that has it; ..."""
    affinity_prefill_bytes: int = 64 * 2**10
    """... the prompt that an engine prefills in a second, when it does nothing else; ..."""
    affinity_wait_max_ns: int = 18 * _SECOND_NS
    """... how much longer the prefill before it may take than elsewhere. All are llm-d's: `affinityThreshold`,
    `peakPrefillThroughput` (15,928 tokens, for Qwen 32B on two H100), `maxTTFTPenaltyMs`."""
    sticky_load_ratio: float = 1.5
    """A session leaves its replica while that has this many times the average requests (HAProxy's
    `hash-balance-factor`)."""
    ring_virtual_nodes: int = 160
    prefix_index_bytes_max: int = 64 * 2**20
    prefix_ttl_ns: int = 3600 * _SECOND_NS
    considered_max: int = 5
    """Targets recorded with each decision, for `explain`; 0 records none."""
    stored_responses_max: int = 100_000
    """Stored responses whose place is remembered; over it, the oldest is forgotten."""

    def overflow_of(self, model: ModelName) -> OverflowMode:
        return self.overflow_by_model.get(model, self.overflow)


@dataclass(frozen=True, slots=True)
class PushingConfig:
    mode: PushingMode = PushingMode.PENDING
    in_band_credit: int | None = 4
    """Own pushes without a first token since the last probe, beyond which they count as pending. None: trust probes
    alone."""
    outstanding_max: int = 32


@dataclass(frozen=True, slots=True)
class QueueConfig:
    length_max: int = 10_000
    """All requests waiting at this gateway."""
    tenant_length_max: int = 10_000
    """Requests of one tenant among them."""
    wait_max_ns: int = 60 * _SECOND_NS


@dataclass(frozen=True, slots=True)
class AttemptConfig:
    attempts_max: int = 3
    refusals_max: int = 8
    """Refused forwards are not failures; a request stops looking for a peer after this many, and waits for its own
    region."""
    retry_budget_share: float = 0.2
    """Retries may add this share to the attempts, over all requests."""
    retry_budget_min: int = 10
    """Retries always in hand, so that a quiet gateway can retry at all."""
    first_token_deadline_ns: int = 120 * _SECOND_NS
    breaker_failures_in_row: int = 5
    breaker_window: int = 20
    breaker_failure_share: float = 0.5
    """With a full window of legs, this share of failures opens the breaker too: failing fast must not look idle."""
    breaker_open_ns: int = 5 * _SECOND_NS
    breaker_open_max_ns: int = 60 * _SECOND_NS
    ramp_step_ns: int = 1 * _SECOND_NS
    """A returning target may hold 1 leg, then twice as many after each step."""
    ramp_limit: int = 64
    """The ramp is over once it would allow this many."""


@dataclass(frozen=True, slots=True)
class ResumeConfig:
    """What becomes of an answer that breaks after its first token."""

    enabled: bool = True
    resumes_max: int = 3
    """Of one request."""
    wait_max_ns: int = 30 * _SECOND_NS
    """What a broken answer may wait for somebody to go on with it."""
    token_ids: bool = False
    """Engines are asked for the ids of what they write, which the client does not get: a rest is then exact."""


@dataclass(frozen=True, slots=True)
class ObservationConfig:
    replica_stale_ns: int = 2 * _SECOND_NS
    publish_interval_ns: int = 100 * _MILLISECOND_NS
    """Heartbeats go out on change, at most this often."""
    keep_alive_ns: int = 1 * _SECOND_NS
    publish_change_share: float = 0.0
    """A number in them has changed once it differs by more than this share of what was last said; 0: by anything."""


@dataclass(frozen=True, slots=True)
class TokenBudgetConfig:
    """How many tokens a request will come to is estimated by these (token-budget-aware pool routing, §2.1)."""

    ratio_start: float = 4.0
    """ĉ₀: bytes a token, before anybody has told. Of CJK at most half as many."""
    decay: float = 0.95
    """β: what is known weighs so much against the next answer; less while little is known."""
    caution: float = 1.0
    """γ: so many mean deviations below the mean is the ratio that is reckoned with."""
    output_share: float = 0.95
    """Where the client names no maximum: of the answers before, so many were no longer than is reckoned with; ..."""
    output_start_tokens: int = 1024
    """... and before any are known, this."""
    tenants_max: int = 4096
    """Pairs of tenant and category, for each of which what its own prompts are like is remembered; over it, the one
    that was not heard of for longest is forgotten."""


@dataclass(frozen=True, slots=True)
class ThresholdConfig:
    """How a short pool's threshold tunes itself, where it does (token-budget-aware pool routing, §7)."""

    tuned: bool = False
    """False: it stays where it was set."""
    tokens_min: int = 1024
    """It never comes down below this, unless it was set there; nor does it go beyond its pool's window."""
    interval_ns: int = 10 * _SECOND_NS
    """Between two moves, at least."""
    requests_min: int = 200
    """That must have ended since the last look, before there is another."""
    trouble_share: float = 0.01
    """More than this share of the short pool's requests preempted, rejected or misrouted: it comes down."""
    late_ns: int = 2 * _SECOND_NS
    """A first token that takes longer is late."""
    late_share: float = 0.05
    """More than this share late in one pool, and fewer in the other: requests are moved to the other."""
    tighten: float = 0.8
    """What it is multiplied by when it comes down, ..."""
    relax: float = 1.1
    """... and when it goes up."""
    patience_ns: int = 300 * _SECOND_NS
    """How long it stays below where it had to come down from; doubled each time that trying beyond was a mistake."""


@dataclass(frozen=True, slots=True)
class CoreConfig:
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    pushing: PushingConfig = field(default_factory=PushingConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
    attempt: AttemptConfig = field(default_factory=AttemptConfig)
    observation: ObservationConfig = field(default_factory=ObservationConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    token_budget: TokenBudgetConfig = field(default_factory=TokenBudgetConfig)
    resume: ResumeConfig = field(default_factory=ResumeConfig)
    threshold: ThresholdConfig = field(default_factory=ThresholdConfig)
    tenants: dict[TenantName, TenantConfig] = field(default_factory=dict)
    """What was promised to those that are named; `default` stands for everybody else."""
    sharing: SharingConfig = field(default_factory=SharingConfig)
    classes: ClassesConfig = field(default_factory=ClassesConfig)
    shares: SharesConfig = field(default_factory=SharesConfig)
