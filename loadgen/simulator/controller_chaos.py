"""Chaos worlds with a controller, drawn from a seed: gateways that fail, flap and come back with old snapshots, and a
controller that is killed, cut off, without its store or with a clock that jumps.

Time-outs and intervals are shorter than in production, so that much happens in little time.
"""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

from loadgen.simulator.faults import CONTROLLER, FaultKind, FaultPlaces, SimFault, random_faults

JURISDICTIONS = {"us-east-1": "US", "us-west-2": "US", "eu-west-1": "EU", "eu-north-1": "EU", "ap-northeast-1": "JP"}
_LOAD_S = 24
_MILLISECOND_NS = 1_000_000
_SECOND_NS = 1_000 * _MILLISECOND_NS


def controller_document(seed: int) -> dict[str, Any]:
    """Scenario document of the seed, without faults."""
    rng = random.Random(f"controller chaos/{seed}")
    names = rng.sample(list(JURISDICTIONS), rng.choice((2, 3, 3, 4, 5)))
    document = {
        "name": f"controller-chaos-{seed}",
        "seed": seed,
        "duration": f"{_LOAD_S}s",
        "drain": "60s",
        "preset": "tiny",
        "slots": rng.choice((1, 2, 4)),
        "prefix_block": "64B",
        "heartbeat_batch": rng.choice(("0s", "0s", "5ms")),
        "request_deadline": "10s",
        "pause_after_failure": "200ms",
        "round_trips": [[one, other, f"{rng.randrange(4, 220)}ms"] for one, other in combinations(sorted(names), 2)],
        "network": {
            "jitter_share": rng.choice((0.0, 0.1, 0.5)),
            "loss_share": rng.choice((0.0, 0.0, 0.02)),
            "connection_timeout": f"{rng.choice((2, 4))}s",
        },
        "regions": {name: _region(rng, name, names) for name in names},
        "workloads": {"chat": {"conversations": _CHAT}},
        "clients": [{"region": name, "workload": "chat", "clients": rng.choice((1, 3, 6))} for name in names],
        "controller": _controller(rng, names),
        "names": {"resolvers": rng.choice((1, 3)), "connect_timeout": f"{rng.choice((1, 3))}s"},
        "runs": [{"system": "skywalker", "placement": {"overflow": rng.choice(("on", "on", "off"))}}],
    }
    _name_further(random.Random(f"controller chaos/{seed}/further"), document)
    return document


def _name_further(rng: random.Random, document: dict[str, Any]) -> None:
    """Let the name lead to one or two further regions in most worlds, where the regions' policies permit that, and make
    some of these differ."""
    document["controller"]["further_gateways"] = rng.choice((1, 2)) if rng.random() < 0.8 else 0
    for name, region in document["regions"].items():
        others = [other for other in document["regions"] if other != name]
        if rng.random() < 0.3:
            region["process"] = {"regions": [name, *(other for other in others if rng.random() < 0.7)]}
        if rng.random() < 0.2:
            region["tenants"] = {"acme": {"process": {"regions": [name, rng.choice(others)]}}}
        if rng.random() < 0.2:
            region["logging"] = {"client_address": True}


def pair_document(seed: int) -> dict[str, Any]:
    """Scenario document of the same world with a second controller on the first one's store."""
    document = controller_document(seed)
    rng = random.Random(f"controller chaos/{seed}/pair")
    more = {
        "standby": rng.choice(list(document["regions"])),
        "lease": rng.choice(("2s", "4s")),
        "margin": "500ms",
        "renew_interval": "500ms",
        "look_interval": "300ms",
        "lapse_max": rng.choice(("1s", "6s")),
        "restart": rng.choice(("100ms", "1s")),
    }
    return document | {"name": f"pair-chaos-{seed}", "controller": document["controller"] | more}


