"""The hand-seeded defects fit the core as it is, an obvious one is found, and none can be missed by chance."""

from __future__ import annotations

import json
import sys
from inspect import signature
from types import ModuleType
from typing import Any

import pytest

from loadgen.simulator.chaos import ChaosKind
from tests.mutants.child import found_by_chaos
from tests.mutants.defects import MUTANTS
from tests.mutants.run import Unfit, hunt
from tests.mutants.seams import Mutant, Original, Plant, resolve


class Door:
    @property
    def is_open(self) -> bool:
        return False

    def knock(self, times: str) -> int:
        return int(json.loads(times))


def twice() -> int:
    return 2


def yes(original: Original, door: Door) -> bool:
    return not original(door)


def louder(original: Original, door: Door, times: str) -> int:
    return int(original(door, times)) + 1


def without_its_door(original: Original, times: str) -> int:
    return len(times)


def by_its_bell(original: Original, door: Any, times: str) -> int:
    return int(door.bell)


def thrice(original: Original) -> int:
    return int(original()) + 1


def planted(mutated: Original, path: str) -> Plant:
    return Plant(Mutant("", f"{__name__}:{path}", mutated))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_finds_its_seam_in_the_core(name: str) -> None:
    resolve(MUTANTS[name])


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_takes_what_its_seam_is_given(name: str) -> None:
    _, _, found = resolve(MUTANTS[name])
    asked: Any = found.fget if isinstance(found, property) else found
    given = signature(asked).parameters.values()
    named = {each.name: None for each in given if each.kind is each.KEYWORD_ONLY}
    signature(MUTANTS[name].mutated).bind(None, *(None for each in given if each.name not in named), **named)


@pytest.mark.parametrize("path", ["Door.ring", "Gate.knock", "thrice_over"])
def test_a_seam_that_is_gone_is_told_by_its_name(path: str) -> None:
    with pytest.raises(AttributeError, match=f"the mutant louder wants {__name__}:{path}, which is not there any more"):
        planted(louder, path)


def test_a_mutant_stands_in_for_a_property_and_counts_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Door, "is_open", Door.is_open)  # restored at the end of the test
    plant = planted(yes, "Door.is_open")
    with pytest.raises(AssertionError, match="was never called"):
        plant.check()
    assert Door().is_open
    assert plant.calls == 1
    plant.check()


def test_a_function_is_replaced_for_those_who_imported_it_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    importer = ModuleType("importer")
    importer.borrowed = twice  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "importer", importer)
    monkeypatch.setitem(globals(), "twice", twice)  # restored at the end of the test
    planted(thrice, "twice")
    assert (twice(), importer.borrowed()) == (3, 3)


@pytest.mark.parametrize("mutated", [without_its_door, by_its_bell])
def test_a_mutant_that_does_not_fit_its_seam_has_found_nothing(
    mutated: Original, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Door, "knock", Door.knock)
    plant = planted(mutated, "Door.knock")
    with pytest.raises((AttributeError, TypeError)):
        Door().knock("1")
    with pytest.raises(AssertionError, match="does not fit any more"):
        plant.check()


def test_what_the_core_itself_raises_is_a_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Door, "knock", Door.knock)
    plant = planted(louder, "Door.knock")
    assert Door().knock("1") == 2
    with pytest.raises(ValueError, match="Expecting value"):
        Door().knock("loud")
    plant.check()


@pytest.mark.nightly
def test_a_mutant_is_caught_and_the_core_itself_is_not() -> None:
    assert hunt("one_rule_for_all", seeds=5).caught_by == "nothing leaves the regions its policy allows"
    assert hunt("blames_the_companion").caught_by.startswith("test_whoever_fails_has_the_other_stopped")
    assert not found_by_chaos(5, ChaosKind.MESH).caught_by


@pytest.mark.slow
def test_a_mutant_that_nobody_called_is_no_survivor() -> None:
    with pytest.raises(Unfit, match="was never called"):
        hunt("one_rule_for_all", seeds=0)
