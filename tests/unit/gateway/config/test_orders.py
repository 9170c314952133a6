from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields, replace

from gateway.config.orders import Orders, OrdersRefused, read_orders, without_orders
from gateway.config.region_file import CoreFile
from gateway.config.sections import ControlConfig, GatewayConfig, ParametersRule
from gateway.core.config import CoreConfig
from gateway.core.features.disaggregated.config import DecodePolicyName, decode_of
from gateway.core.kernel.config import OverflowMode
from gateway.core.kernel.regions import KnownRegion, RegionTable
from gateway.core.kernel.residency import closed_policy
from gateway.core.vocabulary import (
    Connector,
    ControlVersion,
    GatewayId,
    Place,
    PlaceRule,
    PoolKind,
    PoolName,
    PoolSpec,
    RegionName,
    ReplicaId,
    ReplicaRole,
)
from gateway.features.disaggregated.config import prediction_of
from gateway.features.expert_locality.config import locality_of
from mesh.config import MeshTlsConfig
from mesh.control.vocabulary import ControlSnapshot, PeerGrant, ReplicaGrant, ReplicaOwner
from tests.support.core import AP, EU, REGIONS, US, table
from tests.support.region_files import load_config

OURS, THEIRS = GatewayId("us-1"), GatewayId("eu-1")
RULE = PlaceRule(jurisdictions=frozenset({EU.jurisdiction}))
ENVIRON = {"EU_KEY": "sk-eu", "EMPTY": " ", "TOKEN": "sk-token"}
REGION = f"""
gateway: us-1
region: {US.region}
jurisdiction: {US.jurisdiction}
replicas:
  - id: r1
    url: http://10.0.0.1:8000
    models: [llama]
    api_key_env: EU_KEY
peers:
  - gateway: eu-1
    region: {EU.region}
    jurisdiction: {EU.jurisdiction}
    address: 127.0.0.1:7071
queue:
  length_max: 50
"""


@pytest.fixture
def local(tmp_path: Path) -> GatewayConfig:
    path = tmp_path / "us.yaml"
    path.write_text(REGION)
    return load_config(path, ENVIRON)


def document(name: str = "r9", place: Place = EU, **more: Any) -> str:
    return json.dumps(
        {
            "id": name,
            "url": "http://10.0.0.9:8000",
            "models": ["llama"],
            "region": place.region,
            "jurisdiction": place.jurisdiction,
            **more,
        }
    )


def adopted(text: str) -> ReplicaGrant:
    return ReplicaGrant(text, THEIRS, EU, RULE)


def snapshot(**more: object) -> ControlSnapshot:
    return replace(ControlSnapshot(ControlVersion(1, 2), OURS), **more)


def orders(local: GatewayConfig, **more: object) -> Orders:
    return read_orders(snapshot(**more), local, REGIONS, ENVIRON)


def refusal(local: GatewayConfig, **more: object) -> str:
    with pytest.raises(OrdersRefused) as caught:
        orders(local, **more)
    return str(caught.value)


def test_an_empty_snapshot_changes_nothing_but_says_which_it_was(local: GatewayConfig) -> None:
    assert orders(local) == replace(without_orders(local, REGIONS), version=ControlVersion(1, 2))


def test_an_announced_replica_reads_back_as_it_was_described(local: GatewayConfig) -> None:
    (told,) = local.replica_documents
    assert "sk-eu" not in told
    (replica,) = orders(local, replicas=(ReplicaGrant(told, OURS, US),)).replicas
    assert (replica,) == local.replicas


def test_an_adopted_replica_keeps_its_place_and_what_its_home_accepts(local: GatewayConfig) -> None:
    (one, two) = orders(local, replicas=(adopted(document(data_parallel_ranks=2)),)).replicas
    assert [each.spec.replica_id for each in (one, two)] == ["r9@0", "r9@1"]
    assert (one.spec.place, one.spec.accepts) == (EU, RULE)


