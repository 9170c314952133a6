from __future__ import annotations

from pathlib import Path

from loadgen.fit.sources import Request, history_of
from loadgen.studies.predictors.table import PAPER, as_markdown, table_3
from loadgen.studies.predictors.workloads import PredictorWorkload, kept_aside


def test_each_kind_has_a_row_on_each_load_and_the_paper_stands_below() -> None:
    told: list[str] = []
    rows = table_3(kept_aside(400), on_progress=told.append)
    by_load: dict[str, list[str]] = {}
    for row in rows:
        by_load.setdefault(row["workload"], []).append(row["realization"])
    by_length = ["Survival", "ExactMatch, by length", "Learned"]
    by_prompt = ["Survival", "ExactMatch, by prompt", "ExactMatch, by length", "ExactMatch, by prompt or length"]
    assert list(by_load.values()) == [[*by_prompt, "Learned"], by_length]
    assert len(told) == len(rows) + len(by_load)
    assert all(row["scores"]["questions"] > 100 for row in rows)
    lines = as_markdown(rows).splitlines()
    assert len(lines) == 2 + len(rows) + len(PAPER)
    assert len({line.count("|") for line in lines}) == 1


def test_what_cannot_be_scored_says_why() -> None:
    equal = PredictorWorkload("equal", lambda: history_of([Request(float(n), 0, 10, 5) for n in range(40)]))
    rows = table_3([equal])
    assert [bool(row["scores"]) for row in rows] == [True, True, False]
    assert "nothing to tell apart" in rows[2]["unscored"]
    assert as_markdown(rows).splitlines()[4].count("–") == 8


def test_the_page_names_every_load_on_which_next_to_nothing_is_foreseen() -> None:
    page = (Path(__file__).parents[5] / "docs/results/predictors.md").read_text()
    table, text = page.split("\n\n*leave*", 1)
    believed: dict[str, list[float]] = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 10 and cells[8].endswith("%"):
            believed.setdefault(cells[0].split(",")[0], []).append(float(cells[8].rstrip("%")))
    assert len(believed) == 3
    unforeseen = {load.split()[0] for load, shares in believed.items() if max(shares) <= 0.2}
    named = text.split("foresee next to nothing**", 1)[1].split(":", 1)[0]
    assert {load for load in ("ServeGen", "Azure", "Mooncake") if load in named} == unforeseen
