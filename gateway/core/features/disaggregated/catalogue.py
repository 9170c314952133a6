"""Decode policies that know nothing of experts, by their config name. A feature may add others."""

from __future__ import annotations

from gateway.core.features.disaggregated.balance_route import BalanceRoute
from gateway.core.features.disaggregated.config import DecodePolicyName
from gateway.core.features.disaggregated.join_shortest_queue import JoinShortestQueue
from gateway.core.features.disaggregated.least_kv_tokens import LeastKvTokens
from gateway.core.features.disaggregated.policy import DecodePolicies
from gateway.core.features.disaggregated.power_of_two import PowerOfTwo
from gateway.core.features.disaggregated.random_choice import RandomChoice
from gateway.core.features.disaggregated.round_robin import RoundRobin

BUILT_IN: DecodePolicies = {
    DecodePolicyName.RANDOM: RandomChoice,
    DecodePolicyName.ROUND_ROBIN: RoundRobin,
    DecodePolicyName.POWER_OF_TWO: PowerOfTwo,
    DecodePolicyName.JOIN_SHORTEST_QUEUE: JoinShortestQueue,
    DecodePolicyName.LEAST_KV_TOKENS: LeastKvTokens,
    DecodePolicyName.BR_0: BalanceRoute,
    DecodePolicyName.BR_H: BalanceRoute,
}