def test_one_whose_home_says_nothing_is_told_as_taking_nothing_and_never_without_a_rule(local: GatewayConfig) -> None:
    (replica,) = orders(local, replicas=(ReplicaGrant(document(), THEIRS, EU, PlaceRule()),)).replicas
    assert replica.spec.accepts == PlaceRule()
    silent = orders(local, replicas=(ReplicaGrant(document(), THEIRS, EU, None),))
    assert (silent.replicas, silent.left_out) == ((), {"r9": "nothing says what its home accepts"})


class TestBounds:
    def test_of_those_adopted_there_are_no_more_than_may_be_and_each_home_has_its_share(
        self, local: GatewayConfig
    ) -> None:
        small = replace(local, control=replace(local.control, adopted_max=4))
        many = [adopted(document(f"many-{number}")) for number in range(100)]
        few = [replace(adopted(document(f"few-{number}")), home=GatewayId("ap-1")) for number in range(2)]
        found = orders(small, replicas=(*many, *few))
        assert [each.spec.replica_id for each in found.replicas] == ["many-0", "many-1", "few-0", "few-1"]
        assert all(each.is_adopted for each in found.replicas)
        assert len(found.left_out) == 98
        assert found.left_out["many-2"] == "more than 4 are adopted here (control.adopted_max)"

    def test_what_more_there_is_than_may_be_is_not_held_against_the_table(self, local: GatewayConfig) -> None:
        small = replace(local, control=replace(local.control, adopted_max=1))
        misplaced = adopted(document("r8", url="http://203.0.113.9:8000"))
        found = orders(small, replicas=(adopted(document()), misplaced))
        assert found.left_out == {"r8": "more than 1 are adopted here (control.adopted_max)"}
        assert found.misplaced == {}

    def test_nor_have_they_more_ranks_than_four_times_as_many(self, local: GatewayConfig) -> None:
        small = replace(local, control=replace(local.control, adopted_max=4))
        found = orders(
            small,
            replicas=(
                adopted(document("wide", data_parallel_ranks=17)),
                adopted(document("a", data_parallel_ranks=8)),
                adopted(document("b", data_parallel_ranks=8)),
                adopted(document("c")),
            ),
        )
        assert found.left_out.keys() == {"wide", "c"}
        assert len(found.replicas) == 16

    def test_our_own_are_as_many_as_our_operator_named(self, local: GatewayConfig) -> None:
        small = replace(local, control=replace(local.control, adopted_max=1))
        ours = [ReplicaGrant(document(f"own-{number}", US), OURS, US) for number in range(3)]
        found = orders(small, replicas=ours)
        assert (len(found.replicas), found.left_out) == (3, {})
        assert not any(each.is_adopted for each in found.replicas)


def test_who_is_away_is_whoever_is_served_by_others(local: GatewayConfig) -> None:
    away = (
        ReplicaOwner(ReplicaId("r1"), OURS, THEIRS),
        ReplicaOwner(ReplicaId("r9"), THEIRS, OURS),
        ReplicaOwner(ReplicaId("r5"), THEIRS, GatewayId("ap-1")),
    )
    assert orders(local, away=away).away == {"r1", "r5"}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"api_key_env": "EMPTY"}, "api_key_env EMPTY is named neither"),
        ({"api_key_env": "TOKEN"}, "api_key_env TOKEN is named neither"),
        ({"api_key_file": "/etc/secret"}, "api_key_file /etc/secret is named neither"),
    ],
)
def test_a_replica_may_name_no_credential_that_our_operator_did_not(
    local: GatewayConfig, more: dict[str, Any], why: str
) -> None:
    read = orders(local, replicas=(adopted(document(**more)), adopted(document("r8"))))
    assert [each.spec.replica_id for each in read.replicas] == ["r8"]
    assert read.left_out["r9"].startswith(why)


