"""What the decode tier of a pool is set to, which policies there are, and which of them go with which connector.

It checks, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.core.vocabulary import Connector, Word

_MILLISECOND_NS = 1_000_000
_SECOND_NS = 1_000_000_000


class DecodePolicyName(Word):
    """How decode workers are chosen: baselines first (BalanceRoute §6.1), then what this is all about."""

    RANDOM = "random"
    ROUND_ROBIN = "round_robin"
    POWER_OF_TWO = "power_of_two"
    JOIN_SHORTEST_QUEUE = "join_shortest_queue"
    LEAST_KV_TOKENS = "least_kv_tokens"
    BR_0 = "br_0"
    """BalanceRoute without prediction: §3."""
    BR_H = "br_h"
    """BalanceRoute that looks ahead as far as a predictor lets it: §4."""
    ELDR = "eldr"
    """Where a request's experts are in use already: ELDR §4.3.2."""
    BR_H_LOCAL = "br_h_local"
    """BR-H, each worker out of those requests that are near to its experts."""


@dataclass(frozen=True, slots=True)
class BalanceConfig:
    """Of `DecodePolicyName.BR_0` and `DecodePolicyName.BR_H`. BR-0 reads neither horizon, discount and weights nor what
    is said of predictions."""

    horizon_steps: int = 48
    """H: how many steps ahead a predicted end changes anything."""
    discount: float = 0.9
    """γ: what a step counts beside the one before it."""
    reward_weight: float = 1.0
    """α"""
    penalty_weight: float | None = None
    """β; None: as many as the group has workers, which is what BR-0 has."""
    greedy_above_slots: int | None = None
    """While more slots than this are free, requests are admitted one by one (stage 1); None: one a worker."""
    window: int = 32
    """C: among so many of those that wait, the largest, a subset is chosen (stage 2)."""
    block_tokens: int = 16
    """Subsets are told apart by blocks of so many tokens."""
    refresh_tokens: int = 24
    """R: a prediction is made anew after so many tokens; counted down in between."""
    confidence_min: float = 0.5
    """Below this probability of an end within the horizon, a request counts as one that stays."""
    decrements_stayers: bool = False
    """Does a prediction count down, too, that says no more than that the request stays? The paper's does."""


@dataclass(frozen=True, slots=True)
class LocalityConfig:
    """Of `DecodePolicyName.ELDR` and `DecodePolicyName.BR_H_LOCAL`."""

    band: float = 0.1
    """τ: workers whose centroids are so much less near than the nearest one's are as good; 0: only the nearest is, 1:
    everybody."""


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    policy: DecodePolicyName = DecodePolicyName.JOIN_SHORTEST_QUEUE
    tick_interval_ns: int = 10 * _MILLISECOND_NS
    """Entries are admitted together, at most this often."""
    admissions_max: int = 64
    """In one tick: what is left waits for the next one."""
    progress_interval_ns: int = 100 * _MILLISECOND_NS
    """How many tokens were generated is asked for at most this often."""
    pool_ttl_ns: int = 30 * _SECOND_NS
    """An entry leaves the pool after this time, or once its lease ends."""
    room_margin: int = 32
    """So many more may be in prefill or pooled than there are free decode slots: whom a subset is chosen among."""
    bypass: bool = False
    """Is an entry sent at once, wherever fewer than `in_flight_margin` beyond its batch are in flight?"""
    in_flight_margin: int = 2
    """Of a worker that is sent requests before it has a free slot: with `bypass`, or by a concurrent connector."""
    prefill_kv_max_share: float = 0.95
    """A prefill worker whose KV cache is fuller is sent nothing: what it has handed over stays until it is fetched."""
    considered_max: int = 5
    """Workers recorded with each admission, for `explain`; 0 records none."""
    balance: BalanceConfig = BalanceConfig()
    locality: LocalityConfig = LocalityConfig()

    @property
    def sends_at_once(self) -> bool:
        return self.bypass or self.policy is DecodePolicyName.ELDR


LOOKS_AHEAD = frozenset({DecodePolicyName.BR_H, DecodePolicyName.BR_H_LOCAL})
LATE_POLICIES = LOOKS_AHEAD
"""They choose among those that wait, and have nothing to choose from where each one is sent at once."""
LOCAL_POLICIES = frozenset({DecodePolicyName.ELDR, DecodePolicyName.BR_H_LOCAL})
"""They go by what a prompt's experts were, which nobody knows before it has been read."""


def check_decode(config: DecodeConfig, connector: Connector) -> None:
    """Raise ValueError, in words, over settings that do not go together."""
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


def out_of_bounds(config: DecodeConfig) -> Iterator[tuple[str, str]]:
    """What no tick could go by, or what would make it take as long as it likes."""
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
        ("locality.band", config.locality.band, 0, 1),
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
