"""All decode policies, by their config name."""

from __future__ import annotations

from gateway.core.decode.balance_local import BalanceLocal
from gateway.core.decode.balance_route import BalanceRoute
from gateway.core.decode.config import DecodePolicyName
from gateway.core.decode.eldr import Eldr
from gateway.core.decode.join_shortest_queue import JoinShortestQueue
from gateway.core.decode.least_kv_tokens import LeastKvTokens
from gateway.core.decode.policy import DecodePolicy
from gateway.core.decode.power_of_two import PowerOfTwo
from gateway.core.decode.random_choice import RandomChoice
from gateway.core.decode.round_robin import RoundRobin

BUILT_IN: dict[str, type[DecodePolicy]] = {
    DecodePolicyName.RANDOM: RandomChoice,
    DecodePolicyName.ROUND_ROBIN: RoundRobin,
    DecodePolicyName.POWER_OF_TWO: PowerOfTwo,
    DecodePolicyName.JOIN_SHORTEST_QUEUE: JoinShortestQueue,
    DecodePolicyName.LEAST_KV_TOKENS: LeastKvTokens,
    DecodePolicyName.BR_0: BalanceRoute,
    DecodePolicyName.BR_H: BalanceRoute,
    DecodePolicyName.ELDR: Eldr,
    DecodePolicyName.BR_H_LOCAL: BalanceLocal,
}
