"""Config of a pool's decode tier: the policies that exist, and the connectors that each can be used with. A pool's
description carries it as text.

This module checks settings and makes no decisions.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, json
from msgspec.structs import replace

from gateway.core.vocabulary import Connector, PoolSpec, Word

_MILLISECOND_NS = 1_000_000
_SECOND_NS = 1_000_000_000
_KEY = "decode"
"""Key of a pool's description that holds its `DecodeConfig`."""
_LOCALITY_KEY = "expert_locality"
"""Key of a pool's description that names an artifact of expert locality."""


class DecodePolicyName(Word):
    """Policies that choose decode workers: baselines first (BalanceRoute §6.1), then BalanceRoute and ELDR."""

    RANDOM = "random"
    ROUND_ROBIN = "round_robin"
    POWER_OF_TWO = "power_of_two"
    JOIN_SHORTEST_QUEUE = "join_shortest_queue"
    LEAST_KV_TOKENS = "least_kv_tokens"
    BR_0 = "br_0"
    """BalanceRoute without prediction: §3."""
    BR_H = "br_h"
    """BalanceRoute with lookahead over a predicted horizon: §4."""
    ELDR = "eldr"
    """Worker whose experts the request is likely to use: ELDR §4.3.2."""
    BR_H_LOCAL = "br_h_local"
    """BR-H, with each worker limited to requests near its experts."""


class BalanceConfig(Struct, frozen=True):
    """Settings of `DecodePolicyName.BR_0` and `DecodePolicyName.BR_H`. BR-0 ignores horizon, discount, weights and the
    settings of predictions."""

    horizon_steps: int = 48
    """Horizon H: number of steps ahead over which predicted ends matter."""
    discount: float = 0.9
    """Discount γ: weight of a step relative to the step before it."""
    reward_weight: float = 1.0
    """Reward weight α."""
    penalty_weight: float | None = None
    """Penalty weight β; None: the number of workers in the group, as for BR-0."""
    greedy_above_slots: int | None = None
    """Number of free slots above which requests are admitted one by one (stage 1); None: one slot per worker."""
    window: int = 32
    """Window C: number of largest waiting requests among which a subset is chosen (stage 2)."""
    block_tokens: int = 16
    """Resolution of subset sums, in tokens."""
    refresh_tokens: int = 24
    """Refresh interval R: a prediction is renewed after so many tokens, and counted down in between."""
    confidence_min: float = 0.5
    """Probability of an end within the horizon below which a request is assumed to stay."""
    decrements_stayers: bool = False
    """Count down predictions of requests assumed to stay as well, as the paper does."""


class DecodeConfig(Struct, frozen=True):
    """Admission of prefilled requests to the decode workers of a disaggregated pool."""

    policy: DecodePolicyName | None = None
    """Policy that chooses decode workers. None: `eldr` where the pool names an artifact of expert locality, `br_h`
    where the predictor foresees loads better than none, else `br_0`."""
    tick_interval_ns: int = 10 * _MILLISECOND_NS
    """Least interval between ticks; entries are admitted together at a tick."""
    admissions_max: int = 64
    """Most admissions in one tick; the rest waits for the next one."""
    progress_interval_ns: int = 100 * _MILLISECOND_NS
    """Least interval between queries of the tokens generated."""
    pool_ttl_ns: int = 30 * _SECOND_NS
    """Longest time in the pool; an entry leaves earlier if its lease ends."""
    room_margin: int = 32
    """Number of requests in prefill or pooled allowed beyond the free decode slots; subsets are chosen among them."""
    bypass: bool = False
    """Send an entry at once to a worker with fewer than `in_flight_margin` requests in flight beyond its batch."""
    in_flight_margin: int = 2
    """Requests in flight allowed beyond the batch of a worker that is sent requests before it has a free slot: with
    `bypass`, ELDR, or a concurrent connector."""
    prefill_kv_max_share: float = 0.95
    """KV cache usage above which a prefill worker is sent no requests: prefilled prompts stay there until they are
    fetched."""
    considered_max: int = 5
    """Workers recorded with each admission, for `explain`; 0 records none."""
    balance: BalanceConfig = BalanceConfig()
    band: float = 0.1
    """Band τ of `eldr` and `br_h_local`: workers whose centroid's cosine is at most this below the nearest one's count
    as near; 0: only the nearest, 1: every worker."""

    @property
    def sends_at_once(self) -> bool:
        return self.bypass or self.policy is DecodePolicyName.ELDR


class PolicySource(Word):
    """Reason for a pool's decode policy."""

    DESCRIPTION = "description"
    ARTIFACT = "artifact"
    PREDICTOR = "predictor"
    DEFAULT = "default"


