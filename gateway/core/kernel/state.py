"""State of one gateway: its config, policy, targets and requests, and the placer with its prefix indexes. It
answers queries; decisions are made elsewhere."""

from __future__ import annotations

import random

from gateway.core.kernel.config import KernelConfig
from gateway.core.kernel.drain_rates import DrainRates
from gateway.core.kernel.goodput import Goodput
from gateway.core.kernel.peers import Peers
from gateway.core.kernel.replicas import Replicas
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import RequestState
from gateway.core.kernel.residency import ResidencyPolicy, closed_policy
from gateway.core.kernel.timers import Timers
from gateway.core.kernel.waiting_requests import WaitingRequests
from gateway.core.placement.placer import Placer
from gateway.core.placement.policy import PlugIns, PolicyFactory
from gateway.core.vocabulary import (
    ControlVersion,
    GatewayId,
    ModelName,
    Place,
    RefusalReason,
    RequestId,
    RequestProfile,
    Target,
)


class ForwardingStop:
    """Reason why nothing is forwarded, neither from nor to this gateway."""

    __slots__ = ("refusal", "words")

    def __init__(self, refusal: RefusalReason, words: str) -> None:
        self.refusal = refusal
        """Reason that a peer is given."""
        self.words = words


class GatewayState:
    """State that the parts of `GatewayCore` share and change; all other code only reads it."""

    def __init__(self, gateway_id: GatewayId, place: Place, *, seed: int, plug_ins: PlugIns) -> None:
        self.gateway_id = gateway_id
        self.plug_ins = plug_ins
        """Finds placement policies that neither the core nor a feature has."""
        self.seed = seed
        """Seed of every source of chance in this core."""
        self.place = place
        self.config = KernelConfig()
        self.policy: ResidencyPolicy = closed_policy(place, "no policy applied yet")
        self.assignment_version = 0
        self.control = ControlVersion()
        self.rules_version = 0
        """Changes with every input of `Admission.admittance_of`: policy, `forwarding_stop`, and the replicas' `accepts`
        rules."""
        self.has_yielding = False
        """True from the first request of a class that yields on."""
        self.draining = False
        self.forwarding_stop: ForwardingStop | None = None
        """Reason why nothing is forwarded in either direction, whatever policy and config say; None: requests are
        forwarded."""
        self.requests: dict[RequestId, RequestState] = {}
        self.waiting = WaitingRequests()
        self.timers = Timers()
        self.replicas = Replicas(self.config, self.timers)
        self.peers = Peers(self.config, self.timers)
        self.placer = Placer(
            place.region,
            self.config.placement,
            self.replicas,
            self.peers,
            random.Random(seed),
            plug_ins=self.policy_named,
            pool_queue=self.waiting.pool_length,
            homes=self._homes,
        )
        self.drain_rates = DrainRates()
        self.goodput = Goodput()

    def _homes(self) -> int:
        """Mask of the replicas that some request is held for."""
        return self.waiting.homes

    def has_thresholds(self, model: ModelName) -> bool:
        """True if a pool of the model, here or at a peer, is meant for requests up to some length."""
        return model in self.replicas.groups.thresholds or model in self.peers.thresholds

    def context_max(self, model: ModelName) -> int:
        """Longest context of the model, here or at a peer, in tokens; 0 while some pool or peer states none."""
        bounds = [*self.replicas.groups.contexts(model), *self.peers.contexts(model)]
        return max(bounds) if bounds and min(bounds) > 0 else 0

    def policy_named(self, name: str) -> PolicyFactory:
        """Placement policy that is not built in, by its config name."""
        raise NotImplementedError

    def queue_share(self, profile: RequestProfile) -> float:
        """Share of the queue's limit above which a request that yields to others is not queued."""
        raise NotImplementedError

    def is_awaited(self, model: ModelName) -> bool:
        """True if targets of the model that are gone at present will come back, so that its requests may wait."""
        raise NotImplementedError

    def pinned(self, follows: str) -> Target | None:
        """Only target that can serve what follows from this key; None: it is not known."""
        raise NotImplementedError

    def longest_of(self, request_class: RequestClass) -> int | None:
        """Tokens of the longest request that any pool takes to which requests of this class may go; None: not known."""
        raise NotImplementedError
