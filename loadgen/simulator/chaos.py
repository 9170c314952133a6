"""Chaos worlds, drawn from a seed: small meshes under random policies, loads and faults.

Every checker watches each of them. A seed that finds a fault reproduces it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import Any

from gateway.core.features.disaggregated.config import LATE_POLICIES, LOCAL_POLICIES, DecodePolicyName
from gateway.core.vocabulary import Connector
from loadgen.simulator.checkers import Broken
from loadgen.simulator.controller_chaos import controller_document, controller_faults, pair_document, pair_faults
from loadgen.simulator.faults import FaultPlaces, SimFault, random_faults
from loadgen.simulator.scenario import Scenario, parse_scenario
from loadgen.simulator.world import World

_JURISDICTIONS = {"us-east-1": "US", "us-west-2": "US", "eu-west-1": "EU", "eu-north-1": "EU", "ap-northeast-1": "JP"}
_OTHER_POLICIES = ("consistent_hash", "round_robin", "least_load", "random", "power_of_two")
_LOAD_S = 6
_MILLISECOND_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Finding:
    """Violation or exception found by one seed."""

    seed: int
    what: str
    detail: str


@dataclass(frozen=True, slots=True)
class ChaosRun:
    """Counts of one seed that found nothing."""

    seed: int
    requests: int
    outcomes: dict[str, int]
    refusals: dict[str, int]
    forwards: int
    events: int
    held: dict[str, int]
    """Requests held for a replica, by what they waited for there."""
    digest: str
    resumes: int = 0
    """Attempts to continue an answer that broke."""


class ChaosKind(StrEnum):
    """Kind of world; all but the plain mesh add something to it."""

    MESH = "mesh"
    CONTROLLER = "controller"
    """Controller, which most of the faults hit or affect."""
    PAIR = "pair"
    """Two controllers on one store, of which one leads."""
    DISAGGREGATED = "disaggregated"
    """Pools of prefill workers that compute prompts and decode workers that answer them."""
    MOVING_POOLS = "moving-pools"
    """Controller and disaggregated pools, which move from gateway to gateway."""
    POOLS = "pools"
    """Pools of engines for requests of different lengths."""
    BREAKING = "breaking"
    """Answers that break all the time and are continued elsewhere."""
    MIXED_MODELS = "mixed-models"
    """Answers that break, and engines of one model's name that have different identities or none."""
    SILENT = "silent"
    """Regions that fall silent while they answer most of the requests of another one."""
    CACHE_DIGESTS = "cache-digests"
    """Gateways that tell each other what their replicas hold."""
    KV_EVENTS = "kv-events"
    """Engines that tell what their KV caches store and remove, and messages of theirs that are lost."""
    LEAVING = "leaving"
    """Replicas that are announced to leave, in every second mesh while answers break all the time."""
    UNSTEADY = "unsteady"
    """Gateways that stall and go on, and links that lose and delay packets or are cut in one direction."""
    BATCHES = "batches"
    """Files of requests, which gateways hold and pass on, in every third mesh while gateways stall, and in every third
    one while answers break all the time."""


def run_chaos(
    seed: int, kind: ChaosKind = ChaosKind.MESH, on_line: Callable[[str], object] | None = None
) -> ChaosRun | Finding:
    """Play one seed's world. An exception from a core is a finding, too."""
    return _endure(seed, chaos_scenario(seed, kind), on_line)


def _endure(seed: int, scenario: Scenario, on_line: Callable[[str], object] | None) -> ChaosRun | Finding:
    world = World(scenario, scenario.runs[0], every_invariant=True, on_line=on_line)
    try:
        story = world.play()
        world.check_the_end()
    except Broken as broken:
        return Finding(seed, broken.what, str(broken))
    except Exception as error:  # noqa: BLE001 - an exception of a core is a finding
        return Finding(seed, f"{type(error).__name__} was raised", f"at {world.now_ns / 1e9:.6f} s: {error}")
    return ChaosRun(
        seed,
        len(story.records),
        story.outcomes,
        dict(story.counts.refusals),
        story.counts.attempts["peer"],
        story.events,
        dict(story.counts.held),
        story.digest,
        story.counts.resumes,
    )


def chaos_scenario(seed: int, kind: ChaosKind = ChaosKind.MESH) -> Scenario:
    """Scenario of the seed."""
    return parse_scenario(chaos_document(seed, kind), Path(f"chaos-{seed}.yaml"))