def pair_faults(seed: int, places: FaultPlaces) -> list[SimFault]:
    """Faults for a pair: those for one controller, and further ones that suspend or kill either controller or cut it
    off from the store."""
    rng = random.Random(f"controller chaos/{seed}/pair faults")
    faults = [each for each in controller_faults(seed, places) if each.kind is not FaultKind.STORE_LOST]
    kinds = (
        FaultKind.CONTROLLER_STOPPED,
        FaultKind.CONTROLLER_STOPPED,
        FaultKind.STORE_CUT,
        FaultKind.CONTROLLER_CRASH,
    )
    for _ in range(rng.randrange(1, 4)):
        at_ns = rng.randrange(_LOAD_S * _SECOND_NS * 2 // 3)
        lasts_ns = rng.randrange(200 * _MILLISECOND_NS, _LOAD_S * _SECOND_NS - at_ns)
        faults.append(SimFault(rng.choice(kinds), at_ns, lasts_ns, rng.choice(places.controllers)))
    return faults


def controller_faults(seed: int, places: FaultPlaces) -> list[SimFault]:
    """Random faults, and at times one of the patterns that chance alone seldom draws."""
    rng = random.Random(f"controller chaos/{seed}/faults")
    until_ns = _LOAD_S * _SECOND_NS
    faults = random_faults(rng, places, count=rng.randrange(1, 7), until_ns=until_ns)
    draw = rng.random()
    if draw < 0.2:
        faults += _all_but_one(rng, places, until_ns)
    elif draw < 0.35:
        faults += _cut_off_from_all(rng, places, until_ns)
    elif draw < 0.5:
        faults.append(_flapping(rng, places, until_ns))
    elif draw < 0.65:
        faults += _returns_while_only_peers_know(rng, places, until_ns)
    return faults


def _region(rng: random.Random, name: str, names: list[str]) -> dict[str, Any]:
    others = [other for other in names if other != name]
    return {
        "jurisdiction": JURISDICTIONS[name],
        "gateways": rng.choice((1, 1, 1, 2)),
        "replicas": rng.choice((2, 3, 5)),
        "accept": _accept(rng, others),
    }


def _accept(rng: random.Random, others: list[str]) -> dict[str, list[str]]:
    draw = rng.random()
    if draw < 0.5:
        return {"jurisdictions": ["EU", "JP", "US"]}
    if draw < 0.65:
        return {}
    return {"regions": [other for other in others if rng.random() < 0.6]}


def _controller(rng: random.Random, names: list[str]) -> dict[str, Any]:
    return {
        "region": rng.choice(names),
        "probe_interval": rng.choice(("200ms", "500ms")),
        "probe_timeout": "600ms",
        "report_interval": "300ms",
        "stream_timeout": rng.choice(("1s", "2s")),
        "redial": "300ms",
        "store_delay": rng.choice(("0s", "5ms", "300ms")),
        "silence": rng.choice(("1s", "2s")),
        "unknown_for": "4s",
        "return_after": rng.choice(("500ms", "2s")),
        "return_after_max": "4s",
        "steady_after": "10s",
        "freeze_window": rng.choice(("2s", "6s")),
        "freeze_max": rng.choice(("2s", "6s")),
        "step_share": rng.choice((0.2, 0.5, 1.0)),
        "step": rng.choice(("300ms", "1s")),
        "ttl_s": rng.choice((1, 3)),
        "closed_jurisdictions": rng.choice(([], [], ["EU"])),
    }


def _all_but_one(rng: random.Random, places: FaultPlaces, until_ns: int) -> list[SimFault]:
    at_ns = rng.randrange(until_ns // 3)
    lasts_ns = rng.randrange(2 * _SECOND_NS, until_ns // 2)
    kind = rng.choice((FaultKind.GATEWAY_CRASH, FaultKind.GATEWAY_CRASH, FaultKind.GATEWAY_SILENT))
    survivor = rng.choice(places.gateways)
    return [SimFault(kind, at_ns, lasts_ns, each) for each in places.gateways if each != survivor]


def _cut_off_from_all(rng: random.Random, places: FaultPlaces, until_ns: int) -> list[SimFault]:
    at_ns = rng.randrange(until_ns // 2)
    lasts_ns = rng.randrange(_SECOND_NS, until_ns // 3)
    return [SimFault(FaultKind.PARTITION, at_ns, lasts_ns, CONTROLLER, each) for each in places.regions]


def _returns_while_only_peers_know(rng: random.Random, places: FaultPlaces, until_ns: int) -> list[SimFault]:
    """Faults by which a gateway returns with an old snapshot after other gateways stood in for it, and the controller
    has just crashed."""
    at_ns = rng.randrange(until_ns // 4)
    gone_ns = rng.randrange(4 * _SECOND_NS, 7 * _SECOND_NS)
    died_ns = at_ns + gone_ns - _SECOND_NS // 2
    lasts_ns = rng.randrange(6 * _SECOND_NS, until_ns - died_ns)
    return [
        SimFault(FaultKind.OLD_SNAPSHOT, at_ns, gone_ns, rng.choice(places.gateways)),
        SimFault(FaultKind.CONTROLLER_CRASH, died_ns, lasts_ns, CONTROLLER),
    ]


def _flapping(rng: random.Random, places: FaultPlaces, until_ns: int) -> SimFault:
    every_ns = rng.randrange(2 * _SECOND_NS, 5 * _SECOND_NS)
    times = until_ns * 3 // 4 // every_ns
    kind = rng.choice((FaultKind.GATEWAY_CRASH, FaultKind.OLD_SNAPSHOT))
    return SimFault(kind, _SECOND_NS, every_ns // 2, rng.choice(places.gateways), times=times, every_ns=every_ns)


_CHAT = {
    "applications": 2,
    "system_prompt_words": 60,
    "profile_words": 10,
    "question_words": {"median": 12, "sigma": 0.6, "minimum": 2, "maximum": 60},
    "output_tokens": {"median": 24, "sigma": 0.7, "minimum": 1, "maximum": 200},
    "think_s": {"median": 0.2, "sigma": 0.8, "minimum": 0.01, "maximum": 1},
}
