"""Tables show measurements beside their reference values, and never a zero for a missing one."""

from __future__ import annotations

from loadgen.figures import Figures
from loadgen.pages.tables import Table, TableCell, failures, flow, overview, sweep

UNSEEN = TableCell("not measured", is_unseen=True)
NONE = TableCell("–", is_unseen=True)


def run(name: str, tokens_per_s: float, **total: object) -> Figures:
    known: Figures = {
        "tokens_per_s": tokens_per_s,
        "ttft_ms": None,
        "duration_ms": None,
        "tpot_ms": None,
        "failures": {},
    }
    return {"name": name, "total": known | total, "flows": []}


def cells_of(table: Table) -> dict[str, list[TableCell]]:
    return {row.name: list(row.cells) for part in table.parts for row in part.rows}


def test_what_makes_a_ratio_is_held_against_the_first_run() -> None:
    table = overview([run("a", 1000.0, requests=10), run("b", 1500.0, requests=20)])
    assert cells_of(table)["output tokens/s"] == [TableCell("1,000"), TableCell("1,500", "× 1.50")]
    assert cells_of(table)["requests asked"] == [TableCell("10"), TableCell("20")]
    assert table.caption == "All regions together; × is beside a"


def test_what_was_not_measured_is_said_and_what_had_nothing_to_measure_is_a_dash() -> None:
    cells = cells_of(overview([run("a", 0.0)]))
    assert cells["prefix hits, in engines"] == cells["waiting at gateways, most"] == [UNSEEN]
    assert cells["TTFT p90, s"] == [NONE]
    assert cells["output tokens/s"] == [TableCell("0")]
    (row,) = cells_of(sweep([("000", {"runs": [run("a", 0.0)]})])).values()
    assert {UNSEEN, NONE} < set(row)


def test_a_region_s_flows_are_shares_of_what_its_clients_asked() -> None:
    flows = [{"client_region": "us", "engine_region": engine, "requests": 1000} for engine in ("us", "eu")]
    cells = cells_of(flow(run("a", 1.0) | {"flows": flows}, ["us", "eu"]))
    assert cells["us"] == [TableCell("50.0%", "1,000", heat=0.33)] * 2
    assert cells["eu"] == [TableCell("·"), TableCell("·")]


def test_there_is_no_table_of_failures_where_there_were_none() -> None:
    assert failures([run("a", 1.0)]) is None
    table = failures([run("a", 1.0, failures={"HTTP 503": 1200}), run("b", 1.0)])
    assert table is not None
    assert cells_of(table) == {"HTTP 503": [TableCell("1,200"), TableCell("0")]}
