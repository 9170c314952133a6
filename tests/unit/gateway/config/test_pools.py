from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gateway.core.vocabulary import Connector, PoolKind, ReplicaRole
from tests.support.region_files import load_config, region_at, region_faults

_CHAT = {"name": "chat", "kind": "disaggregated", "connector": "nixl", "decode_batch_max": 8}


def _engine(name: str, **more: object) -> dict[str, object]:
    return {"id": name, "url": f"http://127.0.0.1/{name}", "models": ["llama"]} | more


def _document(**more: object) -> dict[str, object]:
    engines = [_engine("p", pool="chat", role="prefill"), _engine("d", pool="chat", role="decode")]
    region = {"gateway": "us-1", "region": "us-east-1", "jurisdiction": "US", "pools": [_CHAT], "replicas": engines}
    return region | more


def test_a_disaggregated_pool_is_read(tmp_path: Path) -> None:
    decoder = _engine("d", pool="chat", role="decode", data_parallel_ranks=2)
    document = _document(replicas=[_engine("p", pool="chat", role="prefill"), decoder])
    config = load_config(region_at(tmp_path, yaml.safe_dump(document)), environ={})
    (pool,) = config.pools
    assert (pool.name, pool.kind, pool.connector) == ("chat", PoolKind.DISAGGREGATED, Connector.NIXL)
    assert (pool.decode_batch_max, pool.lease_ns) == (8, 30_000_000_000)
    roles = [(each.spec.replica_id, each.spec.role, each.spec.group) for each in config.replicas]
    assert roles == [
        ("p", ReplicaRole.PREFILL, ""),
        ("d@0", ReplicaRole.DECODE, "d"),
        ("d@1", ReplicaRole.DECODE, "d"),
    ], "ranks of one engine step together"


_X = "llama@x"


@pytest.mark.parametrize(
    "of_pool,of_prefill,of_decode,is_right",
    [
        (None, None, None, True),
        (_X, None, None, True),
        (_X, _X, None, True),
        (_X, None, _X, True),
        (None, _X, _X, True),
        (None, _X, None, False),
        (_X, "llama@y", None, False),
        (_X, "llama@y", "llama@y", True),
    ],
)
def test_workers_of_a_disaggregated_pool_have_one_identity_whoever_declares_it(
    tmp_path: Path, of_pool: str | None, of_prefill: str | None, of_decode: str | None, is_right: bool
) -> None:
    engines = [
        _engine("p", pool="chat", role="prefill", identity=of_prefill),
        _engine("d", pool="chat", role="decode", identity=of_decode),
    ]
    document = _document(pools=[_CHAT | {"identity": of_pool}], replicas=engines)
    if is_right:
        load_config(region_at(tmp_path, yaml.safe_dump(document)), environ={})
    else:
        (fault,) = region_faults(tmp_path, yaml.safe_dump(document))
        assert fault.endswith("replicas[1].identity: all of the disaggregated pool chat have the same identity")


def test_whoever_adopts_a_replica_is_told_of_its_pool(tmp_path: Path) -> None:
    config = load_config(region_at(tmp_path, yaml.safe_dump(_document())), environ={})
    told = [json.loads(each) for each in config.replica_documents]
    assert [each["pool"] for each in told] == [_CHAT, _CHAT]


def test_a_limit_and_a_threshold_are_read_and_told(tmp_path: Path) -> None:
    pool = {"name": "short", "context_tokens_max": 8192, "threshold_tokens": 8000}
    document = _document(pools=[pool], replicas=[_engine("s", pool="short")])
    config = load_config(region_at(tmp_path, yaml.safe_dump(document)), environ={})
    assert [(each.name, each.context_tokens_max, each.threshold_tokens) for each in config.pools] == [
        ("short", 8192, 8000)
    ]
    assert json.loads(config.replica_documents[0])["pool"] == pool


