"""Features outside the core, by their lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import fields

from gateway.config.pools import PoolFile
from gateway.config.region_file import RegionFile
from gateway.features.catalogue import KINDS
from gateway.features.sections import FeatureSections, PoolSections
from tests.support.identifiers import identifiers_in

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "gateway/features"
LISTS = [
    ROOT / "gateway/conformance/upsets.py",
    ROOT / "gateway/core/config.py",
    ROOT / "gateway/core/events.py",
    ROOT / "gateway/core/tenant_config.py",
]
"""Lists of the features' events and sections; a line goes with its feature."""
WORDS = {
    "cache_digests": r"cache_digest|CacheDigest|DigestPart|DigestHeard",
    "classes": r"ClassesConfig|BatchConfig|BestEffortConfig",
    "disaggregated": r"decode_pool|decode_figure|DecodeLevels|DecodeFigures|[Pp]redictor|PredictionConfig",
    "expert_locality": r"locality|nearness|expert|eldr",
    "kv_events": r"kv_?event|KvEvent|EngineTold|EngineUnheard",
    "lengths": r"token_budget|TokenBudget|[Mm]isroute|threshold_tokens|ThresholdConfig|[Tt]uning|[Ll]adder",
    "limits": r"TenantUse|TenantMeter|SharesConfig|limits_of|LimitLevels|tenant_limit",
    "lockdown": r"lock(ed_)?down|Lockdown|LOCKDOWN",
    "prices": r"[Pp]rice|PRICE|[Mm]oney|[Cc]arbon|(?<!con)(?<!CON)[Cc]urrency",
    "resume": r"[Rr]esum(?!e(_reading|_writing)?$)|RESUM|goes_on|may_break|first_step_death|[Tt]ranscript|[Rr]ewrit",
    "scaling": r"[Ss]caling",
    "sharing": r"SharingConfig|FairShares|FairOrder|SharingExtension",
    "stored_responses": r"stored_response|STORED_RESPONSE",
}
"""Words by which a feature would be named, for those whose halves are whole. A leg's `resume` is flow control."""
_SETTINGS = "settings that the core is given with its others"
_VOCABULARY = "a word of decisions, outcomes or replicas that all programs share"
_PATH = "stands on a request's path"
_FIGURES = "a figure of the core that several readers show"
STILL_NAMED: dict[str, dict[str, str]] = {
    "cache_digests": {},
    "kv_events": {
        "gateway/config/region_file.py": "keys of a replica's description",
        "gateway/config/targets.py": "keys of a replica's description",
    },
    "classes": {},
    "resume": {
        "gateway/config/pools.py": "a key of a pool's description",
        "gateway/config/tracing.py": "a key of tail sampling",
        "gateway/peers/codec.py": "fields of a forward and of its end",
        "gateway/records/decisions.py": "a mark by which operators filter decisions",
        "gateway/tracing/sampling.py": "a reason of tail sampling",
        "mesh/page/rows.py": "a mark by which operators filter decisions",
    },
    "sharing": {},
    "disaggregated": {},
    "expert_locality": {
        "gateway/core/kernel/events.py": "what the end of a leg tells of its prompt",
        "gateway/request/": "reads counts of experts from engines' answers",
    },
    "lengths": {
        "gateway/config/pools.py": "a key of a pool's description",
        "gateway/core/kernel/description.py": _FIGURES,
        "gateway/core/kernel/peers.py": "what a peer's heartbeat says of its pools",
        "gateway/core/kernel/pools.py": "pools by order of preference",
        "gateway/core/kernel/replica_groups.py": "pools as they are described",
        "gateway/core/kernel/replicas.py": "pools as they are described",
        "gateway/core/vocabulary.py": _VOCABULARY,
        "gateway/peers/codec.py": "a field of the report that the core makes",
    },
    "limits": {
        "gateway/core/kernel/feature.py": "a hook by which a feature adds to the report for peers",
        "gateway/core/vocabulary.py": _VOCABULARY,
        "gateway/peers/codec.py": "a field of the report that the core makes",
    },
    "lockdown": {
        "gateway/app/load.py": "tells controllers",
        "gateway/core/vocabulary.py": _VOCABULARY,
        "mesh/control/": "what controllers are told of a gateway",
    },
    "prices": {
        "gateway/core/kernel/config.py": "the policy's name and its keys, under `placement`",
        "gateway/core/vocabulary.py": "reasons of placements",
    },
    "scaling": {},
    "stored_responses": {
        "gateway/core/kernel/config.py": _SETTINGS,
        "gateway/core/placement/placer.py": "a request that refers to a response has one target",
        "gateway/core/vocabulary.py": _VOCABULARY,
        "gateway/door/": _PATH,
        "gateway/peers/": "a forward must be routed by the response that its path names",
        "gateway/request/": _PATH,
    },
}
"""Files and folders outside a feature's folders that still name it, each with the reason. The lists only become
shorter."""


def test_each_package_is_listed_once_by_its_name() -> None:
    packages = [path.name for path in FOLDER.iterdir() if (path / "__init__.py").exists()]
    assert sorted(packages) == sorted(kind.name for kind in KINDS)
    assert packages


def test_the_region_file_has_the_sections_keys() -> None:
    keys = {each.name for each in fields(FeatureSections)}
    of_pools = {each.name for each in fields(PoolSections)}
    assert len(keys) + len(of_pools) > 4
    assert keys <= RegionFile.model_fields.keys()
    assert of_pools <= PoolFile.model_fields.keys()


def test_the_state_has_a_key_for_each_feature() -> None:
    keys = [kind.state_key or kind.name for kind in KINDS]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("feature", WORDS)
def test_no_file_outside_its_folders_names_a_feature(feature: str) -> None:
    word = re.compile(WORDS[feature])
    sources = (path for folder in ("gateway", "mesh") for path in (ROOT / folder).rglob("*.py"))
    files = [path for path in sources if "features" not in path.parts and path not in LISTS]
    named = [str(path.relative_to(ROOT)) for path in files if any(word.search(name) for name in identifiers_in(path))]
    listed = STILL_NAMED[feature]
    assert [path for path in named if not any(path.startswith(each) for each in listed)] == []
    assert [each for each in listed if not any(path.startswith(each) for path in named)] == [], "it is named no more"


def test_prices_are_named_by_two_files() -> None:
    assert len(STILL_NAMED["prices"]) <= 2
    assert not any(each.endswith("/") for each in STILL_NAMED["prices"])


def test_resume_is_named_by_few_files() -> None:
    assert len(STILL_NAMED["resume"]) <= 6
    assert not any(each.endswith("/") for each in STILL_NAMED["resume"])
