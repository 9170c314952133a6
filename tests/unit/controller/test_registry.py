from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from controller import documents
from controller.documents import Changes, GatewayOrder, ReplicaOrder, encode
from controller.registry import AnnouncementRefused, DocumentFault, PlaceRefused, Registry, read_replica, registry_of
from controller.store.store import StoreUnusable
from gateway.core.kernel.regions import KnownRegion, RegionTable
from gateway.core.vocabulary import GatewayId, Jurisdiction, Place, RegionName, ReplicaId
from mesh.control.vocabulary import Hello
from tests.fakes.attached import hello, replica_document
from tests.support.core import AP, EU, REGIONS, US, policy, table


def with_hellos(*said: Hello) -> Registry:
    registry = registry_of({}, REGIONS)
    for each in said:
        registry = registry.changed(registry.announce(each))
    return registry


def with_replicas(said: Hello, *texts: str) -> Hello:
    return replace(said, announcement=replace(said.announcement, replicas=texts))


def test_what_gateways_announce_is_registered_and_read_back_from_its_documents() -> None:
    registry = with_hellos(hello("us-1", US), hello("eu-1", EU, replicas=1))
    again = registry_of(registry.texts, REGIONS)
    for each in (registry, again):
        assert [entry.gateway_id for entry in each.gateway_entries] == ["us-1", "eu-1"]
        assert [(entry.replica_id, entry.home) for entry in each.replica_entries] == [
            ("us-1-r0", "us-1"),
            ("us-1-r1", "us-1"),
            ("eu-1-r0", "eu-1"),
        ]
    assert again.says(hello("us-1", US))
    assert not again.says(hello("us-1", US, replicas=3))


def test_nothing_new_changes_nothing_and_something_new_only_what_it_is_of() -> None:
    registry = with_hellos(hello("us-1", US), hello("eu-1", EU))
    assert registry.announce(hello("us-1", US)) == {}
    changes = registry.announce(hello("us-1", US, replicas=1))
    assert list(changes) == ["announced/us-1"]
    changed = registry.changed(changes)
    assert len(changed.replicas) == 3
    assert len(registry.replicas) == 4, "a registry never changes"
    assert changed.announced[GatewayId("eu-1")] is registry.announced[GatewayId("eu-1")], "it is not read again"


def test_members_of_a_disaggregated_pool_move_together() -> None:
    pool = {"name": "chat", "kind": "disaggregated", "connector": "nixl", "decode_batch_max": 8}
    engine = json.loads(replica_document("p"))
    texts = (
        json.dumps(engine | {"pool": pool, "role": "prefill"}),
        json.dumps(engine | {"id": "d", "pool": pool, "role": "decode"}),
        json.dumps(engine | {"id": "u", "pool": "disaggregated"}),
        json.dumps(engine | {"id": "v", "pool": {"name": "plain"}}),
        json.dumps(engine | {"id": "w", "pool": ["disaggregated"]}),
    )
    registry = with_hellos(with_replicas(hello("us-1", US), *texts))
    nixl = frozenset({"connector nixl"})
    assert [(each.replica_id, each.pool, each.part, each.needs) for each in registry.replica_entries] == [
        ("p", "chat", "prefill", nixl),
        ("d", "chat", "decode", nixl),
        ("u", "", "", frozenset()),
        ("v", "", "", frozenset()),
        ("w", "", "", frozenset()),
    ]


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "c" * 65},
        {"name": "a\nb"},
        {"connector": "n" * 65},
        {"connector": "\x1b[31m"},
        {"decode": {"policy": "p" * 65}},
    ],
    ids=["long name", "line break", "long connector", "escape", "long policy"],
)
def test_names_of_a_pool_are_short_and_printable_or_its_replicas_move_by_themselves(changed: dict[str, object]) -> None:
    pool = {"name": "chat", "kind": "disaggregated", "connector": "nixl", "decode": {"policy": "br_h"}}
    engine = json.loads(replica_document("p"))
    for role in ("prefill", "r" * 65):
        text = json.dumps(engine | {"pool": pool | (changed if role == "prefill" else {}), "role": role})
        (entry,) = with_hellos(with_replicas(hello("us-1", US), text)).replica_entries
        assert (entry.pool, entry.part, entry.needs) == ("", "", frozenset())


def test_a_changed_description_has_another_digest() -> None:
    text = replica_document("p")
    changed = json.dumps(json.loads(text) | {"slots": 3})
    first, again, other = (
        with_hellos(with_replicas(hello("us-1", US), each)).replica_entries for each in (text, text, changed)
    )
    assert first == again
    assert first != other


