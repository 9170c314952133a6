"""The page holds the rule against loads that were measured beside it, and names those that it misses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from loadgen.bench.relay import published
from loadgen.bench.relay.figures import RelayFigure
from loadgen.bench.relay.relays import FORWARD, NIGHTSIDE, SIBLINGS
from loadgen.studies.capacity.extrapolation import LargeRun
from loadgen.studies.capacity.measuring import CapacityMeasured
from loadgen.studies.capacity.page import mixes_of, page_of
from loadgen.studies.capacity.rule import CapacityCosts

MACHINE = dict.fromkeys(("cpu", "cores", "memory_gib", "kernel", "python", "core", "busy"), "some")
RUN = LargeRun(100, 1_000, 0.12, 0.03, 0.17, 3.2, 442.0)
COSTS = replace(
    CapacityCosts(**{each.name: 0.0 for each in fields(CapacityCosts)}),
    request_us=600.0, prompt_kb_us=10.0, chunk_us=60.0, forward_us=2_000.0, forward_kb_us=20.0,
    forwarded_chunk_us=150.0, replica_us=300.0, busy_peer_us=2_000.0, base_us=9_000.0, stream_kib=22.0,
)  # fmt: skip
SHORT, LONG = published.JOBS.values()


def measured(figures: Mapping[tuple[str, RelayFigure], float]) -> CapacityMeasured:
    rates = {(each.name, RelayFigure.REQUESTS_PER_S): 2_000.0 for each in (NIGHTSIDE, FORWARD, SIBLINGS)}
    return CapacityMeasured({**rates, **figures}, COSTS, 1_900.0, 0.1, {8: 60.0, 1_000: 90.0}, {})


def test_mixes_are_sums_of_requests_prompts_chunks_and_the_idle_share() -> None:
    found = measured({(NIGHTSIDE.name, figure): 4.0 for figure in published.JOBS})
    short, long = mixes_of(found)
    asked_us = 500 * (600 + (0.8 - 0.256) * 10 + 100 * 60)
    idle_us = (9_000 + 8 * 300) * (SHORT.count / SHORT.arrivals_per_s + 1.0) * 500 / SHORT.count
    assert abs(short.by_rule - (asked_us + idle_us) / 1e6) < 1e-9
    assert abs(long.by_rule - 98.8 * (600 + (400 - 0.256) * 10 + 1_000 * 60) / 1e6) < 0.6
    assert short.error == short.by_rule / 4.0 - 1


def test_errors_of_the_rule_are_judged() -> None:
    exact = {each.what: each.by_rule for each in mixes_of(measured({(NIGHTSIDE.name, f): 1.0 for f in published.JOBS}))}
    near, far = (dict(zip(published.JOBS, (value * by for value in exact.values()), strict=True)) for by in (0.9, 0.7))
    page = page_of(measured({(NIGHTSIDE.name, f): v for f, v in near.items()}), RUN, MACHINE, "a command")
    assert page.count("**met**") == 2
    assert "**not met**" not in page
    page = page_of(measured({(NIGHTSIDE.name, f): v for f, v in far.items()}), RUN, MACHINE, "a command")
    assert page.count("**not met**: the rule is at most 25% off: one gateway: ") == 2
    assert "two loads were measured" in page_of(measured({}), RUN, MACHINE, "a command")


def test_what_breaks_first_is_named() -> None:
    page = page_of(measured({}), RUN, MACHINE, "a command")
    assert "in a mesh of 296 gateways whose load changes all the time" in page
    assert "one gateway carries a region of " in page
    assert "| 100 × 1,000 | " in page
    assert "\n\n\n" not in page
