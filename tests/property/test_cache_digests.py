"""Any order of prompts, policies and losses: no peer is told of a tenant that it must not process, and each peer that
hears everything knows exactly what it may."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.core.features.cache_digests.events import DigestPart
from gateway.core.features.cache_digests.fingerprints import unpacked
from gateway.core.features.cache_digests.holdings import Holdings, fingerprint_of, group_of, group_under
from gateway.core.features.cache_digests.telling import Telling, may_be_told
from gateway.core.features.cache_digests.told import ToldDigest
from gateway.core.kernel.residency import ResidencyPolicy, TenantPolicy, closed_policy
from gateway.core.placement.prefix_chain import prefix_chain
from gateway.core.vocabulary import PREFIX_HASH_BYTES, Place, PlaceRule, TenantName
from tests.support.core import AP, EU, US
from tests.support.digest_worlds import leaks_in
from tests.support.nightly import examples

TENANTS = [TenantName(name) for name in ("acme", "beta", "plain")]
PEERS = [EU, AP, US]
ENTRIES_MAX = 24
texts = st.lists(st.integers(0, 1), min_size=1, max_size=20).map(bytes)
rules = st.builds(
    PlaceRule,
    jurisdictions=st.frozensets(st.sampled_from([place.jurisdiction for place in PEERS])),
    regions=st.frozensets(st.sampled_from([place.region for place in PEERS])),
    denied_regions=st.frozensets(st.sampled_from([place.region for place in PEERS]), max_size=1),
)
policies = st.one_of(
    st.builds(
        ResidencyPolicy,
        place=st.just(US),
        process=rules,
        accept=rules,
        tenants=st.dictionaries(st.sampled_from(TENANTS[:2]), st.builds(TenantPolicy, rules)),
    ),
    st.just(closed_policy(US, "its file cannot be read")),
)


class DigestMachine(RuleBasedStateMachine):
    """One gateway tells three peers. `may_be_told` is checked against the rules themselves."""

    @initialize(policy=policies, blocks_max=st.sampled_from([0, 6, 30]))
    def open(self, policy: ResidencyPolicy, blocks_max: int) -> None:
        self.policy = policy
        self.blocks_max = blocks_max
        self.now_ns = 0
        self.holdings = Holdings(ENTRIES_MAX)
        self.prompts_of: dict[int, set[tuple[TenantName, PlaceRule]]] = {}
        """Tenants and stamps under which each fingerprint was ever recorded."""
        self.tellings = {place: Telling() for place in PEERS}
        self.told = {place: ToldDigest() for place in PEERS}

    @rule(tenant=st.sampled_from(TENANTS), stamp=rules, text=texts, slot=st.integers(0, 2))
    def prefill(self, tenant: TenantName, stamp: PlaceRule, text: bytes, slot: int) -> None:
        self.now_ns += 1
        chain, _ = prefix_chain(tenant.encode(), [text], block_bytes=1, blocks_max=100)
        for end in range(PREFIX_HASH_BYTES, len(chain) + 1, PREFIX_HASH_BYTES):
            fingerprint = int.from_bytes(chain[end - 8 : end], "big")
            self.prompts_of.setdefault(fingerprint, set()).add((tenant, stamp))
        group = group_under(tenant, stamp, PEERS)
        self.holdings.record(group, chain, len(text), slot, self.now_ns, blocks_max=self.blocks_max)

    @rule(slot=st.integers(0, 2))
    def lose_replica(self, slot: int) -> None:
        self.holdings.forget(slot)

    @rule(age=st.integers(0, 5))
    def expire(self, age: int) -> None:
        self.holdings.expire(self.now_ns - age)

    @rule(policy=policies)
    def change_policy(self, policy: ResidencyPolicy) -> None:
        self.policy = policy

    @rule()
    def begin_anew(self) -> None:
        self.holdings = Holdings(ENTRIES_MAX)

    @rule(place=st.sampled_from(PEERS), bytes_max=st.sampled_from([0, 64, 72, 1_000]), is_lost=st.booleans())
    def tell(self, place: Place, bytes_max: int, is_lost: bool) -> None:
        part = self._part_for(place, bytes_max)
        if not is_lost:
            self.told[place].hear(part, self.now_ns, ENTRIES_MAX)

    @rule(place=st.sampled_from(PEERS))
    def subscribe_anew(self, place: Place) -> None:
        self.tellings[place] = Telling()

    @rule(place=st.sampled_from(PEERS))
    def tell_everything(self, place: Place) -> None:
        """Tell until nothing is new, starting anew where a part was lost."""
        told = self.told[place]
        for _ in range(4):
            told.hear(self._part_for(place, 10_000), self.now_ns, ENTRIES_MAX)
            if told.is_torn:
                self.tellings[place] = Telling()
        assert told._fingerprints == self._allowed(place)

    @invariant()
    def holds(self) -> None:
        assert self.holdings.violations() == []

    def _part_for(self, place: Place, bytes_max: int) -> DigestPart:
        part = self.tellings[place].next_part(self.holdings, self.policy, place, bytes_max)
        for fingerprint in (*unpacked(part.added), *unpacked(part.removed)):
            assert any(self._allows(*prompt, place) for prompt in self.prompts_of[fingerprint])
        return part

    def _allows(self, tenant: TenantName, stamp: PlaceRule, place: Place) -> bool:
        return stamp.allows(place) and self._is_processed_at(place, tenant)

    def _is_processed_at(self, place: Place, tenant: TenantName) -> bool:
        own = self.policy.tenants.get(tenant)
        is_open = not self.policy.closed_reason or place.region == US.region
        rule_in_force = self.policy.process if own is None else own.process
        return is_open and rule_in_force.allows(place)

    def _allowed(self, place: Place) -> set[int]:
        groups = self.holdings.groups
        held = [(groups[group_of(entry)], fingerprint_of(entry)) for entry in self.holdings._holders]
        allowed: set[int] = set()
        for (tenant, places), fingerprint in held:
            is_allowed = place in places and self._is_processed_at(place, tenant)
            assert may_be_told((tenant, places), self.policy, place) == is_allowed
            allowed |= {fingerprint} if is_allowed else set()
        return allowed


DigestMachine.TestCase.settings = settings(
    max_examples=examples(few=20, night=2_000), stateful_step_count=40, deadline=None
)
TestDigests = DigestMachine.TestCase


def test_no_random_world_tells_a_peer_what_it_must_not_have() -> None:
    told, leaked = map(sum, zip(*map(leaks_in, range(3_000)), strict=True))
    assert told > 10_000
    assert leaked == 0