_DEEP = '{"id": "deep", "pool": {"kind": "disaggregated", "more": ' + "[" * 7000 + "]" * 7000 + "}}"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"id": "r", "region": 5, "jurisdiction": "EU"}', "replica r: Expected `str`, got `int`"),
        ('{"id": "r", "url": 7}', "replica r: Expected `str`, got `int`"),
        (r'{"id": "r", "pool": {"kind": "disaggregated", "name": "\ud800"}}', "no JSON object with an id"),
        (_DEEP, "recursion"),
    ],
    ids=["region", "url", "surrogate", "deep"],
)
def test_a_description_that_cannot_be_decoded_costs_nobody_else_a_replica(text: str, fault: str) -> None:
    registry = with_hellos(with_replicas(hello("eu-1", EU), text, replica_document("sound")))
    assert [each.replica_id for each in registry.replica_entries] == ["sound"]
    (told,) = registry.faults
    assert fault in told


def test_a_pools_named_policy_is_needed_by_its_adopter_and_what_a_gateway_can_is_known() -> None:
    pool = {"name": "chat", "kind": "disaggregated", "connector": "nixl", "decode": {"policy": "br_h"}}
    text = json.dumps(json.loads(replica_document("p")) | {"pool": pool, "role": "prefill"})
    said = with_replicas(hello("us-1", US), text)
    said = replace(said, announcement=replace(said.announcement, abilities=("connector nixl",)))
    registry = with_hellos(said)
    (entry,) = registry.replica_entries
    assert entry.needs == {"connector nixl", "decode_policy br_h"}
    (gateway,) = registry_of(registry.texts, REGIONS).gateway_entries
    assert gateway.abilities == {"connector nixl"}


def test_a_replica_that_two_announce_is_the_earlier_ones_also_after_a_restart() -> None:
    late = with_replicas(hello("aa", EU), replica_document("us-1-r0"), replica_document("own"))
    registry = with_hellos(hello("us-1", US), late)
    for each in (registry, registry_of(registry.texts, REGIONS)):
        assert each.replicas[ReplicaId("us-1-r0")].home == "us-1"
        assert each.replicas[ReplicaId("own")].home == "aa"
        assert each.faults == ("aa: replica us-1-r0 is us-1's already",)


def test_what_cannot_be_read_is_told_and_costs_nobody_else_a_replica() -> None:
    odd = with_replicas(
        hello("us-1", US), "{}", replica_document("a b"), replica_document("twice"), replica_document("twice"), "{"
    )
    registry = with_hellos(odd)
    assert list(registry.replicas) == ["twice"]
    assert len(registry.faults) == 4
    assert "us-1: replica twice stands there twice" in registry.faults


WEST = Place(RegionName("us-west-2"), Jurisdiction("EU"))


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (WEST, "region us-west-2 is not in the operators' table of regions"),
        (Place(US.region, EU.jurisdiction), "the operators' table has region us-east-1 in US, not in EU"),
    ],
    ids=["the first gateway of a region that nobody named", "a region of the table, in another jurisdiction"],
)
def test_a_gateway_s_word_on_its_place_is_not_believed_against_the_table(place: Place, why: str) -> None:
    with pytest.raises(PlaceRefused, match=why):
        registry_of({}, REGIONS).announce(hello("west", place))


def test_a_gateway_brings_no_policy_for_another_place() -> None:
    with pytest.raises(PlaceRefused, match=r"in us-east-1 \(US\) brings the policy of eu-west-1 \(EU\)"):
        registry_of({}, REGIONS).announce(hello("us-1", US, own=policy(EU)))


def test_what_was_written_down_before_is_held_against_the_table_too() -> None:
    before = table(US, EU, WEST)
    registry = registry_of({}, before)
    for each in (hello("west", WEST), hello("eu-1", EU)):
        registry = registry.changed(registry.announce(each))
    registry = registry.changed({documents.GATEWAY_ORDER + "west-2": encode(GatewayOrder(place=WEST))})
    later = registry_of(registry.texts, REGIONS)
    assert list(later.gateways) == ["eu-1"]
    assert {each.home for each in later.replicas.values()} == {"eu-1"}
    unknown = "region us-west-2 is not in the operators' table of regions"
    assert later.faults == (f"west: {unknown}", f"west-2: {unknown}")


@pytest.mark.parametrize(
    ("place", "url", "why"),
    [
        (EU, "http://127.0.0.1:1", "a gateway in region us-east-1 may announce no replica in region eu-west-1"),
        (WEST, "http://127.0.0.1:1", "region us-west-2 is not in the operators' table of regions"),
        (US, "http://203.0.113.9:8000", "203.0.113.9 is in none of the ranges of region us-east-1"),
        (US, "http://engine.example", "engine.example is in none of the ranges of region us-east-1"),
    ],
)
def test_a_replica_is_announced_only_where_the_table_lets_its_gateway(place: Place, url: str, why: str) -> None:
    told = replica_document("r", region=place.region, jurisdiction=place.jurisdiction, url=url)
    registry = with_hellos(with_replicas(hello("us-1", US), told))
    assert registry.replicas == {}
    assert registry.faults == (f"us-1: replica r: {why}",)
    with pytest.raises(DocumentFault, match=why):
        read_replica(told, US, REGIONS)
    ordered = registry.changed({documents.REPLICA_ORDER + "r": encode(ReplicaOrder(GatewayId("us-1"), told))})
    assert ordered.replicas == {}, "an operator's order is held against the table as it is now"


