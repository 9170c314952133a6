from __future__ import annotations

from typing import Any

from loadgen.studies.sharing import fairness
from loadgen.studies.sharing.command import PARTS


def test_two_who_want_too_much_get_what_their_weights_say_and_stay_within_the_bound() -> None:
    row: dict[str, Any] = fairness._row(1, 30, (1.0, 3.0), is_fair=True)
    one, other = row["served"]
    assert 2.5 < other / one < 3.6
    assert row["apart"] < row["bound"]


def test_each_part_is_called_by_its_module() -> None:
    assert {name: part.measure.__module__.rpartition(".")[2] for name, part in PARTS.items()} == {
        name: name for name in PARTS
    }
