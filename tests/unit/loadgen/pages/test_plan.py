from __future__ import annotations

from loadgen.pages.plan import MISSING, facts, in_k, money, plan_page, savings_picture
from loadgen.planner.cited import LLAMA_3_70B_A100, LLAMA_31_8B_L4
from loadgen.planner.lengths import RequestShape, lengths_of
from loadgen.planner.planning import PlanInputs, plan
from loadgen.planner.regions import region_load
from loadgen.planner.sources import Source

SOURCE = Source(
    "a <mix>", lengths_of([(RequestShape(500, 50), 0.9), (RequestShape(9_000, 600), 0.1)]), 100, 5.0, ("made up",)
)
ASK = PlanInputs(100.0, (1_024, 4_096), trial=None, regions=(region_load("us", 60.0), region_load("eu", 40.0)))


def test_the_page_shows_the_plot_the_fleets_and_what_they_rest_on() -> None:
    document = plan(LLAMA_3_70B_A100, SOURCE, ASK)
    page = plan_page(document)
    assert "a &lt;mix&gt;" in page
    assert "Instances saved by a split" in page
    assert "Override: 65,536 KV blocks" in page
    assert " (best)<" in page
    assert "all regions for their common peak" in page
    assert "2.21 $ (token-budget paper" in page
    assert MISSING not in page


def test_a_price_that_nobody_has_said_is_missing_and_never_zero() -> None:
    document = plan(LLAMA_31_8B_L4, SOURCE, ASK)
    assert MISSING in plan_page(document)
    assert any("missing" in fact for fact in facts(document))
    assert money(None) == MISSING
    assert money(2_500_000) == "2.50 M$"
    assert money(900) == "900 $"


def test_the_plot_has_a_curve_for_each_kind_of_slots_over_powers_of_two() -> None:
    document = plan(LLAMA_3_70B_A100, SOURCE, ASK)
    picture = savings_picture(document["fleets"])
    assert picture.about.count("at most") == 2
    assert ">1K<" in picture.marks
    assert ">4K<" in picture.marks
    assert in_k(9) == "512"