def test_credentials_that_the_region_file_names_may_be_used(local: GatewayConfig, tmp_path: Path) -> None:
    assert orders(local, replicas=(adopted(document(api_key_env="EU_KEY")),)).replicas[0].api_key == "sk-eu"
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "eu").write_text("sk-file")
    (tmp_path / "admin").write_text("sk-admin")
    allowing = replace(local, control=ControlConfig(credentials=("TOKEN", "keys")))
    assert orders(allowing, replicas=(adopted(document(api_key_env="TOKEN")),)).replicas[0].api_key == "sk-token"
    key = document(api_key_file=str(tmp_path / "keys" / "eu"))
    assert orders(allowing, replicas=(adopted(key),)).replicas[0].api_key == "sk-file"
    outside = document(api_key_file=str(tmp_path / "keys" / ".." / "admin"))
    assert list(orders(allowing, replicas=(adopted(outside),)).left_out) == ["r9"]


@pytest.mark.parametrize("more", [{"api_key_env": "MISSING"}, {"api_key_file": "keys/none"}])
def test_a_replica_whose_key_is_not_here_is_left_out_by_itself(local: GatewayConfig, more: dict[str, Any]) -> None:
    allowing = replace(local, control=ControlConfig(credentials=("MISSING", "keys")))
    read = orders(allowing, replicas=(adopted(document(**more)), adopted(document("r8"))))
    assert [each.spec.replica_id for each in read.replicas] == ["r8"]
    assert "holds no usable key" in read.left_out["r9"] or "cannot be read" in read.left_out["r9"]


@pytest.mark.parametrize(
    ("text", "label", "fault"),
    [
        ("{", "replicas[0]", "replicas[0]: it is not JSON"),
        ('{"a":' * 9000 + "1" + "}" * 9000, "replicas[0]", "replicas[0]: it is not JSON"),
        (document(colour="red"), "r9", "colour: is not a known key"),
        (document(api_key_env="EU_KEY", api_key_file="x"), "r9", "api_key_file and api_key_env exclude each other"),
    ],
)
def test_a_description_that_no_region_file_could_hold_leaves_out_that_replica_alone(
    local: GatewayConfig, text: str, label: str, fault: str
) -> None:
    allowing = replace(local, control=ControlConfig(credentials=("x",)))
    read = orders(allowing, replicas=(adopted(text), adopted(document("r8"))))
    assert [each.spec.replica_id for each in read.replicas] == ["r8"]
    assert list(read.left_out) == [label]
    assert fault in read.left_out[label]


def test_of_one_that_is_granted_twice_neither_is_served_and_our_own_is_as_it_stands_here(local: GatewayConfig) -> None:
    other = document(url="http://10.0.0.8:8000")
    read = orders(local, replicas=(adopted(document()), adopted(other), adopted(document("r8"))))
    assert [each.spec.replica_id for each in read.replicas] == ["r8"]
    assert "granted twice" in read.left_out["r9"]
    own = local.replicas[0].spec.replica_id
    ours = ReplicaGrant(document(own), OURS, US)
    for grants in ((ours, adopted(document(own))), (adopted(document(own)), ours), (ours, ours)):
        read = orders(local, replicas=grants)
        assert read.replicas == (local.replicas[0],)
        assert own not in read.left_out


def test_what_is_for_another_is_refused(local: GatewayConfig) -> None:
    assert refusal(local, gateway_id=THEIRS) == "it is for gateway eu-1"
    assert refusal(local, narrowing=closed_policy(EU, "x")) == "narrowing: it is for another region"


# Places

WEST = Place(RegionName("us-west-2"), EU.jurisdiction)
UNKNOWN = "region us-west-2 is not in the operators' table of regions"
RANGES = "is in none of the ranges of region eu-west-1"