def chaos_document(seed: int, kind: ChaosKind = ChaosKind.MESH) -> dict[str, Any]:
    """Scenario document of the seed."""
    return _DOCUMENTS[kind](seed)


def _controller_document(seed: int) -> dict[str, Any]:
    document = controller_document(seed)
    faults = controller_faults(seed, _places_in(document))
    return document | {"faults": [_in_writing(fault) for fault in faults]}


def _pair_document(seed: int) -> dict[str, Any]:
    document = pair_document(seed)
    faults = pair_faults(seed, _places_in(document))
    return document | {"faults": [_in_writing(fault) for fault in faults]}


def _mesh_document(seed: int) -> dict[str, Any]:
    rng = random.Random(f"chaos/{seed}")
    names = rng.sample(list(_JURISDICTIONS), rng.choice((2, 3, 3, 4)))
    regions = {name: _region(rng, name, names) for name in names}
    document: dict[str, Any] = {
        "name": f"chaos-{seed}",
        "seed": seed,
        "duration": f"{_LOAD_S}s",
        "drain": "120s",
        "preset": "tiny",
        "slots": rng.choice((1, 2, 4, 8)),
        "prefix_block": "64B",
        "heartbeat_batch": rng.choice(("0s", "0s", "5ms")),
        "request_deadline": f"{rng.choice((3, 10, 30))}s",
        "pause_after_failure": "200ms",
        "round_trips": [[one, other, f"{rng.randrange(4, 220)}ms"] for one, other in combinations(sorted(names), 2)],
        "network": {
            "jitter_share": rng.choice((0.0, 0.1, 0.5)),
            "loss_share": rng.choice((0.0, 0.0, 0.01, 0.05)),
            "connection_timeout": f"{rng.choice((2, 6, 20))}s",
        },
        "regions": regions,
        "workloads": _workloads(rng),
        "clients": [_clients(rng, name) for name in names for _ in range(rng.choice((1, 1, 2)))],
        "runs": [_run(rng)],
    }
    if rng.random() < 0.3:
        document["queued_requests_max"] = rng.choice((1, 2, 4))
    document["faults"] = _faults(rng, document)
    shares = random.Random(f"chaos/{seed}/sharing")
    if shares.random() < 0.3:
        _share_out(shares, document)
    whole = random.Random(f"chaos/{seed}/whole")
    if whole.random() < 0.3:
        for clients in document["clients"]:
            clients["whole_share"] = whole.choice((0.0, 0.3, 1.0))
    agents = random.Random(f"chaos/{seed}/agents")
    return _among_agents(agents, document) if agents.random() < 0.25 else document


def _share_out(rng: random.Random, document: dict[str, Any]) -> None:
    """Give tenants different weights and priorities, and some clients lower service classes."""
    for clients in document["clients"]:
        clients["service_class"] = rng.choice(("interactive", "interactive", "batch", "best_effort"))
    (run,) = document["runs"]
    run["tenants"] = {"acme": {"weight": rng.choice((0.5, 3.0)), "priority": rng.choice((0, 0, 2))}}
    run["sharing"] = {
        "aging": f"{rng.choice((1, 10))}s",
        "prefix_slack_tokens": rng.choice((0, 200, 10_000)),
        "tenants_max": rng.choice((1, 100)),
    }
    first_token = rng.choice((None, "500ms", "3s"))
    run["classes"] = {
        "interactive": {"first_token": first_token},
        "batch": {"free_share": rng.choice((0.0, 0.25)), "promotion": rng.choice((None, "2s")), "wait_max": "20s"},
        "best_effort": {"wait_max": rng.choice(("1s", "20s")), "queue_share": rng.choice((0.1, 0.5))},
    }
    if rng.random() < 0.5:
        run["sharing"]["yields_above"] = rng.choice((1.0, 1.5))


def _disaggregated_document(seed: int) -> dict[str, Any]:
    """Document with a disaggregated pool in at least one region and not in all, beside the other replicas or in place
    of them."""
    document = _mesh_document(seed)
    rng = random.Random(f"chaos/{seed}/disaggregated")
    names = list(document["regions"])
    for name in rng.sample(names, rng.randint(1, len(names) - 1)):
        region = document["regions"][name]
        region["disaggregated"] = _pool(rng)
        if rng.random() < 0.5:
            region["replicas"] = 0
            region.pop("adopted", None)
    return document | {"faults": _faults(rng, document | {"faults": []})}


