"""Compares the service of two tenants that always have requests waiting: its largest divergence, and the bound on
it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gateway.core.features.sharing.config import SharingConfig
from loadgen.figures import Figures
from loadgen.report import RequestReport
from loadgen.studies.rendering import render
from loadgen.studies.sharing.worlds import REPLICAS, SLOTS, StudySize, client, play, world
from loadgen.vocabulary import RequestEnd

_NAMES: Final = ("one", "other")
_WEIGHTS: Final = ((1.0, 1.0), (1.0, 3.0))
_RATES: Final = (8.0, 16.0)
"""Conversations per second; each tenant's rate is more than its share of the engines."""
_SECOND_NS: Final = 1_000_000_000
_CREDIT: Final = 5
"""Requests that an engine is sent before it has reported them: they stand in its own queue."""


def measure(size: StudySize) -> Figures:
    seconds = size.seconds
    rows = [
        _row(seed, seconds, weights, is_fair=is_fair)
        for weights in _WEIGHTS
        for is_fair in (True, False)
        for seed in size.seeds
    ]
    return {"seconds": seconds, "rows": rows}


def _row(seed: int, seconds: int, weights: tuple[float, float], *, is_fair: bool) -> dict[str, object]:
    """Figures of one run; the second tenant asks for twice as much."""
    run: dict[str, Any] = {
        "tenants": {name: {"weight": weight} for name, weight in zip(_NAMES, weights, strict=True)},
        "sharing": {"fair": is_fair},
    }
    clients = [client(name, rate=rate) for name, rate in zip(_NAMES, _RATES, strict=True)]
    records = play(world(clients, run, seconds=seconds, seed=seed)).records
    spread, served = apart(records, weights, (seconds // 6 * _SECOND_NS, seconds * _SECOND_NS))
    return {
        "seed": seed,
        "weights": list(weights),
        "fair": is_fair,
        "apart": spread,
        "served": served,
        "bound": bound(records, weights),
    }


def apart(
    records: Sequence[RequestReport], weights: tuple[float, float], window: tuple[int, int]
) -> tuple[float, list[float]]:
    """Range of the difference between both tenants' weighted service, sampled at the end of each answer, and the total
    service of each."""
    config = SharingConfig()
    totals = dict.fromkeys(_NAMES, 0.0)
    served = dict.fromkeys(_NAMES, 0.0)
    least = most = 0.0
    ended = (each for each in records if each.end is RequestEnd.COMPLETED and window[0] <= each.ended_ns <= window[1])
    for each in sorted(ended, key=lambda record: record.ended_ns):
        tokens = config.input_weight * (each.prompt_tokens or 0) + config.output_weight * each.output_tokens
        served[each.tenant] += tokens
        totals[each.tenant] += tokens / weights[_NAMES.index(each.tenant)]
        difference = totals[_NAMES[0]] - totals[_NAMES[1]]
        least, most = min(least, difference), max(most, difference)
    return most - least, list(served.values())


def bound(records: Sequence[RequestReport], weights: tuple[float, float]) -> float:
    """Bound on the range: twice the slack, plus one request, plus the requests of a tenant that may run at once, which
    are counted here only at their end."""
    config = SharingConfig()
    whole = [each for each in records if each.end is RequestEnd.COMPLETED]
    one = max(
        config.input_weight * (each.prompt_tokens or 0) + config.output_weight * each.output_tokens for each in whole
    )
    at_once = REPLICAS * (SLOTS + _CREDIT)
    return 2 * (config.prefix_slack_tokens + (1 + at_once) * one / min(weights))


def section(measured: Figures) -> str:
    fair = [row for row in measured["rows"] if row["fair"]]
    broken = sum(row["apart"] > row["bound"] for row in fair)
    return render(
        "sharing/fairness.j2", measured=measured, worst=max(row["apart"] / row["bound"] for row in fair),
        verdict=f"{broken} of {len(fair)} runs broke it" if broken else "No run broke it",
    )  # fmt: skip