@pytest.mark.parametrize(
    "changed,fault",
    [
        (
            {"pools": [_CHAT | {"context_tokens_max": 4096, "threshold_tokens": 8192}]},
            "pools[0].threshold_tokens: is above context_tokens_max, 4096: nothing so long fits",
        ),
        ({"pools": [_CHAT | {"connector": None}]}, "pools[0].connector: a disaggregated pool needs it"),
        ({"pools": [{"name": "chat"}]}, "replicas[0].role: prefill is for a disaggregated pool, and chat is not one"),
        ({"pools": [{"name": "chat", "connector": "nixl"}]}, "pools[0].connector: belongs to a disaggregated pool"),
        ({"pools": [_CHAT, _CHAT]}, "pools[1].name: 'chat' is used twice"),
        ({"pools": [_CHAT | {"connector": "sglang"}]}, "dialect: the connector sglang of pool chat is sglang's"),
        ({"replicas": [_engine("p", pool="chat", role="prefill")]}, "pools[0]: chat has no decode worker"),
        (
            {"replicas": [_engine("p", pool="chat", role="prefill"), _engine("d", pool="chat")]},
            "replicas[1].role: in the disaggregated pool chat it is prefill or decode",
        ),
        (
            {
                "replicas": [
                    _engine("p", pool="chat", role="prefill"),
                    _engine("d", pool="chat", role="decode", region="eu", jurisdiction="EU"),
                ]
            },
            "replicas[1].region: the disaggregated pool chat stands in one region",
        ),
        ({"replicas": [_engine("a", group="x")], "pools": []}, "replicas[0].group: belongs to a decode worker"),
        ({"replicas": [_engine("a", pool=_CHAT)], "pools": []}, "replicas[0].pool: "),
        (
            {"pools": [{"name": "chat", "decode": {"policy": "br_0"}}]},
            "pools[0].decode: belongs to a disaggregated pool",
        ),
        (
            {"pools": [_CHAT | {"decode": {"admissions_max": 1_000_000}}]},
            "pools[0].decode.admissions_max: 1000000: it is 1 to 100,000",
        ),
        (
            {"pools": [_CHAT | {"prediction": {"kind": "learned"}}]},
            "pools[0].prediction.kind: learned is fitted to a file",
        ),
        (
            {"pools": [_CHAT | {"connector": "mooncake", "expert_locality": {"artifact": "eldr.json"}}]},
            "pools[0].decode: policy eldr chooses among requests whose prompts have been read",
        ),
        ({"decode": {"policy": "br_0"}}, "decode: is not a known key; is `pools[].decode` meant?"),
        ({"prediction": {}}, "prediction: is not a known key; is `pools[].prediction` meant?"),
        ({"locality": {}}, "locality: is not a known key; is `pools[].expert_locality` meant?"),
    ],
)
def test_what_does_not_go_together_is_named(tmp_path: Path, changed: dict[str, object], fault: str) -> None:
    found = region_faults(tmp_path, yaml.safe_dump(_document(**changed)))
    assert any(fault in each for each in found), found


def test_a_policy_that_chooses_late_is_refused_where_engines_meet(tmp_path: Path) -> None:
    concurrent = _CHAT | {"connector": "mooncake"}
    found = region_faults(tmp_path, yaml.safe_dump(_document(pools=[concurrent | {"decode": {"policy": "br_h"}}])))
    assert any(
        "pools[0].decode: policy br_h chooses among requests whose prompts have been read" in each for each in found
    )


_YEAR = "should lie between 1s and 365d"


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"prediction": {"refit_interval": "1ns"}}, f"prediction.refit_interval: {_YEAR}"),
        ({"prediction": {"save_interval": "999ms"}}, f"prediction.save_interval: {_YEAR}"),
        ({"prediction": {"refit_timeout": "366d"}}, f"prediction.refit_timeout: {_YEAR}"),
        ({"prediction": {"stale_after": f"{10**30}d"}}, f"prediction.stale_after: {_YEAR}"),
        (
            {"expert_locality": {"artifact": "e.json", "look_interval": "1ms"}},
            f"expert_locality.look_interval: {_YEAR}",
        ),
        ({"expert_locality": {"artifact": "e.json", "refit_after": "400d"}}, f"expert_locality.refit_after: {_YEAR}"),
        ({"decode": {"pool_ttl": "9000d"}}, f"decode.pool_ttl: {_YEAR}"),
        ({"decode": {"tick_interval": "1ns"}}, "decode.tick_interval: should lie between 1ms and 365d"),
        ({"decode": {"progress_interval": "400d"}}, "decode.progress_interval: should lie between 1ms and 365d"),
        ({"lease": "1ns"}, "lease: should lie between 100ms and 365d"),
        ({"prediction": {"refit_interval": "1s", "stale_after": "365d"}}, ""),
        ({"lease": "100ms", "decode": {"tick_interval": "1ms", "progress_interval": "1ms"}}, ""),
    ],
)
def test_durations_of_a_pool_are_bounded_wherever_they_come_from(
    tmp_path: Path, changed: dict[str, object], fault: str
) -> None:
    found = region_faults(tmp_path, yaml.safe_dump(_document(pools=[_CHAT | changed]))) if fault else []
    config = None if fault else load_config(region_at(tmp_path, yaml.safe_dump(_document(pools=[_CHAT | changed]))), {})
    assert [each.partition("pools[0].")[2] for each in found] == [fault] * (config is None)
