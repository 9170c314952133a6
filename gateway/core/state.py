"""State of one gateway: its config, policy, targets, requests and limits, and the placer with its prefix indexes. It
answers queries; decisions are made elsewhere."""

from __future__ import annotations

import random

from gateway.core.admission import WaitingRoom
from gateway.core.config import CoreConfig, OverflowMode
from gateway.core.decode_pools import DecodePools
from gateway.core.drains import Drains
from gateway.core.goodput import Goodput
from gateway.core.ladders import Ladders
from gateway.core.limits import Limits
from gateway.core.peers import Peers
from gateway.core.placement.placer import Placer
from gateway.core.placement.policy import PlugIns
from gateway.core.pools import Ladder
from gateway.core.replicas import Replicas
from gateway.core.requests import RequestClass, RequestState
from gateway.core.residency import ResidencyPolicy, closed_policy
from gateway.core.stored_responses import StoredResponses
from gateway.core.timers import Timers
from gateway.core.token_budget import TokenBudget
from gateway.core.vocabulary import ControlVersion, GatewayId, ModelName, Place, RequestId


class GatewayState:
    """State that the parts of `GatewayCore` share and change; all other code only reads it."""

    def __init__(self, gateway_id: GatewayId, place: Place, *, seed: int, plug_ins: PlugIns) -> None:
        self.gateway_id = gateway_id
        self.place = place
        self.config = CoreConfig()
        self.policy: ResidencyPolicy = closed_policy(place, "no policy applied yet")
        self.assignment_version = 0
        self.control = ControlVersion()
        self.away: frozenset[ModelName] = frozenset()
        """Models of replicas in this gateway's config that another gateway serves for the moment."""
        self.rules_version = 0
        """Changes with every input of `Intake.admittance_of`: policy, lockdown, and the replicas' `accepts` rules."""
        self.draining = False
        self.locked_down = False
        self.requests: dict[RequestId, RequestState] = {}
        self.waiting = WaitingRoom()
        self.timers = Timers()
        self.replicas = Replicas(self.config, self.timers)
        self.peers = Peers(self.config, self.timers)
        self.limits = Limits(gateway_id, place, self.peers, self.timers, self.policy)
        self.ladders = Ladders(place.region, self.replicas, self.peers)
        self.token_budget = TokenBudget(self.config.token_budget)
        self.placer = Placer(
            place.region,
            self.config.placement,
            self.replicas,
            self.peers,
            random.Random(seed),
            plug_ins=plug_ins,
            pool_queue=self.waiting.pool_length,
            homes=self._homes,
        )
        self.decode_pools = DecodePools(self.config.decode, self.replicas, self.timers, random.Random(seed))
        self.drains = Drains()
        self.goodput = Goodput()
        self.stored_responses = StoredResponses(self.config.placement.stored_responses_max)

    def _homes(self) -> int:
        """Mask of the replicas that some request is held for."""
        return self.waiting.homes

    def ladder_of(self, request_class: RequestClass) -> Ladder | None:
        """Pools that such requests may go to; None where pools are not distinguished by token budget."""
        overflows = self.config.placement.overflow_of(request_class.model) is OverflowMode.ON
        return self.ladders.of(request_class, overflows=overflows)