@pytest.mark.parametrize(
    ("grant", "why"),
    [
        (ReplicaGrant(document(place=WEST), THEIRS, WEST, RULE), UNKNOWN),
        (ReplicaGrant(document(place=EU), THEIRS, WEST, RULE), UNKNOWN),
        (ReplicaGrant(document(place=EU), GatewayId("us-2"), US, RULE), "may announce no replica in region eu-west-1"),
        (ReplicaGrant(document(place=EU), OURS, US), "may announce no replica in region eu-west-1"),
        (adopted(document(place=Place(EU.region, US.jurisdiction))), "has region eu-west-1 in EU, not in US"),
        (adopted(document(url="http://203.0.113.9:8000")), f"203.0.113.9 {RANGES}"),
        (adopted(document(url="http://engine.example")), f"engine.example {RANGES}"),
        (adopted(document(url="http://10.0.0.9@203.0.113.9")), f"its address {RANGES}"),
        (adopted(document(url="http://10.0.0.9:80\\@203.0.113.9")), f"its address {RANGES}"),
        (adopted(document(url="http://0xa000009")), f"its address {RANGES}"),
        (adopted(document(url="http://167772169")), f"its address {RANGES}"),
        (adopted(document(url="http://[::ffff:203.0.113.9]")), RANGES),
        (adopted(document(url="http://10.0.0.9\t.example")), f"its address {RANGES}"),
        (adopted(document(url="ftp://10.0.0.9")), f"its address {RANGES}"),
        (adopted(document(url=7)), f"its address {RANGES}"),
    ],
)
def test_a_replica_that_the_table_does_not_have_there_is_left_out_alone(
    local: GatewayConfig, grant: ReplicaGrant, why: str
) -> None:
    read = orders(local, replicas=(grant, adopted(document("r8"))))
    assert [each.spec.replica_id for each in read.replicas] == ["r8"]
    assert why in read.left_out["r9"]
    assert read.misplaced == {"replica r9": read.left_out["r9"]}


def test_a_region_for_which_no_ranges_are_named_lends_nothing(local: GatewayConfig) -> None:
    bare = RegionTable({**REGIONS.regions, EU.region: KnownRegion(EU.jurisdiction)})
    read = read_orders(snapshot(replicas=(adopted(document()),)), local, bare, ENVIRON)
    assert read.left_out == {"r9": "the operators' table has no ranges of addresses for region eu-west-1"}
    assert not read_orders(snapshot(replicas=(adopted(document()),)), local, None, ENVIRON).replicas, "nor a closed one"


def test_a_replica_of_the_region_file_is_served_as_it_stands_there_whatever_a_controller_says(
    local: GatewayConfig,
) -> None:
    theirs = document("r1", US, url="http://10.66.66.66:8000")
    read = orders(local, replicas=(ReplicaGrant(theirs, OURS, US),))
    assert read.replicas == local.replicas


def test_a_peer_that_the_table_does_not_have_there_is_none_whoever_names_it(local: GatewayConfig) -> None:
    west = PeerGrant(GatewayId("west"), WEST, "127.0.0.1:9")
    moved = PeerGrant(GatewayId("eu-2"), Place(EU.region, US.jurisdiction), "127.0.0.1:9")
    read = orders(local, peers=(west, moved))
    assert read.peers == local.peers
    assert read.misplaced == {
        "peer west": UNKNOWN,
        "peer eu-2": "the operators' table has region eu-west-1 in EU, not in US",
    }
    alone = table(US)
    for own in (read_orders(snapshot(), local, alone, ENVIRON), without_orders(local, alone)):
        assert own.peers == ()
        assert own.misplaced == {"peer eu-1": "region eu-west-1 is not in the operators' table of regions"}


def test_on_whose_word_a_place_is_believed_is_kept(local: GatewayConfig) -> None:
    own = ReplicaGrant(local.replica_documents[0], OURS, US)
    ranks = adopted(document(data_parallel_ranks=2))
    read = orders(local, replicas=(own, ranks), peers=(PeerGrant(GatewayId("ap-1"), AP, "127.0.0.1:8"),))
    assert {str(each.spec.replica_id): each.spec.place_by for each in read.replicas} == {
        **{str(each.spec.replica_id): "region_file" for each in local.replicas},
        "r9@0": "announced_by:eu-1",
        "r9@1": "announced_by:eu-1",
    }
    assert {str(each.spec.gateway_id): each.spec.place_by for each in read.peers} == {
        **{str(each.spec.gateway_id): "region_file" for each in local.peers},
        "ap-1": "controller",
    }


