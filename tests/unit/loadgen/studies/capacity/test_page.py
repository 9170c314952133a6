"""The page holds the rule against loads that were measured beside it, and names those that it misses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import pytest

from loadgen.bench.relay import published
from loadgen.bench.relay.figures import RelayFigure
from loadgen.bench.relay.relays import FORWARD, NIGHTSIDE, SIBLINGS
from loadgen.studies.capacity.extrapolation import LargeRun
from loadgen.studies.capacity.measuring import BusyMesh, CapacityMeasured
from loadgen.studies.capacity.page import mixes_of, page_of
from loadgen.studies.capacity.rule import CapacityCosts

MACHINE = dict.fromkeys(("cpu", "cores", "memory_gib", "kernel", "python", "core", "busy"), "some")
RUN = LargeRun(100, 1_000, 0.12, 0.03, 0.17, 3.2, 442.0)
COSTS = replace(
    CapacityCosts(**{each.name: 0.0 for each in fields(CapacityCosts)}),
    request_us=600.0, prompt_kb_us=10.0, chunk_us=60.0, forward_us=2_000.0, forward_kb_us=20.0,
    forwarded_chunk_us=150.0, replica_us=300.0, busy_peer_us=2_000.0, base_us=9_000.0, stream_kib=22.0,
)  # fmt: skip
SLOW = replace(COSTS, busy_peer_us=1_000.0)
MESH = BusyMesh(took_s=5.0, requests_per_s=900.0, cores=0.7, forwarded_share=0.1)
SHORT, LONG = published.JOBS.values()


def measured(figures: Mapping[tuple[str, RelayFigure], float]) -> CapacityMeasured:
    rates = {(each.name, RelayFigure.REQUESTS_PER_S): 2_000.0 for each in (NIGHTSIDE, FORWARD, SIBLINGS)}
    took = {(each.name, figure): 3.0 for each in (NIGHTSIDE, FORWARD) for figure in published.ELAPSED.values()}
    idle_us = {NIGHTSIDE.name: 20_000.0, FORWARD.name: 40_000.0}
    return CapacityMeasured(
        {**rates, **took, **figures}, COSTS, SLOW, idle_us, MESH, {8: 60.0, 1_000: 90.0}, {}
    )  # fmt: skip


def test_mixes_are_the_printed_rule_beside_readings_without_what_is_taken_at_rest() -> None:
    short, long, mesh = mixes_of(measured({(NIGHTSIDE.name, figure): 4.0 for figure in published.JOBS}))
    assert short.by_rule == pytest.approx(500 * (600 + (0.8 - 0.256) * 10 + 100 * 60) / 1e6)
    assert long.by_rule == pytest.approx(98.8 * (600 + (400 - 0.256) * 10 + 1_000 * 60) / 1e6)
    assert short.measured == pytest.approx(4.0 - 0.02 * 3.0 * 500 / SHORT.count)
    assert long.measured == pytest.approx(4.0 - 0.02 * 3.0 * 98.8 / LONG.count)
    assert short.error == short.by_rule / short.measured - 1
    assert mesh.by_rule == pytest.approx((810 * 600 + 90 * 2_000 + 3 * (9_000 + 8 * 300 + 2 * 2_000)) / 1e6)
    assert (mesh.measured, mesh.took_s) == (0.7, 5.0)


def test_errors_of_the_rule_are_judged() -> None:
    at_rest = measured({(NIGHTSIDE.name, figure): 4.0 for figure in published.JOBS})
    found = dict(zip(published.JOBS, mixes_of(at_rest), strict=False))
    for by, words, count in ((0.9, "**met**", 4), (0.7, "**not met**: the rule is at most 25% off: one gateway: ", 2)):
        read = {figure: each.by_rule * by + 4.0 - each.measured for figure, each in found.items()}
        page = page_of(measured({(NIGHTSIDE.name, f): v for f, v in read.items()}), RUN, MACHINE, "a command", 0.1)
        assert page.count(words) == count
    assert "three loads were measured" in page_of(measured({}), RUN, MACHINE, "a command", 0.1)


@pytest.mark.parametrize(("share", "word"), [(0.15, "**met**"), (0.16, "**not met**")])
def test_a_machine_that_is_busy_with_others_is_judged(share: float, word: str) -> None:
    page = page_of(measured({}), RUN, MACHINE, "a command", share)
    assert f"{word}: other processes used at most 15% of the machine's CPU meanwhile ({share:.0%})" in page


def test_what_breaks_first_is_named() -> None:
    page = page_of(measured({}), RUN, MACHINE, "a command", 0.1)
    assert "with heartbeats every 100 ms. Every gateway hears all others." in page
    assert "in a mesh of 296 gateways whose load changes all the time" in page
    assert "with heartbeats every 250 ms as simulated. Every gateway hears all others." in page
    assert "in a mesh of 592 gateways whose load changes all the time" in page
    assert "one gateway carries a region of " in page
    assert "| 100 × 1,000 | " in page
    assert "\n\n\n" not in page


def test_the_printed_rule_has_every_part_of_the_calculated_one() -> None:
    costs = replace(COSTS, idle_stream_us=17.0, peering_us=1_234.0, forward_bytes=1_685.0, forwarded_chunk_bytes=321.0)
    page = page_of(replace(measured({}), costs=costs), RUN, MACHINE, "a command", 0.1)
    assert "streams × 17 µs" in page
    assert "peers × 2000 µs + 1234 µs where there are peers" in page
    assert "forwards/s × (1,685 + 1,000 × KB) + forwarded chunks/s × 321" in page
