"""A day by price can be played, and its section reports the result."""

from __future__ import annotations

from typing import Any

from gateway.features.prices.file import parse_prices
from loadgen.simulator.world import World
from loadgen.studies.sharing.day_price import EXPECTED, PRICES, WORKLOADS, scenario, section

SHORT_NS = 4 * 10**9


def test_without_prices_the_policy_tells_the_same_story_as_cost() -> None:
    """Equal down to the digest: without prices, cost in money has no weight."""
    digests = []
    for policy in ("cost", "price"):
        day = scenario("chat", policy, 1, is_quick=True).model_copy(update={"prices": None, "duration": SHORT_NS})
        digests.append(World(day, day.runs[0], every_invariant=True).play().digest)
    assert digests[0] == digests[1]


def test_with_prices_what_is_paid_by_use_is_used_less() -> None:
    hours = {}
    for policy in ("cost", "price"):
        day = scenario("chat", policy, 1, is_quick=True).model_copy(update={"duration": SHORT_NS})
        story = World(day, day.runs[0], every_invariant=True).play()
        assert story.money is not None
        hours[policy] = story.money["regions"]["ap-northeast-1"]["replica_hours"]
    assert hours["price"] < hours["cost"]


def test_the_section_names_what_was_kept_aside_and_by_how_much_each_figure_moved() -> None:
    def run(by_use: float, in_time: float) -> dict[str, Any]:
        money = {"total": 10 + by_use, "replicas": 9 + by_use, "egress": 1.0, "carbon_kg": 2.0}
        regions = {"ap-northeast-1": {"replicas": by_use}}
        return {
            "money": money | {"regions": regions},
            "in_time": {"interactive": in_time, "batch": 1.0},
            "ttft_ms": {"p50": 400, "p90": 900},
            "forwarded_share": 0.2,
            "prefix_hit_rate": 0.8,
            "failed": 0,
        }

    days = {name: {"cost": [run(10.0, 0.99)], "price": [run(5.0, 0.97)]} for name in WORKLOADS}
    told = section({"expected": EXPECTED, "is_quick": False, "day_s": 240, "workloads": days})
    assert told.startswith("## A day by price\n")
    assert "| trees (kept aside) | `price` | 15.00 | 9.00 | 5.00 | 1.00 | 2.0 | 97.0% |" in told
    assert "a day costs -25.0%, of it what is paid by use -50.0%, and emits +0.0%" in told
    assert "+2.0 more are late" in told
    assert "invented" in told


def test_its_prices_are_a_price_list() -> None:
    assert len(parse_prices(PRICES).tariffs) == 3