def _moving_pools_document(seed: int) -> dict[str, Any]:
    """Document with a controller and, in at least one region and not in all, pools under all decode policies. Their
    gateways crash for long enough that other regions, whose load is high, serve the pools, or leave them out."""
    document = controller_document(seed)
    rng = random.Random(f"chaos/{seed}/moving pools")
    names = list(document["regions"])
    crashes: list[dict[str, Any]] = []
    for name in rng.sample(names, rng.randint(1, len(names) - 1)):
        region, pool = document["regions"][name], _pool(rng)
        policies = [each for each in DecodePolicyName if each not in LATE_POLICIES | LOCAL_POLICIES]
        if Connector(pool["connector"]).is_sequential:
            policies = list(DecodePolicyName)
        region["disaggregated"] = pool | {"decode": {"policy": str(rng.choice(policies))}}
        if rng.random() < 0.5:
            region["replicas"] = 0
        if rng.random() < 0.7:
            region["accept"] = {"jurisdictions": sorted(set(_JURISDICTIONS.values()))}
        gateway = f"{name}/gw0" if region["gateways"] > 1 else f"{name}/gw"
        at, lasts = rng.randrange(2, 8), rng.randrange(4, 12)
        crashes.append({"kind": "gateway_crash", "target": gateway, "at": f"{at}s", "lasts": f"{lasts}s"})
    for clients in document["clients"]:
        clients["clients"] *= rng.choice((1, 4))
    _add_decode_inputs(random.Random(f"chaos/{seed}/decode inputs"), document)
    refusals = random.Random(f"chaos/{seed}/refusals")
    document["controller"] |= {
        "refusing_share": refusals.choice((0.0, 0.3, 0.6)),
        "left_out_retry": refusals.choice(("1s", "5s", "300s")),
        "history_interval": random.Random(f"chaos/{seed}/histories").choice((None, "500ms", "3s")),
    }
    document["faults"] = crashes
    faults = controller_faults(seed, _places_in(document))
    return document | {"faults": [*crashes, *map(_in_writing, faults)]}


def _add_decode_inputs(rng: random.Random, document: dict[str, Any]) -> None:
    """Give most pools predictors that are fitted early, and artifacts of expert locality; let some name no policy."""
    for region in document["regions"].values():
        pool = region.get("disaggregated")
        if pool is None:
            continue
        if rng.random() < 0.15:
            pool["decode"] = {}
        if rng.random() < 0.7:
            pool["prediction"] = {
                "kind": rng.choice(("survival", "exact_match")),
                "requests_min": rng.choice((1, 8)),
                "refit_interval": rng.choice(("500ms", "3s")),
            }
        pool["expert_clusters"] = rng.choice((0, 1, 2, 3))


