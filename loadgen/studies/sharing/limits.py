"""Tests one limit over four gateways of three regions, in the simulator: how much of it was used, and any excess."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway.core.vocabulary import TenantName
from loadgen.figures import Figures
from loadgen.simulator.scenario import load_scenario
from loadgen.simulator.tenant_watch import TenantFigures, bound_of
from loadgen.simulator.world import World
from loadgen.studies.rendering import render
from loadgen.studies.sharing.worlds import StudySize

SCENARIO: Final = Path(__file__).parents[2] / "scenarios/tenant_limits.yaml"
_ACME: Final = TenantName("acme")
_GATEWAYS: Final = 4
_LIMIT: Final = 24
_PER_MINUTE: Final = 120
_SECOND_NS: Final = 1_000_000_000
_EVERYWHERE: Final = ("us-east-1", "us-east-1", "eu-west-1", "ap-northeast-1")


def _users(regions: tuple[str, ...], clients: int) -> list[dict[str, object]]:
    """Clients that ask again as soon as they were answered, or refused."""
    return [{"region": region, "workload": "flood", "clients": clients, "tenant": _ACME} for region in regions]


def _cut(seconds: int) -> list[dict[str, object]]:
    """Partition of Europe from the other regions for half of the time, from a third of it on."""
    at, lasts = f"{seconds // 3}s", f"{seconds // 2}s"
    return [
        {"kind": "partition", "target": "eu-west-1", "other": other, "at": at, "lasts": lasts}
        for other in ("us-east-1", "ap-northeast-1")
    ]


def _deaf(kind: str, amount: float, seconds: int) -> list[dict[str, object]]:
    gateways = ("us-east-1/gw0", "us-east-1/gw1", "eu-west-1/gw", "ap-northeast-1/gw")
    return [{"kind": kind, "target": each, "amount": amount, "at": "0s", "lasts": f"{seconds}s"} for each in gateways]


def measure(size: StudySize) -> Figures:
    seconds = size.seconds // 2
    places: list[dict[str, object]] = []
    rates: list[dict[str, object]] = []
    for seed in size.seeds:
        places += [_places(case, seed, seconds) for case in _cases(seconds)]
        rates += [_rates(scope, seed, seconds) for scope in ("mesh", "gateway")]
    return {"seconds": seconds, "limit": _LIMIT, "per_minute": _PER_MINUTE, "places": places, "rates": rates}


class _Case(NamedTuple):
    name: str
    asks: list[dict[str, object]]
    faults: Sequence[dict[str, object]] = ()
    scope: str = "mesh"
    sides: int = 1
    """Number of parts into which the mesh is partitioned."""


def _cases(seconds: int) -> list[_Case]:
    flood = _users(_EVERYWHERE, 3)
    return [
        _Case("all ask", flood),
        _Case("Europe alone asks", _users(("eu-west-1",), 8)),
        _Case("half of the heartbeats are lost", flood, _deaf("heartbeat_loss", 0.5, seconds)),
        _Case("heartbeats come half a second late", flood, _deaf("heartbeat_delay", 0.5, seconds)),
        _Case("Europe is cut off", flood, _cut(seconds), sides=2),
        _Case("each gateway for itself", flood, scope="gateway"),
    ]


def _places(case: _Case, seed: int, seconds: int) -> dict[str, object]:
    limits = {"concurrency_max": _LIMIT, "limit_scope": case.scope}
    figures = _play(case.asks, case.faults, limits, seed, seconds)
    late = seconds // 6
    return {
        "case": case.name,
        "seed": seed,
        "sides": case.sides,
        "holds": case.scope == "mesh",
        "peak": figures.peak(),
        "usual": _median([peak for second, peak in figures.peaks.items() if late <= second < seconds]),
        "full_after_s": None if figures.full_ns is None else (figures.full_ns - figures.let_in[0]) / _SECOND_NS,
        "let_in": len(figures.let_in),
        "refused": figures.refused.total(),
    }


def _rates(scope: str, seed: int, seconds: int) -> dict[str, object]:
    """Largest number of requests admitted in any minute, and the rate over the whole run."""
    limits = {"requests_per_minute": _PER_MINUTE, "limit_scope": scope}
    let_in = _play(_users(_EVERYWHERE, 3), [], limits, seed, seconds).let_in
    most, first = 0, 0
    for last, now_ns in enumerate(let_in):
        while let_in[first] <= now_ns - 60 * _SECOND_NS:
            first += 1
        most = max(most, last - first + 1)
    span_s = (let_in[-1] - let_in[0]) / _SECOND_NS if let_in else 0.0
    return {"scope": scope, "seed": seed, "most_in_a_minute": most, "let_in": len(let_in), "span_s": span_s}


def _play(
    asks: list[dict[str, object]], faults: Sequence[dict[str, object]], limits: dict[str, Any], seed: int, seconds: int
) -> TenantFigures:
    """Figures of one run. Raises Broken where more requests are in flight than the stated bound."""
    changes: dict[str, Any] = {
        "seed": seed,
        "duration": f"{seconds}s",
        "warm_up": "2s",
        "clients": asks,
        "faults": list(faults),
        "runs": [{"system": "nightside", "tenants": {_ACME: limits}}],
    }
    scenario = load_scenario(SCENARIO, changes)
    world = World(scenario, scenario.runs[0])
    world.play()
    return world.tenants.tenants[_ACME]


def _median(numbers: list[int]) -> int:
    return sorted(numbers)[len(numbers) // 2] if numbers else 0


def section(measured: Figures) -> str:
    heard = [row for row in measured["places"] if row["holds"] and row["sides"] == 1]
    return render(
        "sharing/limits.j2", measured=measured, gateways=_GATEWAYS, limit=_LIMIT, per_minute=_PER_MINUTE,
        bound=bound_of(_LIMIT, _GATEWAYS, 0.2), over=max(0.0, max(row["peak"] for row in heard) / _LIMIT - 1),
    )  # fmt: skip
