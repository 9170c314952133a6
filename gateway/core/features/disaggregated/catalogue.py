"""Decode policies that know nothing of experts, by their config name. A feature may add others."""

from __future__ import annotations

from gateway.core.features.disaggregated.balance_route import BalanceRoute
from gateway.core.features.disaggregated.config import DecodePolicyName
from gateway.core.features.disaggregated.join_shortest_queue import JoinShortestQueue
from gateway.core.features.disaggregated.least_kv_tokens import LeastKvTokens
from gateway.core.features.disaggregated.policy import DecodePolicies
from gateway.core.features.disaggregated.power_of_two import DecodePowerOfTwo
from gateway.core.features.disaggregated.random_choice import DecodeRandomChoice
from gateway.core.features.disaggregated.round_robin import DecodeRoundRobin

BUILT_IN: DecodePolicies = {
    DecodePolicyName.RANDOM: DecodeRandomChoice,
    DecodePolicyName.ROUND_ROBIN: DecodeRoundRobin,
    DecodePolicyName.POWER_OF_TWO: DecodePowerOfTwo,
    DecodePolicyName.JOIN_SHORTEST_QUEUE: JoinShortestQueue,
    DecodePolicyName.LEAST_KV_TOKENS: LeastKvTokens,
    DecodePolicyName.BR_0: BalanceRoute,
    DecodePolicyName.BR_H: BalanceRoute,
}