def test_a_region_that_operators_let_announce_for_another_does() -> None:
    regions = RegionTable(
        {
            EU.region: KnownRegion(EU.jurisdiction, ("127.0.0.0/8",), (US.region,)),
            US.region: KnownRegion(US.jurisdiction),
        }
    )
    registry = registry_of({}, regions)
    told = replica_document("r", region=EU.region, jurisdiction=EU.jurisdiction)
    registry = registry.changed(registry.announce(with_replicas(hello("us-1", US), told, replica_document("own"))))
    assert [each.replica_id for each in registry.replica_entries] == ["r"], "others may be given what the table lends"
    assert not registry.replicas[ReplicaId("own")].is_lent, "no range is named for its region: it stays at home"
    assert registry.faults == ()


def test_one_that_was_removed_may_not_announce_itself() -> None:
    removed = registry_of({documents.GATEWAY_ORDER + "us-1": encode(GatewayOrder(is_removed=True))}, REGIONS)
    with pytest.raises(AnnouncementRefused, match="removed by an operator"):
        removed.announce(hello("us-1", US))


def test_more_than_a_document_holds_is_refused_and_not_cut() -> None:
    large = with_replicas(hello("us-1", US), *(replica_document(f"r{n}", pad="x" * 4000) for n in range(1100)))
    with pytest.raises(AnnouncementRefused, match=r"announces \d+ bytes"):
        registry_of({}, REGIONS).announce(large)


def test_a_replica_is_told_with_its_place() -> None:
    _, document = read_replica(replica_document("r"), US, REGIONS)
    assert json.loads(document) | {"region": "us-east-1", "jurisdiction": "US"} == json.loads(document)
    elsewhere = replica_document("r", region="eu-west-1", jurisdiction="EU")
    assert json.loads(read_replica(elsewhere, EU, REGIONS)[1])["region"] == "eu-west-1"
    assert (
        json.loads(read_replica(replica_document("r", region=None, jurisdiction=None), US, REGIONS)[1])["region"]
        == US.region
    )
    with pytest.raises(DocumentFault, match="written together"):
        read_replica(replica_document("r", region="eu-west-1"), US, REGIONS)
    with pytest.raises(DocumentFault, match="larger than 16 KiB"):
        read_replica(replica_document("r", pad="x" * 20_000), US, REGIONS)


def test_orders_hold_on_top_of_what_is_announced() -> None:
    registry = with_hellos(hello("us-1", US), hello("eu-1", EU))
    orders: Changes = {
        documents.GATEWAY_ORDER + "eu-1": encode(GatewayOrder(is_drained=True)),
        documents.GATEWAY_ORDER + "ap-1": encode(GatewayOrder(place=AP)),
        documents.REPLICA_ORDER + "us-1-r0": encode(ReplicaOrder(GatewayId("us-1"), is_drained=True)),
        documents.REPLICA_ORDER + "us-1-r1": encode(ReplicaOrder(GatewayId("us-1"), pinned_to=GatewayId("eu-1"))),
        documents.REPLICA_ORDER + "added": encode(ReplicaOrder(GatewayId("eu-1"), replica_document("added"))),
        documents.REPLICA_ORDER + "eu-1-r0": encode(ReplicaOrder(GatewayId("gone"), is_removed=True)),
    }
    ordered = registry.changed(orders)
    assert [(each.gateway_id, each.is_drained) for each in ordered.gateway_entries] == [
        ("us-1", False),
        ("eu-1", True),
        ("ap-1", False),
    ]
    entries = {each.replica_id: each for each in ordered.replica_entries}
    assert sorted(entries) == ["added", "eu-1-r0", "eu-1-r1", "us-1-r1"], "an order about another home's is void"
    assert entries[ReplicaId("us-1-r1")].pinned_to == "eu-1"
    assert ordered.replicas[ReplicaId("us-1-r0")].is_drained


def test_a_document_that_cannot_be_read_is_named() -> None:
    with pytest.raises(StoreUnusable, match="document announced/us-1 in the store cannot be read"):
        registry_of({"announced/us-1": b"{}"}, REGIONS)
    with pytest.raises(StoreUnusable, match="document narrowing/x"):
        registry_of({"narrowing/x": b"no"}, REGIONS)
    assert registry_of({"owner/r": b"us-1"}, REGIONS).texts == {}, "what others keep there is theirs"


def test_every_policy_that_is_announced_is_read_back_whole() -> None:
    own = policy(US)
    registry = registry_of(with_hellos(hello("us-1", US, own=own)).texts, REGIONS)
    assert registry.announced[GatewayId("us-1")].policy == own
