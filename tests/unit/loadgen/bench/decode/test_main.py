from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import loadgen.bench.decode.main as main_module
from loadgen.bench.decode.main import DecodeCell, cells, exponent, figures_of, growth_of, percentile
from loadgen.bench.main import bench


def test_every_number_of_workers_and_of_those_who_wait_is_measured() -> None:
    usual = {(cell.workers, cell.waiting) for cell in cells(10) if cell.policy == "br_h" and not cell.free_slots}
    assert {workers for workers, _ in usual} == {8, 16, 32, 64, 144}
    assert {waiting for workers, waiting in usual if workers == 144} == {10, 100, 500, 1_000}


def test_a_power_is_found_by_its_exponent() -> None:
    assert exponent({x: 3.0 * x**1.5 for x in (8, 16, 32, 144)}) == pytest.approx(1.5)


def test_percentiles_are_of_what_was_measured() -> None:
    assert percentile(range(100), 0.5) == 50
    assert percentile(range(100), 0.99) == 99
    assert percentile([7.0], 0.99) == 7.0


def test_figures_name_the_cell_and_its_stages() -> None:
    taken = {
        DecodeCell("br_0", workers, 500): [{"prepare": 1.0, "tick": float(workers), "admitted": 4.0}] * 3
        for workers in (8, 16)
    }
    assert figures_of(taken)["br_0, 8 workers, 500 wait"] == {
        "p50_ms": 8.0, "p99_ms": 8.0, "admitted": 4.0, "prepare_p50_ms": 1.0,
    }  # fmt: skip
    assert growth_of(taken) == {"br_0_exponent_workers": pytest.approx(1.0)}


def test_it_runs_in_a_process_a_core_and_tells_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_module, "cells", lambda ticks: [DecodeCell("br_h", 2, 5, ticks=ticks)])
    monkeypatch.setattr(main_module, "is_core_compiled", lambda: False)
    result = CliRunner().invoke(bench, ["decode", "--ticks", "4", "--rounds", "2", "--json"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.output)["plain"]["br_h, 2 workers, 5 wait"]
    assert figures["p99_ms"] >= figures["p50_ms"] > 0
    assert set(figures) >= {"prepare_p50_ms", "aged_p50_ms", "greedy_p50_ms", "refined_p50_ms"}