# Peers


def test_peers_of_the_region_file_count_before_those_of_the_snapshot(local: GatewayConfig) -> None:
    peers = (
        PeerGrant(THEIRS, EU, "127.0.0.1:9"),
        PeerGrant(GatewayId("ap-1"), AP, "127.0.0.1:8"),
        PeerGrant(OURS, US, "127.0.0.1:7"),
    )
    read = orders(local, peers=peers)
    assert {each.spec.gateway_id: str(each.address) for each in read.peers} == {
        "eu-1": "127.0.0.1:7071",
        "ap-1": "127.0.0.1:8",
    }


def test_a_peer_is_held_to_what_the_region_file_says_of_protection(local: GatewayConfig) -> None:
    far = PeerGrant(GatewayId("ap-1"), AP, "192.0.2.1:7070")
    assert "beyond this machine" in refusal(local, peers=(far,))
    assert orders(replace(local, insecure=True), peers=(far,)).peers[-1].spec.gateway_id == "ap-1"
    tls = MeshTlsConfig(Path("a"), Path("b"), Path("c"))
    protected = replace(local, peering=replace(local.peering, tls=tls))
    assert orders(protected, peers=(far,)).peers[-1].spec.gateway_id == "ap-1"
    odd = replace(far, gateway_id=GatewayId("AP_1"))
    assert "'AP_1' cannot be part of a host name" in refusal(protected, peers=(odd,))


# Parameters


def test_parameters_are_held_to_the_checks_of_features(local: GatewayConfig) -> None:
    assert "token_budget.decay: 0.1: it is 0.5 to 0.999" in refusal(
        local, parameters='{"token_budget": {"decay": 0.1}}'
    )


def test_parameters_count_key_by_key_before_the_region_file(local: GatewayConfig) -> None:
    core = orders(local, parameters='{"queue": {"wait_max": "5s"}, "placement": {"overflow": "off"}}').core
    assert (core.queue.length_max, core.queue.wait_max_ns) == (50, 5 * 10**9)
    assert core.placement.overflow is OverflowMode.OFF
    assert core.attempt == local.core.attempt


PRICES = '{"version": 1, "currency": "EUR", "regions": {"us-east-1": {"replica_hour": 2.5}}}'


def test_a_document_for_a_feature_is_handed_on_as_it_was_written_unless_the_region_file_says_otherwise(
    local: GatewayConfig,
) -> None:
    assert orders(local, documents=(("prices", PRICES),)).documents == {"prices": PRICES}
    broken = orders(local, documents=(("prices", "{"),), parameters='{"queue": {"wait_max": "5s"}}')
    assert (broken.documents["prices"], broken.core.queue.wait_max_ns) == ("{", 5_000_000_000)
    ignoring = replace(local, control=ControlConfig(parameters=ParametersRule.IGNORE))
    assert not orders(ignoring, documents=(("prices", PRICES),)).documents


def test_parameters_are_left_out_where_the_region_file_says_so(local: GatewayConfig) -> None:
    ignoring = replace(local, control=ControlConfig(parameters=ParametersRule.IGNORE))
    assert orders(ignoring, parameters='{"queue": {"wait_max": "5s"}}').core == local.core


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[]", "parameters: it is not a JSON object"),
        ('{"queue": 5}', "parameters: queue should be a section"),
        ('{"limits": {"requests_max": 1}}', "parameters: limits: is not a known key"),
        ('{"queue": {"wait_max": "soon"}}', "parameters: queue.wait_max: "),
        ('{"placement": {"policy": "unheard_of"}}', "parameters: placement.policy: "),
        ('{"observation": {"replica_stale": "1ms"}}', "parameters: observation.replica_stale: should be longer"),
    ],
)
def test_parameters_that_no_region_file_could_hold_refuse_the_whole(
    local: GatewayConfig, text: str, fault: str
) -> None:
    assert refusal(local, parameters=text).startswith(fault)


