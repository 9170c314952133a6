"""Cache digests between simulated gateways, followed by events alone: each fingerprint that a gateway is told must be
of a prompt that it might have processed. The rules are restated here, and no core is read.
"""

from __future__ import annotations

from gateway.core.events import Event
from gateway.core.features.cache_digests.events import DigestHeard
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.effects import Effect
from gateway.core.kernel.events import ForwardArrived, PolicyApplied, RequestArrived
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import PREFIX_HASH_BYTES, GatewayId, Place, PlaceRule, TenantName
from loadgen.simulator.checkers import Broken
from loadgen.simulator.observers import GatewaySpec

_Prompt = tuple[TenantName, PlaceRule | None]
"""Tenant of a prompt, and the rule of the stamp with which it was forwarded; None for a client's."""


class DigestWatch:
    """Observer of gateways."""

    def __init__(self) -> None:
        self._specs: dict[GatewayId, GatewaySpec] = {}
        self._prompts: dict[GatewayId, dict[bytes, dict[_Prompt, None]]] = {}
        """Prompts that came to each gateway, by the fingerprints of their blocks."""
        self._policies: dict[GatewayId, list[ResidencyPolicy]] = {}
        """Policies that each gateway has had: one that could not be read kept all prompts in the region meanwhile."""
        self.told = 0
        """Fingerprints that gateways were told."""

    def on_start(self, spec: GatewaySpec, _policy: ResidencyPolicy, _core: GatewayCore) -> None:
        self._specs[spec.gateway_id] = spec
        self._prompts.setdefault(spec.gateway_id, {})

    def on_step(self, now_ns: int, gateway_id: GatewayId, event: Event, _effects: list[Effect]) -> None:
        if not self._specs[gateway_id].config.cache_digests.enabled:
            return
        match event:
            case RequestArrived():
                self._came(gateway_id, event.profile.prefix, (event.profile.tenant, None))
            case ForwardArrived():
                self._came(gateway_id, event.profile.prefix, (event.profile.tenant, event.stamp.rule))
            case DigestHeard():
                self._heard(now_ns, gateway_id, event)
            case PolicyApplied():
                self._policies.setdefault(gateway_id, []).append(event.policy)
            case _:
                pass

    def _came(self, gateway_id: GatewayId, chain: bytes, prompt: _Prompt) -> None:
        prompts = self._prompts[gateway_id]
        for end in range(PREFIX_HASH_BYTES, len(chain) + 1, PREFIX_HASH_BYTES):
            prompts.setdefault(chain[end - PREFIX_HASH_BYTES : end], {})[prompt] = None

    def _heard(self, now_ns: int, gateway_id: GatewayId, event: DigestHeard) -> None:
        place = self._specs[gateway_id].place
        for packed in (event.part.added, event.part.removed):
            for at in range(0, len(packed), PREFIX_HASH_BYTES):
                self.told += 1
                prompts = self._prompts[event.gateway_id].get(packed[at : at + PREFIX_HASH_BYTES], {})
                if not any(self._may_know(event.gateway_id, place, prompt) for prompt in prompts):
                    detail = f"{event.gateway_id} tells {gateway_id} of {prompts or 'no prompt that it had'}"
                    raise Broken(now_ns, "digests go where their prompts may", detail)

    def _may_know(self, teller: GatewayId, place: Place, prompt: _Prompt) -> bool:
        """True if a prompt that came to one gateway might be processed in another's place."""
        tenant, stamp = prompt
        return (stamp is None or stamp.allows(place)) and any(
            self._rule_of(teller, policy, tenant).allows(place) for policy in self._policies[teller]
        )

    def _rule_of(self, teller: GatewayId, policy: ResidencyPolicy, tenant: TenantName) -> PlaceRule:
        if policy.closed_reason:
            return PlaceRule(regions=frozenset({self._specs[teller].place.region}))
        own = policy.tenants.get(tenant)
        return policy.process if own is None else own.process