def _breaking_document(seed: int) -> dict[str, Any]:
    """Document in which replicas crash repeatedly while they write, and sometimes a gateway; every third mesh has
    disaggregated pools."""
    document = _disaggregated_document(seed) if seed % 3 == 2 else _mesh_document(seed)
    rng = random.Random(f"chaos/{seed}/breaking")
    places = _places_in(document | {"faults": []})
    kills: list[dict[str, Any]] = [
        {"kind": "replica_crash", "target": replica, "at": f"{rng.randrange(200, 1500)}ms", "lasts": "150ms"}
        | {"times": rng.choice((3, 6)), "every": f"{rng.choice((500, 800, 1300))}ms"}
        for replica in rng.sample(places.replicas, max(1, len(places.replicas) // 2))
    ]
    if rng.random() < 0.5:
        gateway = rng.choice(places.gateways)
        kills.append(
            {"kind": "gateway_crash", "target": gateway, "at": "2s", "lasts": "500ms", "times": 2, "every": "2s"}
        )
    for run in document["runs"]:
        run["resume"] = {"resumes_max": rng.choice((1, 3)), "wait_max": rng.choice(("300ms", "10s"))}
        run["attempt"] |= {"retry_budget_min": 1000, "breaker_failures_in_row": 20}
    return document | {"resumes": True, "faults": [*document["faults"], *kills]}


def _leaving_document(seed: int) -> dict[str, Any]:
    """Document in which replicas are announced to leave: most are gone at their time, and come back as new ones; some
    are gone earlier, some live on, and some announcements are withdrawn before their time."""
    document = _breaking_document(seed) if seed % 2 else _mesh_document(seed)
    rng = random.Random(f"chaos/{seed}/leaving")
    replicas = _places_in(document | {"faults": []}).replicas
    faults: list[dict[str, Any]] = []
    for replica in rng.sample(replicas, max(1, len(replicas) // 2)):
        at_ms, notice_ms = rng.randrange(300, 4000), rng.choice((300, 1500, 4000))
        fate = rng.choice(("gone", "gone", "gone early", "lives on", "withdrawn"))
        lasts_ms = notice_ms // 2 if fate == "withdrawn" else notice_ms + rng.choice((500, 3000))
        leaves = {"kind": "replica_leaves", "target": replica, "amount": notice_ms / 1000}
        faults.append(leaves | {"at": f"{at_ms}ms", "lasts": f"{lasts_ms}ms"})
        if fate.startswith("gone"):
            gone_ms = at_ms + (notice_ms if fate == "gone" else notice_ms // 2)
            crash = {"kind": "replica_crash", "target": replica, "at": f"{gone_ms}ms"}
            faults.append(crash | {"lasts": f"{rng.choice((150, 2000))}ms"})
    if not any("disaggregated" in region for region in document["regions"].values()):  # prompts outlast leases there
        _lengthen_answers(document)
    for run in document["runs"]:
        run["leaving"] = {"margin": rng.choice(("200ms", "1s", "5s"))}
    return document | {"resumes": True, "faults": [*document["faults"], *faults]}


def _silent_document(seed: int) -> dict[str, Any]:
    """Document in which a region's replicas are down for most of the load, so that its requests are forwarded, and come
    back while gateways and ways between regions are silent, some of them for so short a time that nothing breaks."""
    document = _mesh_document(seed)
    rng = random.Random(f"chaos/{seed}/silent")
    places = _places_in(document | {"faults": []})
    names = list(document["regions"])
    hungry = rng.choice(names)
    gateways = [each for each in places.gateways if not each.startswith(f"{hungry}/")]
    faults: list[dict[str, Any]] = [
        {"kind": "replica_crash", "target": each, "at": "100ms", "lasts": f"{rng.randrange(800, 5000)}ms"}
        for each in places.replicas
        if each.startswith(f"{hungry}/")
    ]
    for _ in range(rng.randint(1, 3)):
        when = {"at": f"{rng.randrange(300, 4000)}ms", "lasts": f"{rng.randrange(1000, 6000)}ms"}
        kind = rng.choice(("gateway_silent", "partition", "one_way_partition", "one_way_partition"))
        if kind == "gateway_silent":
            faults.append({"kind": kind, "target": rng.choice(gateways)} | when)
        else:
            ends = [hungry, rng.choice([each for each in names if each != hungry])]
            rng.shuffle(ends)
            faults.append({"kind": kind, "target": ends[0], "other": ends[1]} | when)
    _lengthen_answers(document)
    for run in document["runs"]:
        run["placement"] |= {"overflow": "on"}
        run["resume"] = {"resumes_max": rng.choice((1, 3)), "wait_max": rng.choice(("1s", "10s"))}
    for region in document["regions"].values():
        region |= {"process": {"jurisdictions": ["EU", "JP", "US"]}, "accept": {"jurisdictions": ["EU", "JP", "US"]}}
    return document | {"resumes": True, "faults": faults}


def _lengthen_answers(document: dict[str, Any]) -> None:
    """Make answers so long that most of them are being written when something happens."""
    answers = {"median": 400, "sigma": 0.5, "minimum": 60, "maximum": 900}
    for workload in document["workloads"].values():
        for kind in ("conversations", "bursts", "tree"):
            if kind in workload:
                workload[kind] |= {"output_tokens": answers}
    document["workloads"]["burst"]["bursts"]["document_words"] = 40
    document["request_deadline"] = "30s"


def _cache_digests_document(seed: int) -> dict[str, Any]:
    """Document in which gateways tell each other of caches, within limits that are reached, while heartbeats are lost
    or late, and policies often keep tenants at home."""
    document = _mesh_document(seed)
    rng = random.Random(f"chaos/{seed}/cache digests")
    for run in document["runs"]:
        run["cache_digests"] = {
            "enabled": True,
            "send_rate_max": rng.choice(("1KiB", "2KiB", "64KiB")),
            "fingerprints_max": rng.choice((4, 64, 1_000, 100_000)),
            "age_max": rng.choice(("3s", "10s")),
        }
    gateways = _places_in(document | {"faults": []}).gateways
    faults = [
        {"kind": kind, "target": rng.choice(gateways), "amount": amount}
        | {"at": f"{rng.randrange(300, 4000)}ms", "lasts": f"{rng.randrange(500, 3000)}ms"}
        for kind, amount in (("heartbeat_loss", 0.5), ("heartbeat_delay", 0.7))
        if rng.random() < 0.7
    ]
    return document | {"faults": [*document["faults"], *faults]}


def _unsteady_document(seed: int) -> dict[str, Any]:
    """Document in which gateways stall, some for longer than their peers wait, and links lose and delay packets or are
    cut in one direction; in most meshes answers break off where a peer falls silent, and go on elsewhere."""
    document = _mesh_document(seed)
    rng = random.Random(f"chaos/{seed}/unsteady")
    places = _places_in(document | {"faults": []})
    faults: list[dict[str, Any]] = []
    for _ in range(rng.randint(1, 3)):
        lasts = rng.choice((rng.randrange(50, 1000), rng.randrange(1000, 8000)))
        fault = {"kind": "gateway_stalled", "target": rng.choice(places.gateways), "lasts": f"{lasts}ms"}
        faults.append(fault | {"at": f"{rng.randrange(300, 5000)}ms"})
    for kind, amounts in (("lossy_link", (0.01, 0.05, 0.2)), ("unsteady_link", (0.5, 3.0)), ("one_way_partition", ())):
        if rng.random() < 0.7:
            one, other = rng.sample(places.regions, 2)
            fault = {"kind": kind, "target": one, "other": other, "at": f"{rng.randrange(300, 4000)}ms"}
            fault |= {"lasts": f"{rng.randrange(500, 6000)}ms"}
            faults.append(fault | ({"amount": rng.choice(amounts)} if amounts else {}))
    if rng.random() < 0.7:
        document["resumes"] = True
        for run in document["runs"]:
            run["resume"] = {"resumes_max": rng.choice((1, 3)), "wait_max": rng.choice(("1s", "10s"))}
    return document | {"faults": [*document["faults"], *faults]}


def _batches_document(seed: int) -> dict[str, Any]:
    """Document in which files of requests are handed in, some with windows too short for them, and the gateways that
    hold them crash for longer or shorter than a lease."""
    document = (_mesh_document, _unsteady_document, _breaking_document)[seed % 3](seed)
    rng = random.Random(f"chaos/{seed}/batches")
    places = _places_in(document | {"faults": []})
    files = [
        {
            "region": rng.choice(places.regions),
            "workload": rng.choice(("chat", "tree", "burst")),
            "tenant": rng.choice(("default", "acme")),
            "lines": rng.choice((5, 20, 60)),
            "at": f"{rng.randrange(1, 4000)}ms",
            "window": f"{rng.choice((2, 20, 100))}s",
        }
        for _ in range(rng.randint(1, 4))
    ]
    document["batches"] = {
        "files": files,
        "requests_max": rng.choice((2, 8, 32)),
        "urgent_share": rng.choice((0.1, 0.5)),
        "lease": rng.choice(("1s", "3s")),
    }
    holders = [each for each in places.gateways if each.startswith(f"{files[0]['region']}/")]
    crash = {"kind": "gateway_crash", "target": rng.choice(holders), "at": f"{rng.randrange(500, 5000)}ms"}
    crashes = [crash | {"lasts": f"{rng.choice((300, 2000, 8000))}ms"}] if rng.random() < 0.7 else []
    for run in document["runs"]:
        classes = run.setdefault("classes", {})
        classes |= {"interruptions_max": rng.choice((0, 1, 3))}
        classes["batch"] = {"free_share": rng.choice((0.0, 0.1)), "promotion": rng.choice((None, "2s", "120s"))}
    money = random.Random(f"chaos/{seed}/prices")
    if money.random() < 0.4:
        _price(money, document, places.regions)
    return document | {"faults": [*document["faults"], *crashes]}


def _price(rng: random.Random, document: dict[str, Any], regions: Sequence[str]) -> None:
    """Price what regions have, with some prices that change and some regions without one, and place by it."""
    priced = {
        region: {
            "replica_hour": rng.choice((0.5, 4, 9)),
            "billing": rng.choice(("reserved", "per_use")),
            "requests_per_replica": rng.choice((1, 16)),
            "hours": [{"days": "all", "from": "00:00", "until": f"{rng.randint(1, 24):02}:00", "replica_hour": 2.5}],
        }
        for region in regions
        if region == regions[0] or rng.random() < 0.9
    }
    document["prices"] = {"file": {"version": 1, "currency": "EUR", "regions": priced}, "day": rng.choice(("2s", "9s"))}
    for run in document["runs"]:
        run["placement"] |= {"policy": "price", "price_first_token": rng.choice((None, "1s"))}
        attempt = run.setdefault("attempt", {})
        attempt["refusals_max"] = max(1, attempt.get("refusals_max", 1))  # the cheapest target may refuse


def _kv_events_document(seed: int) -> dict[str, Any]:
    """Document in which engines with small caches tell what these hold, and messages are lost."""
    document = _mesh_document(seed)
    rng = random.Random(f"chaos/{seed}/kv events")
    for run in document["runs"]:
        run["kv_events"] = {"blocks_max": rng.choice((20, 300, 65_536)), "pause": rng.choice(("1s", "60s"))}
    return document | {"kv_events": True, "kv_event_loss": rng.choice((0.0, 0.02, 0.3))}


def _mixed_models_document(seed: int) -> dict[str, Any]:
    """Document in which answers break, engines of one name have one of two identities or none, and every second mesh
    asks for the same identity after each failure."""
    document = _breaking_document(seed)
    rng = random.Random(f"chaos/{seed}/mixed models")
    for region in document["regions"].values():
        region["identities"] = rng.choices(("model@a", "model@b", ""), (4, 4, 1), k=3)
    for run in document["runs"]:
        run["attempt"] |= {"model_identity": rng.choice(("same_name", "same")), "attempts_max": 3}
    return document


def _pools_document(seed: int) -> dict[str, Any]:
    """Document with pools of different context lengths in at least one region, beside the other replicas or in place of
    them; sometimes a pool's context is shorter than its configuration states."""
    document = _mesh_document(seed)
    rng = random.Random(f"chaos/{seed}/pools")
    names = list(document["regions"])
    for name in rng.sample(names, rng.randint(1, len(names))):
        region = document["regions"][name]
        region["pools"] = _pools(rng)
        if rng.random() < 0.7:
            region["replicas"] = 0
            region.pop("adopted", None)
    placement = document["runs"][0]["placement"]
    placement |= {"spill_queue_length": rng.choice((1, 1, 3)), "too_long_slack_share": rng.choice((0.5, 1.0))}
    return document | {"faults": _faults(rng, document | {"faults": []})}


def _pools(rng: random.Random) -> dict[str, Any]:
    lengths = sorted(rng.sample((256, 512, 1024, 2048), rng.choice((1, 2, 2, 3))))
    pools: dict[str, Any] = {}
    for number, length in enumerate(lengths):
        pool = {"replicas": rng.choice((1, 1, 2)), "context_tokens_max": length}
        if number + 1 < len(lengths) or rng.random() < 0.3:
            pool["threshold_tokens"] = length if rng.random() < 0.5 else length * 3 // 4
        if rng.random() < 0.2:
            pool["told_context_tokens_max"] = 2 * length
        pools[f"p{length}"] = pool
    return pools


def _pool(rng: random.Random) -> dict[str, Any]:
    return {
        "prefill_workers": rng.choice((1, 2)),
        "decode_workers": rng.choice((1, 2, 4)),
        "groups": rng.choice((1, 1, 2)),
        "batch": rng.choice((1, 2, 4, 8)),
        "connector": rng.choice(("nixl", "nixl", "ascend", "mooncake", "sglang")),
        "step": rng.choice(("2ms", "10ms")),
        "kv_token": rng.choice(("1us", "10us")),
        "transfer": rng.choice(("1ms", "50ms", "400ms")),
        "lease": rng.choice(("500ms", "2s", "10s")),
        "decode": {"policy": "join_shortest_queue"},
    }


def _among_agents(rng: random.Random, document: dict[str, Any]) -> dict[str, Any]:
    """Turn some clients into agents, whose sessions grow until the caches are full of prefixes still in use."""
    for clients in document["clients"]:
        if rng.random() < 0.7:
            clients["workload"] = "agents"
        if "clients" in clients:
            clients["clients"] += rng.choice((0, 4, 8))
    if rng.random() < 0.7:
        document["runs"][0]["placement"]["policy"] = "cost"
    document["workloads"] |= {"agents": {"conversations": _agents(rng)}}
    return document | {"kv_tokens": rng.choice((1_600, 2_400, 4_096)), "slots": rng.choice((4, 8))}


def _agents(rng: random.Random) -> dict[str, Any]:
    """Agents' conversations, of which hardly two begin alike."""
    return {
        "applications": 60,
        "system_prompt_words": rng.choice((120, 400)),
        "profile_words": 10,
        "turns": {"median": 8, "sigma": 0.4, "minimum": 3, "maximum": 16},
        "question_words": {"median": 30, "sigma": 0.6, "minimum": 4, "maximum": 120},
        "output_tokens": {"median": 16, "sigma": 0.5, "minimum": 4, "maximum": 60},
        "think_s": {"median": rng.choice((0.02, 0.1)), "sigma": 0.6, "minimum": 0.005, "maximum": 0.5},
    }


def _region(rng: random.Random, name: str, names: list[str]) -> dict[str, Any]:
    others = [other for other in names if other != name]
    region: dict[str, Any] = {
        "jurisdiction": _JURISDICTIONS[name],
        "gateways": rng.choice((1, 1, 1, 2)),
        "replicas": rng.choice((2, 2, 3)),
        "process": _rule(rng, [name], others),
        "accept": _rule(rng, [], others),
    }
    if rng.random() < 0.3:  # few large replicas
        region |= {"replicas": region["gateways"], "slots": rng.choice((4, 16, 64))}
    if rng.random() < 0.3:
        region["adopted"] = [{"region": rng.choice(others), "replicas": 1}]
    if rng.random() < 0.4:
        region["tenants"] = {"acme": {"process": _rule(rng, [name] if rng.random() < 0.7 else [others[0]], others)}}
    return region


def _rule(rng: random.Random, always: list[str], others: list[str]) -> dict[str, list[str]]:
    """Residency rule: open to all in half of the cases, else open to some."""
    if rng.random() < 0.5:
        return {"jurisdictions": ["EU", "JP", "US"]}
    some = [other for other in others if other not in always and rng.random() < 0.5]
    return {"regions": [*always, *some]} if always or some else {}


def _workloads(rng: random.Random) -> dict[str, Any]:
    """Short workloads, so that much happens in little time; some prompts are longer than any engine takes."""
    brief = {"median": 12, "sigma": 0.6, "minimum": 2, "maximum": 60}
    answers = {"median": 24, "sigma": 0.7, "minimum": 1, "maximum": 200}
    thinking = {"median": 0.2, "sigma": 0.8, "minimum": 0.01, "maximum": 1}
    chat = {
        "applications": 2,
        "system_prompt_words": 60,
        "profile_words": 10,
        "question_words": brief,
        "output_tokens": answers,
        "think_s": thinking,
    }
    burst = {
        "requests": rng.choice((4, 12)),
        "document_words": rng.choice((40, 40, 3_400)),
        "question_words": brief,
        "output_tokens": answers,
        "pause_s": {"median": 1, "sigma": 0.5, "minimum": 0.3, "maximum": 4},
    }
    tree = {"instruction_words": 60, "question_words": brief, "output_tokens": answers, "pause_s": thinking}
    parts = [{"workload": name, "weight": rng.choice((1, 3))} for name in ("chat", "tree", "burst")]
    return {
        "chat": {"conversations": chat},
        "burst": {"bursts": burst},
        "tree": {"tree": tree},
        "all": {"mixture": parts},
    }


def _clients(rng: random.Random, region: str) -> dict[str, Any]:
    clients: dict[str, Any] = {
        "region": region,
        "workload": rng.choice(("chat", "tree", "burst", "all")),
        "tenant": rng.choice(("default", "acme")),
    }
    if rng.random() < 0.3:
        clients["arrivals"] = {"rate": rng.choice((0.5, 2.0)), "variation": rng.choice((0.0, 1.0, 3.0))}
    else:
        clients["clients"] = rng.choice((1, 2, 4))
    if rng.random() < 0.25:
        clients["stores_responses"] = True
    if rng.random() < 0.5:
        clients |= {"patience": f"{rng.choice((50, 400, 2000))}ms", "impatient_share": rng.choice((0.05, 0.3))}
    return clients


def _run(rng: random.Random) -> dict[str, Any]:
    policies = ("cost", "cost", "cost", "prefix", "prefix", *_OTHER_POLICIES)
    breaker_open_ms = rng.choice((300, 1000))
    return {
        "system": "skywalker",
        "placement": {
            "policy": rng.choice(policies),
            "overflow": rng.choice(("on", "on", "on", "on", "shadow", "off")),
            "peer_queue_length_max": rng.choice((0, 1, 3, 10)),
            "peer_availability": rng.choice(("room", "room", "room", "free_replica")),
            "hold_size": rng.choice(("1B", "2KiB")),
            "prefix_index_max": rng.choice(("4KiB", "64KiB", "1MiB")),
            "prefix_ttl": rng.choice(("2s", "1h")),
            "hold": rng.choice(("100us", "1ms", "50ms")),
            "kept_gaps": rng.choice((3.0, 1_000.0)),
        },
        "pushing": {
            "mode": rng.choice(("pending", "pending", "pending", "outstanding", "blind")),
            "in_band_credit": rng.choice((1, 2, 4, None)),
            "outstanding_max": rng.choice((1, 4)),
        },
        "queue": {
            "wait_max": f"{rng.choice((1, 5, 30))}s",
            "length_max": rng.choice((2, 1000)),
            "tenant_length_max": rng.choice((2, 1000)),
        },
        "attempt": {
            "attempts_max": rng.choice((1, 2, 3)),
            "refusals_max": rng.choice((0, 1, 2, 8)),
            "retry_budget_min": rng.choice((0, 10)),
            "first_token_deadline": f"{rng.choice((2, 8))}s",
            "breaker_failures_in_row": rng.choice((2, 5)),
            "breaker_open": f"{breaker_open_ms}ms",
            "breaker_open_max": f"{2 * breaker_open_ms}ms",
            "ramp_step": "200ms",
        },
        "observation": {"replica_stale": rng.choice(("500ms", "2s"))},
    }


def _faults(rng: random.Random, document: dict[str, Any]) -> list[dict[str, Any]]:
    faults = random_faults(rng, _places_in(document), count=rng.randrange(7), until_ns=_LOAD_S * 1000 * _MILLISECOND_NS)
    return [_in_writing(fault) for fault in faults]


def _places_in(document: dict[str, Any]) -> FaultPlaces:
    """Names of the places in the scenario that faults can hit."""
    bare = parse_scenario(document, Path("chaos.yaml"))
    fleet = bare.fleet()
    replicas = [str(spec.replica_id) for owned in fleet.values() for spec, _ in owned]
    has_pair = bare.controller is not None and bare.controller.standby is not None
    return FaultPlaces(
        replicas, list(fleet), list(bare.regions), has_controller=bare.controller is not None, has_pair=has_pair
    )


def _in_writing(fault: SimFault) -> dict[str, Any]:
    written: dict[str, Any] = {
        "kind": str(fault.kind),
        "target": fault.target,
        "amount": fault.amount,
        "at": f"{fault.at_ns}ns",
        "lasts": f"{fault.lasts_ns}ns",
        "times": fault.times,
        "every": f"{fault.every_ns}ns",
    }
    return written | ({"other": fault.other} if fault.other else {})


_DOCUMENTS: dict[ChaosKind, Callable[[int], dict[str, Any]]] = {
    ChaosKind.MESH: _mesh_document,
    ChaosKind.CONTROLLER: _controller_document,
    ChaosKind.PAIR: _pair_document,
    ChaosKind.DISAGGREGATED: _disaggregated_document,
    ChaosKind.MOVING_POOLS: _moving_pools_document,
    ChaosKind.POOLS: _pools_document,
    ChaosKind.BREAKING: _breaking_document,
    ChaosKind.MIXED_MODELS: _mixed_models_document,
    ChaosKind.SILENT: _silent_document,
    ChaosKind.CACHE_DIGESTS: _cache_digests_document,
    ChaosKind.KV_EVENTS: _kv_events_document,
    ChaosKind.LEAVING: _leaving_document,
    ChaosKind.UNSTEADY: _unsteady_document,
    ChaosKind.BATCHES: _batches_document,
}