def test_a_pool_comes_with_those_who_are_of_it(local: GatewayConfig) -> None:
    """The pool gets a name of its own, since this gateway may have another pool of that name."""
    pool = {"name": "chat", "kind": "disaggregated", "connector": "nixl", "decode_batch_max": 8}
    grants = tuple(adopted(document(role, pool=pool, role=role)) for role in ("prefill", "decode"))
    found = orders(local, replicas=grants)
    assert [(each.spec.pool, each.spec.role) for each in found.replicas] == [
        (f"chat@{grants[0].home}", ReplicaRole.PREFILL),
        (f"chat@{grants[0].home}", ReplicaRole.DECODE),
    ]
    (spec,) = found.pools
    assert (spec.name, spec.connector, spec.decode_batch_max) == (f"chat@{grants[0].home}", Connector.NIXL, 8)


def test_limits_and_thresholds_come_with_those_who_are_of_a_pool(local: GatewayConfig) -> None:
    """The gateway's own pool keeps the values of the document; an adopted pool has its own under its new name."""
    pool = {"name": "short", "context_tokens_max": 8192, "threshold_tokens": 8000}
    own = ReplicaGrant(document("own", US, pool=pool | {"threshold_tokens": 6000}), OURS, US, None)
    other = adopted(document("theirs", pool=pool))
    found = orders(local, replicas=(own, other))
    assert {(each.name, each.context_tokens_max, each.threshold_tokens) for each in found.pools} == {
        ("short", 8192, 6000),
        (f"short@{other.home}", 8192, 8000),
    }
    assert {each.spec.pool for each in found.replicas} == {"short", f"short@{other.home}"}


_MEETING = {"name": "chat", "kind": "disaggregated", "connector": "mooncake", "decode_batch_max": 8}


def granted(role: str, place: Place = EU, **more: Any) -> ReplicaGrant:
    return adopted(document(role, place, **({"pool": _MEETING, "role": role} | more)))


def test_an_adopted_pool_whose_settings_contradict_each_other_is_left_out(local: GatewayConfig) -> None:
    late = _MEETING | {"decode": {"policy": "br_h"}}
    found = orders(local, replicas=(granted("prefill", pool=late), granted("decode", pool=late)))
    assert not found.replicas
    assert "policy br_h chooses among requests whose prompts have been read" in found.left_out["decode"]


@pytest.mark.parametrize(
    ("sections", "fault"),
    [
        ({"decode": {"prefill_kv_max_share": float("nan")}}, "prefill_kv_max_share: should be a finite number"),
        ({"prediction": {"artifact": "/a\0b"}}, "artifact: should be a path, and it has a NUL character"),
        ({"prediction": {"refit_interval": "1ns"}}, "refit_interval: should lie between 1s and 365d"),
    ],
)
def test_an_adopted_pool_with_settings_that_nothing_could_use_is_left_out(
    local: GatewayConfig, sections: dict[str, Any], fault: str
) -> None:
    told = _MEETING | {"connector": "nixl"} | sections
    found = orders(local, replicas=(granted("prefill", pool=told), granted("decode", pool=told)))
    assert not found.replicas
    assert fault in found.left_out["decode"]


def test_a_pool_of_which_nothing_is_served_here_is_none_of_this_gateways(local: GatewayConfig) -> None:
    told = _MEETING | {"connector": "nixl", "prediction": {"artifact": "/artifacts/chat.json"}}
    grants = tuple(granted(role, pool=told, api_key_env="EMPTY") for role in ("prefill", "decode"))
    allowing = replace(local, control=replace(local.control, credentials=("EMPTY",)))
    found = orders(allowing, replicas=grants)
    assert sorted(found.left_out) == ["decode", "prefill"]
    assert (found.pools, found.unread) == ((), {})
    abroad = replace(allowing, control=replace(local.control, adopted_max=1))
    ranks = tuple(granted(role, pool=told, data_parallel_ranks=8) for role in ("prefill", "decode"))
    found = orders(abroad, replicas=ranks)
    assert not found.replicas
    assert (found.pools, found.unread) == ((), {})