_USUAL = {
    DecodePolicyName.ELDR: PolicySource.ARTIFACT,
    DecodePolicyName.BR_H: PolicySource.PREDICTOR,
    DecodePolicyName.BR_0: PolicySource.DEFAULT,
}
"""Policies of pools that name none, each with its reason."""


def decode_of(spec: PoolSpec, *, foresees: bool = False) -> DecodeConfig:
    """Settings of a pool, with the policy that it uses where it names none. `foresees`: the pool's predictor foresees
    loads better than expecting every request to stay."""
    config = written_decode(spec)
    if config.policy is not None:
        return config
    if _LOCALITY_KEY in dict(spec.features):
        return replace(config, policy=DecodePolicyName.ELDR)
    ahead = replace(config, policy=DecodePolicyName.BR_H)
    if foresees and spec.connector is not None and _is_usable(ahead, spec.connector):
        return ahead
    return replace(config, policy=DecodePolicyName.BR_0)


def policy_source(spec: PoolSpec, config: DecodeConfig) -> PolicySource:
    """Reason why the pool has the policy of `config`."""
    if config.policy is None or written_decode(spec).policy is not None:
        return PolicySource.DESCRIPTION
    return _USUAL[config.policy]


def written_decode(spec: PoolSpec) -> DecodeConfig:
    """Settings of a pool as they are written, maybe without a policy."""
    text = dict(spec.features).get(_KEY)
    return DecodeConfig() if text is None else json.decode(text, type=DecodeConfig)


LOOKS_AHEAD = frozenset({DecodePolicyName.BR_H, DecodePolicyName.BR_H_LOCAL})
LATE_POLICIES = LOOKS_AHEAD
"""Policies that choose among waiting requests, and therefore cannot send each request at once."""
LOCAL_POLICIES = frozenset({DecodePolicyName.ELDR, DecodePolicyName.BR_H_LOCAL})
"""Policies that use the experts of a request's prompt, which are known only after the prefill."""


def check_decode(config: DecodeConfig, connector: Connector) -> None:
    """Raise ValueError, with the reason in words, for settings that contradict each other or are out of bounds."""
    policy = config.policy
    if policy in LATE_POLICIES | LOCAL_POLICIES and not connector.is_sequential:
        raise ValueError(
            f"policy {policy} chooses among requests whose prompts have been read, and with connector {connector} the "
            f"decode worker is chosen before the prompt is read: take {DecodePolicyName.BR_0} or a baseline"
        )
    if policy in LATE_POLICIES and config.bypass:
        raise ValueError(
            f"policy {policy} chooses among requests that wait, and with bypass none of them does: "
            f"take {DecodePolicyName.BR_0} or a baseline"
        )
    for key, fault in out_of_bounds(config):
        raise ValueError(f"{key} {fault}")


def _is_usable(config: DecodeConfig, connector: Connector) -> bool:
    try:
        check_decode(config, connector)
    except ValueError:
        return False
    return True


def out_of_bounds(config: DecodeConfig) -> Iterator[tuple[str, str]]:
    """Yield (key, fault) for each setting that no tick could work with, or that would make ticks unboundedly slow."""
    balance = config.balance
    bounds: tuple[tuple[str, float, float, float], ...] = (
        ("admissions_max", config.admissions_max, 1, 100_000),
        ("room_margin", config.room_margin, 0, 1_000_000),
        ("in_flight_margin", config.in_flight_margin, 0, 100_000),
        ("balance.horizon_steps", balance.horizon_steps, 1, 1_000),
        ("balance.window", balance.window, 1, 256),
        ("balance.block_tokens", balance.block_tokens, 1, 100_000),
        ("balance.reward_weight", balance.reward_weight, 0.001, 1_000),
        ("balance.penalty_weight", 1 if balance.penalty_weight is None else balance.penalty_weight, 0.001, 100_000),
        ("balance.discount", balance.discount, 0.001, 1),
        ("balance.confidence_min", balance.confidence_min, 0, 1),
        ("balance.refresh_tokens", balance.refresh_tokens, 1, 1_000),
        ("band", config.band, 0, 1),
    )
    for key, number, least, most in bounds:
        if not least <= number <= most:
            yield key, f"{number}: it is {least:,} to {most:,}"
    if config.policy in LOOKS_AHEAD and balance.refresh_tokens >= balance.horizon_steps:
        told = (
            f"{balance.refresh_tokens}: a prediction is made anew within its horizon of {balance.horizon_steps} steps"
        )
        yield "balance.refresh_tokens", told
    if config.tick_interval_ns * 2 > config.pool_ttl_ns:
        yield "tick_interval", "is over half of pool_ttl: who waits would be sent on too late"
