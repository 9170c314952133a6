"""Small random worlds in which one gateway tells two peers what its replicas hold, under policies and stamps drawn from
a seed: `python -m tests.support.digest_worlds WORLDS` plays many and counts fingerprints told to a peer that must not
have them.
"""

from __future__ import annotations

import random
import sys

from gateway.core.features.cache_digests.fingerprints import unpacked
from gateway.core.features.cache_digests.holdings import Holdings, group_under
from gateway.core.features.cache_digests.telling import Telling
from gateway.core.kernel.residency import ResidencyPolicy, TenantPolicy, closed_policy
from gateway.core.vocabulary import PREFIX_HASH_BYTES, Place, PlaceRule, TenantName
from tests.support.core import AP, EU, US

_PLACES = (US, EU, AP)
_TENANTS = (TenantName("acme"), TenantName("beta"), TenantName("plain"))
_STEPS = 8


def leaks_in(seed: int) -> tuple[int, int]:
    """Play one world. Returns the fingerprints that peers were told, and of those the ones that they must not have."""
    rng = random.Random(seed)
    holdings = Holdings(rng.choice((3, 100)))
    policy = _policy(rng)
    tellings = {place: Telling() for place in (EU, AP)}
    prompts: dict[int, list[tuple[TenantName, PlaceRule]]] = {}
    told = leaked = 0
    for now_ns in range(_STEPS):
        step = rng.random()
        if step < 0.1:
            policy = _policy(rng)
        elif step < 0.2:
            holdings.forget(rng.randrange(2))
        else:
            tenant, stamp, blocks = rng.choice(_TENANTS), _rule(rng), rng.randrange(1, 4)
            shared = random.Random(f"{tenant} {rng.randrange(3)}")
            chain = shared.randbytes(PREFIX_HASH_BYTES * blocks)
            for fingerprint in unpacked(chain):
                prompts.setdefault(fingerprint, []).append((tenant, stamp))
            group = group_under(tenant, stamp, tellings)
            holdings.record(group, chain, blocks, rng.randrange(2), now_ns, blocks_max=rng.choice((0, 4)))
        for place, telling in tellings.items():
            part = telling.next_part(holdings, policy, place, rng.choice((0, 72, 10_000)))
            for fingerprint in (*unpacked(part.added), *unpacked(part.removed)):
                told += 1
                leaked += not any(_allows(policy, place, *prompt) for prompt in prompts[fingerprint])
    return told, leaked


def _policy(rng: random.Random) -> ResidencyPolicy:
    if rng.random() < 0.1:
        return closed_policy(US, "its file cannot be read")
    tenants = {tenant: TenantPolicy(_rule(rng)) for tenant in _TENANTS if rng.random() < 0.5}
    return ResidencyPolicy(US, _rule(rng), PlaceRule(), tenants)


def _rule(rng: random.Random) -> PlaceRule:
    return PlaceRule(
        jurisdictions=frozenset(place.jurisdiction for place in _PLACES if rng.random() < 0.3),
        regions=frozenset(place.region for place in _PLACES if rng.random() < 0.4),
        denied_regions=frozenset(place.region for place in _PLACES if rng.random() < 0.1),
    )


def _allows(policy: ResidencyPolicy, place: Place, tenant: TenantName, stamp: PlaceRule) -> bool:
    """The rules, restated: a closed region tells no other one."""
    own = policy.tenants.get(tenant)
    rules = (stamp, policy.process if own is None else own.process)
    return not policy.closed_reason and all(_names(rule, place) for rule in rules)


def _names(rule: PlaceRule, place: Place) -> bool:
    is_named = place.region in rule.regions or place.jurisdiction in rule.jurisdictions
    return is_named and place.region not in rule.denied_regions


def main(worlds: int) -> int:
    told = leaked = 0
    for seed in range(worlds):
        found = leaks_in(seed)
        told, leaked = told + found[0], leaked + found[1]
    sys.stdout.write(f"{worlds:,} worlds: {told:,} fingerprints told, {leaked:,} to a peer that must not have them\n")
    return 1 if leaked else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