def test_an_adopted_pool_keeps_its_policy_and_its_predictors_settings(local: GatewayConfig) -> None:
    told = _MEETING | {
        "connector": "nixl",
        "decode": {"policy": "br_h", "balance": {"horizon_steps": 8, "refresh_tokens": 4}},
        "prediction": {"requests_min": 5},
    }
    found = orders(local, replicas=(granted("prefill", pool=told), granted("decode", pool=told)))
    (spec,) = found.pools
    assert (decode_of(spec).policy, decode_of(spec).balance.horizon_steps) == (DecodePolicyName.BR_H, 8)
    assert prediction_of(spec).requests_min == 5


@pytest.mark.parametrize("listed", ["/artifacts/chat.json", "/artifacts"])
def test_an_adopted_pools_artifact_is_read_only_where_our_operator_lists_it(local: GatewayConfig, listed: str) -> None:
    told = _MEETING | {"connector": "nixl", "expert_locality": {"artifact": "/artifacts/chat.json"}}
    grants = (granted("prefill", pool=told), granted("decode", pool=told))
    found = orders(local, replicas=grants)
    (spec,) = found.pools
    assert (locality_of(spec), decode_of(spec).policy) == (None, DecodePolicyName.BR_0)
    assert found.unread == {spec.name: (Path("/artifacts/chat.json"),)}
    allowing = replace(local, control=replace(local.control, artifacts=(listed,)))
    found = orders(allowing, replicas=grants)
    (spec,) = found.pools
    assert decode_of(spec).policy is DecodePolicyName.ELDR
    assert not found.unread


def test_a_pool_of_the_own_region_file_is_as_described_there(local: GatewayConfig) -> None:
    own = PoolSpec(PoolName("chat"), PoolKind.DISAGGREGATED, Connector.MOONCAKE, 2)
    grant = ReplicaGrant(document("d", US, pool=_MEETING, role="decode"), OURS, US, None)
    (spec,) = orders(replace(local, pools=(own,)), replicas=(grant,)).pools
    assert spec == own


def test_the_page_on_controllers_lists_the_sections_of_parameters() -> None:
    page = (Path(__file__).parents[4] / "docs/concepts/controller.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith("| parameters |"))
    listed = row.partition("sections ")[2].partition(":")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == {each.name for each in fields(CoreConfig)}


def test_a_controller_says_nothing_of_decode_policies(local: GatewayConfig) -> None:
    assert refusal(local, parameters='{"decode": {"policy": "br_h"}}').startswith("parameters: decode")


def test_a_part_of_a_pool_that_stands_elsewhere_is_left_out(local: GatewayConfig) -> None:
    both = RegionTable({**REGIONS.regions, US.region: replace(REGIONS.regions[US.region], announced_by=(EU.region,))})
    found = read_orders(snapshot(replicas=(granted("prefill"), granted("decode", US))), local, both, ENVIRON)
    assert [each.spec.replica_id for each in found.replicas] == ["prefill"]
    assert "it stands elsewhere than the rest of it" in found.left_out["decode"]


def test_a_part_of_a_pool_never_joins_another_ones_pool_of_that_name(local: GatewayConfig) -> None:
    own = PoolSpec(PoolName("chat"), PoolKind.DISAGGREGATED, Connector.NIXL, 8)
    found = orders(replace(local, pools=(own,)), replicas=(granted("decode", pool="chat"),))
    assert not found.replicas
    assert "no file describes pool chat@" in found.left_out["decode"]


def test_the_controllers_page_lists_every_section_that_parameters_take() -> None:
    page = (Path(__file__).parents[4] / "docs/concepts/controller.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith("| parameters |"))
    listed, _, _ = row.partition(": snapshot")
    assert sorted(re.findall("`(.+?)`", listed)) == sorted(CoreFile.model_fields)
