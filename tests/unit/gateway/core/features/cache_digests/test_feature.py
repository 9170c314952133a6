"""Cache digests in one core: what it tells its peers, and what it makes of theirs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.features.cache_digests.config import CacheDigestsConfig
from gateway.core.features.cache_digests.events import DigestPart
from gateway.core.features.cache_digests.feature import digests_of
from gateway.core.features.cache_digests.fingerprints import RUNGS, fingerprint, packed, rungs_within, unpacked
from gateway.core.features.cache_digests.telling import Telling
from gateway.core.features.lockdown.events import LockdownChanged
from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.residency import TenantPolicy
from gateway.core.placement.placer import TOLD_BLOCKS
from gateway.core.vocabulary import GatewayId, LegResult, Place, PlacementReason, RequestId, RequestProfile, TenantName
from tests.support.core import (
    AP,
    EU,
    MS,
    SECOND,
    TENANT,
    US,
    Desk,
    desk,
    forward,
    of_kind,
    peer_spec,
    policy,
    profile,
    rule,
    words,
)

ON = CoreConfig(cache_digests=CacheDigestsConfig(enabled=True))
EU_PEER, AP_PEER = peer_spec("gw-eu", EU), peer_spec("gw-ap", AP)
OWN = TenantName("acme")


def on(**more: object) -> Desk:
    made = desk(peers=[EU_PEER, AP_PEER], config=ON, **more)  # type: ignore[arg-type]
    for peer in (EU_PEER, AP_PEER):
        made.hear(peer.gateway_id, peer.place, rtt_ms=20)
    return made


def named(request: RequestProfile) -> list[int]:
    """Fingerprints by which a digest names a prompt."""
    return [fingerprint(request.prefix, blocks) for blocks in RUNGS[: rungs_within(request.prefix_blocks)]]


def part_for(one: Desk, place: Place = EU, telling: Telling | None = None) -> DigestPart:
    peer = {EU: EU_PEER, AP: AP_PEER}[place]
    part = digests_of(one.core).next_part(telling or Telling(), peer, one.now_ns)
    assert part is not None
    return part


def serve(one: Desk, request_id: str, prompt: str, tenant: TenantName = TENANT) -> None:
    one.ask(request_id, prompt=prompt, tenant=tenant)
    one.first_token(request_id)
    one.finish(request_id)


def hear(one: Desk, *fingerprints: int, peer: str = "gw-eu") -> None:
    part = DigestPart(True, 0, 1, packed(list(fingerprints)))
    one.tell(events.DigestHeard(GatewayId(peer), part))


class TestTelling:
    def test_a_prompt_is_told_once_a_replica_has_prefilled_it(self) -> None:
        one, telling = on(), Telling()
        one.ask("a", prompt=words("a"))
        assert part_for(one, telling=telling).added == b""
        one.first_token("a")
        part = part_for(one, telling=telling)
        assert sorted(unpacked(part.added)) == sorted(named(profile("a", prompt=words("a"))))
        assert part_for(one, telling=telling).added == b"", "it is told once"

    def test_an_answer_that_is_not_streamed_counts_when_it_is_complete(self) -> None:
        one = on()
        one.ask("a", prompt=words("a"))
        one.finish("a")
        assert part_for(one).added

    @pytest.mark.parametrize("result", [LegResult.FAILED, LegResult.CLIENT_ERROR])
    def test_a_prompt_that_was_not_prefilled_is_not_told(self, result: LegResult) -> None:
        one = on()
        one.ask("a", prompt=words("a"))
        one.finish("a", result)
        assert part_for(one).added == b""

    def test_a_forward_is_what_the_peer_holds_and_not_told(self) -> None:
        one = on(replicas=0)
        serve(one, "a", words("a"))
        assert part_for(one).added == b""

    def test_a_tenant_that_may_not_leave_is_told_to_no_other_region(self) -> None:
        one = on(own_policy=policy(US, tenants={OWN: TenantPolicy(rule(US, EU))}))
        serve(one, "a", words("a"), OWN)
        assert part_for(one, EU).added
        assert part_for(one, AP).added == b""

    def test_a_forwarded_prompt_is_told_only_where_its_stamp_allows(self) -> None:
        one = on()
        one.tell(replace(forward("a", allowed=rule(US, EU)), profile=profile("a", prompt=words("a"))))
        one.first_token("a")
        one.finish("a")
        assert part_for(one, EU).added
        assert part_for(one, AP).added == b""

    def test_a_policy_that_becomes_stricter_takes_back_what_was_told(self) -> None:
        one, telling = on(), Telling()
        serve(one, "a", words("a"), OWN)
        assert part_for(one, telling=telling).added
        one.tell(events.PolicyApplied(policy(US, tenants={OWN: TenantPolicy(rule(US))})))
        part = part_for(one, telling=telling)
        assert (part.is_first, part.added) == (True, b"")

    def test_the_limit_on_bytes_holds_over_all_subscriptions_of_a_peer(self) -> None:
        one = on()
        one.tell(events.ConfigApplied(_limited(send_rate_max_bytes=264)))
        serve(one, "a", words("a"))
        first = part_for(one)
        assert len(first.added) == 200
        assert part_for(one).added == b"", "a new subscription has no budget of its own"
        one.wait(SECOND)
        assert part_for(one).added

    def test_what_a_replica_no_longer_holds_is_taken_back(self) -> None:
        one, telling = on(replicas=1), Telling()
        serve(one, "a", words("a"))
        held = part_for(one, telling=telling).added
        one.probe(healthy=False)
        assert sorted(unpacked(part_for(one, telling=telling).removed)) == sorted(unpacked(held))

    def test_a_cache_holds_no_more_than_its_room(self) -> None:
        one = on(replicas=1)
        one.probe(kv_tokens=4_000)
        for name in ("a", "b", "c"):
            serve(one, name, words(name))
        known = set(unpacked(part_for(one).added))
        assert set(named(profile("c", prompt=words("c")))) <= known
        assert not set(named(profile("a", prompt=words("a")))) & known

    def test_prefixes_expire(self) -> None:
        one = on(replicas=1)
        serve(one, "a", words("a"))
        one.wait(one.core.config.placement.prefix_ttl_ns + SECOND)
        assert part_for(one).added == b""

    def test_the_numbers_of_parts_say_nothing_of_prompts_that_a_peer_may_not_know(self) -> None:
        one, telling = on(own_policy=policy(US, tenants={OWN: TenantPolicy(rule(US))})), Telling()
        numbers = [part_for(one, telling=telling).to_version]
        for name in ("a", "b"):
            serve(one, name, words(name), OWN)
            part = part_for(one, telling=telling)
            assert part.added == b""
            numbers.append(part.to_version)
        assert numbers == [1, 2, 3]

    def test_nothing_is_told_in_a_lockdown(self) -> None:
        one = on()
        serve(one, "a", words("a"))
        one.tell(LockdownChanged(active=True, cut=False))
        assert digests_of(one.core).next_part(Telling(), EU_PEER, one.now_ns) is None

    def test_a_heartbeat_that_names_nothing_costs_no_budget(self) -> None:
        one, telling = on(), Telling()
        one.tell(events.ConfigApplied(_limited(send_rate_max_bytes=1024)))
        for _ in range(500):
            one.wait(20 * MS)
            part_for(one, telling=telling)
        one.probe()
        serve(one, "a", words("a"))
        assert part_for(one, telling=telling).added

    def test_nothing_is_told_while_it_is_off_or_to_a_stranger(self) -> None:
        off = desk(peers=[EU_PEER])
        serve(off, "a", words("a"))
        assert digests_of(off.core).next_part(Telling(), EU_PEER, 0) is None
        assert digests_of(on().core).next_part(Telling(), peer_spec("gw-other", EU), 0) is None


class TestPlacing:
    def test_a_prompt_that_a_peer_says_it_holds_goes_there(self) -> None:
        one, request = on(), profile("a", prompt=words("a", 4_000))
        assert one.core.placer.peer_index.blocks == 0
        hear(one, *named(request))
        (leg,) = of_kind(StartLeg, one.ask("a", prompt=words("a", 4_000)))
        assert (leg.target.id, leg.decision.reason) == ("gw-eu", PlacementReason.REMOTE_PREFIX)
        assert leg.decision.matched_blocks == RUNGS[rungs_within(request.prefix_blocks) - 1]

    def test_without_its_word_the_prompt_is_read_at_home(self) -> None:
        one = on()
        (leg,) = of_kind(StartLeg, one.ask("a", prompt=words("a", 4_000)))
        assert leg.target.id in ("r0", "r1")

    def test_a_peer_s_word_counts_only_for_what_no_own_replica_was_sent(self) -> None:
        one, request = on(), profile("a", prompt=words("a", 4_000))
        serve(one, "first", words("a", 4_000))
        hear(one, *named(request))
        fleet, state = one.core.placer._fleet, one.core.peers.get("gw-eu")
        assert state is not None
        slot = state.slot
        assert fleet.told_match is not None
        assert fleet.told_match(request, slot) > 0
        assert (fleet.told_blocks(request, slot), fleet.match_peers(request, 1 << slot).blocks) == (0, 0)
        longer = profile("b", prompt=words("a", 6_000))
        hear(one, *named(longer))
        assert fleet.told_blocks(longer, slot) == fleet.match_peers(longer, 1 << slot).blocks > request.prefix_blocks

    def test_the_record_shows_a_match_that_only_the_peer_s_word_explains(self) -> None:
        one, request = on(), profile("a", prompt=words("a", 4_000))
        hear(one, *named(request))
        (first,) = of_kind(StartLeg, one.ask("a", prompt=words("a", 4_000)))
        costs = first.decision.considered[0].costs
        assert costs is not None
        assert [(each.name, each.amount) for each in costs.further] == [(TOLD_BLOCKS, first.decision.matched_blocks)]
        one.finish("a")
        (again,) = of_kind(StartLeg, one.ask("b", prompt=words("a", 4_000)))
        costs = again.decision.considered[0].costs
        assert costs is not None
        assert costs.further == (), "a forward from here explains it"

    def test_a_digest_is_dropped_with_age(self) -> None:
        one, request = on(), profile("a", prompt=words("a"))
        hear(one, *named(request))
        one.wait(ON.cache_digests.age_max_ns)
        assert list(digests_of(one.core).told()) == []

    def test_a_digest_is_dropped_with_its_peer(self) -> None:
        one = on()
        hear(one, 1, 2)
        one.tell(events.AssignmentApplied(2, (), (AP_PEER,)))
        assert list(digests_of(one.core).told()) == []
        hear(one, 1, 2)
        assert list(digests_of(one.core).told()) == [], "a stranger's word counts for nothing"

    def test_a_digest_is_dropped_when_the_feature_is_switched_off(self) -> None:
        one, request = on(), profile("a", prompt=words("a", 4_000))
        hear(one, *named(request))
        one.tell(events.ConfigApplied(CoreConfig()))
        hear(one, *named(request))
        (leg,) = of_kind(StartLeg, one.ask("a", prompt=words("a", 4_000)))
        assert leg.target.id in ("r0", "r1")

    def test_a_lie_makes_a_worse_placement_and_nothing_else(self) -> None:
        one = on()
        hear(one, *named(profile("a", prompt=words("a", 4_000))))
        one.ask("a", prompt=words("a", 4_000))
        one.first_token("a")
        one.finish("a")
        assert RequestId("a") not in one.core.requests

    def test_operators_see_what_each_peer_told(self) -> None:
        one = on()
        hear(one, 1, 2)
        digests = digests_of(one.core)
        assert digests.describe(one.now_ns) == {
            "cache_digests": {"fingerprints": 0, "peers": {"gw-eu": {"fingerprints": 2, "age_ms": 0}}}
        }


def _limited(**limits: int) -> CoreConfig:
    return replace(ON, cache_digests=replace(ON.cache_digests, **limits))
