"""`nightside bench`: the list of benches, and how their figures are shown."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from click.testing import CliRunner

from loadgen.bench.main import Figures, as_text, bench, bench_names, load_bench, print_json, print_tables


@dataclass(frozen=True)
class StillBench:
    figures: Figures

    def run(self) -> Figures:
        return self.figures


BENCHES = {"one": StillBench({"lookup_us": 1.25, "blocks": 20000}), "two": StillBench({"policy": "prefix"})}


def test_every_bench_can_be_run() -> None:
    assert bench_names()
    assert "main" not in bench_names()
    for name in bench_names():
        assert callable(load_bench(name).run)


def test_a_whole_gateway_is_measured_by_a_command_of_its_own() -> None:
    assert "relay" not in bench_names()
    result = CliRunner().invoke(bench, ["relay", "--help"])
    assert result.exit_code == 0
    assert "--rivals" in result.output


@pytest.mark.parametrize("wrong", [["relay", "--only", "nosuch"], ["relay", "--rounds", "0"]])
def test_a_relay_that_is_not_known_is_a_wrong_use(wrong: list[str]) -> None:
    assert CliRunner().invoke(bench, wrong).exit_code == 2


def test_tables_name_each_bench_and_figure(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(BENCHES)
    assert capsys.readouterr().out.splitlines() == [
        "one",
        "  lookup_us  1.25",
        "  blocks     20,000",
        "two",
        "  policy  prefix",
    ]


def test_json_keeps_the_figures_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(BENCHES)
    assert json.loads(capsys.readouterr().out) == {name: bench.figures for name, bench in BENCHES.items()}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123449, "0.01234"), (12345.6, "12,346"), (-12345.6, "-12,346"), (1234567, "1,234,567"), ("prefix", "prefix")],
)
def test_figures_read_well(value: object, text: str) -> None:
    assert as_text(value) == text


def test_an_unknown_bench_is_a_wrong_use_and_the_known_ones_are_named() -> None:
    result = CliRunner().invoke(bench, ["nosuch"])
    assert result.exit_code == 2
    assert "no bench named nosuch" in result.output
    assert all(name in result.output for name in bench_names())
