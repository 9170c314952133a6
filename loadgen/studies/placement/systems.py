"""The compared systems: the default, the default before it, SkyWalker's own rules, and other routers' rules. Each is a
run of a scenario.

All settings of a baseline are written out, so that a change of defaults changes no baseline.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadgen.engine.iteration_cost import LinearCost
from loadgen.engine.presets import PRESETS
from loadgen.engine.tokens import TOKEN_BYTES
from loadgen.studies.experiments import Changes
from loadgen.studies.skywalker.plan import PAPER_PLACEMENT, PAPER_PUSHING, SGLANG_04_PLACEMENT

OURS = "our default"
BEFORE = "prefix with credit"
SKYWALKER = "SkyWalker"
SKYWALKER_CH = "SkyWalker-CH"
REGION_LOCAL = "region-local"
GKE = "GKE-style"
ROUND_ROBIN = "round robin"
LEAST_LOAD = "least load"
CONSISTENT_HASH = "consistent hash"
SESSION_STICKY = "session-sticky"
SGLANG = "SGLang"
SGLANG_04 = "SGLang v0.4"
LMETRIC = "LMetric"
LLM_D = "llm-d"
OURS_EXACT = "our default, exact"
LLM_D_EXACT = "llm-d, exact"

_FREE_REPLICA: Changes = {"peer_availability": "free_replica"}
_BEFORE: Changes = {"policy": "prefix", "explore_rule": "worth", "explore_load": "128B", **_FREE_REPLICA}
_BEFORE_PUSHING: Changes = {"mode": "pending", "in_band_credit": 4}


def _run(name: str, system: str, **sections: Changes) -> Changes:
    return {"name": name, "system": system, **sections}


SYSTEMS: Mapping[str, Changes] = {
    str(run["name"]): run
    for run in (
        _run(OURS, "nightside"),
        _run(BEFORE, "skywalker", placement=_BEFORE, pushing=_BEFORE_PUSHING),
        _run(SKYWALKER, "skywalker", placement=PAPER_PLACEMENT, pushing=PAPER_PUSHING),
        _run(SKYWALKER_CH, "skywalker_ch", placement=_FREE_REPLICA, pushing=PAPER_PUSHING),
        _run(REGION_LOCAL, "region_local", placement=PAPER_PLACEMENT, pushing=PAPER_PUSHING),
        _run(GKE, "gke", placement=_FREE_REPLICA),
        _run(ROUND_ROBIN, "global_round_robin"),
        _run(LEAST_LOAD, "global_least_load"),
        _run(CONSISTENT_HASH, "global_consistent_hash"),
        _run(SESSION_STICKY, "global_session_sticky"),
        _run(SGLANG, "global_sglang"),
        _run(SGLANG_04, "global_sglang", placement=SGLANG_04_PLACEMENT),
        _run(LMETRIC, "global_lmetric"),
        _run(LLM_D, "global_llm_d"),
        {**_run(OURS_EXACT, "nightside"), "exact_prefixes": True},
        {**_run(LLM_D_EXACT, "global_llm_d"), "exact_prefixes": True},
    )
}
"""Systems by name. A `global` one runs in one region, in front of every replica, and has no queue."""

BASELINES = tuple(name for name in SYSTEMS if name not in (OURS, BEFORE, OURS_EXACT))
"""Baselines that the default must at least equal."""
STRONGEST = (SGLANG, LLM_D, LMETRIC, SESSION_STICKY)
"""The baselines of sweeps: of the routers in use, those that look at prompts, sessions or prefill."""


def run_of(name: str, preset: str) -> Changes:
    """Run of a system on engines of that preset; any other name is that of a placement policy, built in or a plug-in,
    in the mesh. llm-d's router is given the value that its users are told to measure: an engine's prefill rate."""
    if name not in SYSTEMS:
        return _run(name, "nightside", placement={"policy": name})
    run = SYSTEMS[name]
    if name not in (LLM_D, LLM_D_EXACT):
        return run
    return {**run, "placement": {"affinity_prefill": f"{prefill_bytes_per_s(preset)}B"}}


def prefill_bytes_per_s(preset: str) -> int:
    """Prefill rate of an engine of the preset that has no other work."""
    cost = PRESETS[preset].cost
    assert isinstance(cost, LinearCost), f"{preset}: what it prefills in a second depends on more than its rate"
    return TOKEN_BYTES * 1_000_000_000 // cost.prefill_token_ns
