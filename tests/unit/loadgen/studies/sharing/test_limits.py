from __future__ import annotations

from typing import Any

from loadgen.studies.sharing import limits
from loadgen.studies.sharing.limits import section

PLACES: dict[str, Any] = {
    "case": "all ask",
    "seed": 1,
    "sides": 1,
    "holds": True,
    "peak": 27,
    "usual": 20,
    "full_after_s": 1.25,
    "let_in": 1200,
    "refused": 5800,
}
RATES = {"scope": "mesh", "seed": 1, "most_in_a_minute": 230, "let_in": 300, "span_s": 118.0}


def test_a_small_case_is_played_and_counted() -> None:
    row = limits._places(limits._Case("one", limits._users(("eu-west-1",), 4)), seed=1, seconds=8)
    assert row["peak"] == 24
    assert row["refused"]
    assert isinstance(row["full_after_s"], float)
    rates = limits._rates("mesh", 1, 8)
    assert 0 < rates["most_in_a_minute"] == rates["let_in"] <= limits._PER_MINUTE + 20  # type: ignore[operator]


def test_the_section_says_what_was_stated_and_by_how_much_the_limit_was_exceeded() -> None:
    cut = PLACES | {"case": "Europe is cut off", "sides": 2, "peak": 50, "full_after_s": None}
    alone = PLACES | {"case": "each gateway for itself", "holds": False, "peak": 96}
    told = section({"seconds": 120, "places": [PLACES, cut, alone], "rates": [RATES]})
    assert told.startswith("## ")
    assert "exceeded by\n12% at most" in told
    assert "| all ask | 1 | 27 | 27 | 20 | 1.2 s | 1,200 | 5,800 |" in told
    assert "| Europe is cut off | 1 | 50 | 54 |" in told
    assert "| each gateway for itself | 1 | 96 | none |" in told
    assert "| all together | 1 | 230 | 300 | 118 s | 356 |" in told
