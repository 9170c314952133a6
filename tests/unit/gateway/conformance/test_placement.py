"""A conformance test that never fails is none: here each of its rules meets a policy that breaks it."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.conformance import placement
from gateway.conformance.placement import REQUESTS, conformance_faults, main
from gateway.core.features.prices.policy import Price
from gateway.core.kernel.effects import RecordShadow, StartLeg
from gateway.core.placement.catalogue import BUILT_IN
from gateway.core.placement.cost import CostPolicy
from gateway.core.placement.policy import Policy
from gateway.core.placement.power_of_two import PowerOfTwo
from gateway.core.vocabulary import PlacementReason
from tests.support.nightly import first_of
from tests.support.plug_ins import SOURCE, put

FEW = 240
"""Requests that show every fault but that of books without a bound. Three runs, one in a process of its own, are what a
check takes."""


OTHERS = [each for each in (*BUILT_IN.values(), Price) if each not in (CostPolicy, PowerOfTwo)]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def policy_in(site: Path, package: str, source: str = SOURCE) -> type[Policy]:
    put(site, package, name=package, source=source)
    policy: type[Policy] = import_module(package).First
    return policy


@pytest.mark.parametrize("ours", first_of([CostPolicy, PowerOfTwo, *OTHERS], kept=2))
def test_ours_may_decide(ours: type[Policy]) -> None:
    assert conformance_faults(ours, requests=FEW) == []


@pytest.mark.nightly
@pytest.mark.parametrize("ours", [*BUILT_IN.values(), Price])
def test_ours_may_decide_for_long(ours: type[Policy]) -> None:
    assert conformance_faults(ours) == []


def test_the_smallest_may_decide(site: Path) -> None:
    assert conformance_faults(policy_in(site, "smallest"), requests=FEW) == []


KEEPS_BOOKS = (
    SOURCE
    + """
    told = 0

    def sent(self, profile, target, slot, matched_blocks, /):
        self.told |= 1 << int(profile.request_id.rpartition("-")[2])

    def refused(self, profile, target, slot, /):
        assert self.told >> int(profile.request_id.rpartition("-")[2]) & 1, "refused without being sent"
"""
)


def test_whoever_counts_what_is_sent_and_refused_may_decide(site: Path) -> None:
    """The policy is told of a request that follows a stored response like of any other, though it did not place it."""
    assert conformance_faults(policy_in(site, "keeps_books", KEEPS_BOOKS), requests=FEW) == []


UNASKED = {
    PlacementReason.LOCAL_POLICY,
    PlacementReason.REMOTE_POLICY,
    PlacementReason.DECODE_POLICY,
    PlacementReason.LOCAL_PRICE,
    PlacementReason.SIBLING_PRICE,
    PlacementReason.REMOTE_PRICE,
}
REPLICA = "        return Choice(lowest_slot(mask))\n\n    def choose_peer"


def choosing(how: str, before: str = "") -> str:
    return before + SOURCE.replace(REPLICA, f"        {how}\n\n    def choose_peer")


@pytest.mark.parametrize(
    ("package", "source", "said"),
    [
        ("outside", choosing("return Choice(mask.bit_length())"), "AssertionError: under test chose a replica that"),
        ("knows_all", choosing("return Choice(lowest_slot(mask), 9999)"), "knows 9999 of a prompt's"),
        ("fails", choosing("return Choice(lowest_slot(mask), 0 // profile.prefix_blocks)"), "ZeroDivisionError"),
        (
            "stale",
            choosing(
                "self.last = getattr(self, 'last', lowest_slot(mask)); self.fleet.replica_id(self.last)\n"
                "        return Choice(lowest_slot(mask))"
            ),
            "Error",
        ),
        (
            "by_hash",
            choosing(
                "slots = sorted(slots_of(mask), key=lambda slot: self.fleet.replica_load(slot) * 0 + KEYS[slot])\n"
                "        return Choice(slots[0])",
                "from gateway.core.kernel.bits import slots_of\n"
                "KEYS = {slot: at for at, slot in enumerate(int(each) for each in {str(i) for i in range(99)})}\n",
            ),
            "in another process",
        ),
        (
            "outlives",
            choosing(
                "SEEN.append(mask); return Choice(mask.bit_length() - 1 if len(SEEN) > 150 else lowest_slot(mask))",
                "SEEN = []",
            ),
            "the second time",
        ),
        pytest.param(
            "hoards",
            choosing(
                "self.books = getattr(self, 'books', {}); self.books[profile.request_id] = mask\n"
                "        return Choice(lowest_slot(mask))"
            ),
            "its books have no bound",
            marks=pytest.mark.nightly,
        ),
        ("mute", SOURCE.replace("def choose_peer", "def choose_nobody"), "does not say how to choose_peer"),
    ],
)
def test_what_breaks_a_rule_may_not(site: Path, package: str, source: str, said: str) -> None:
    requests = REQUESTS if package == "hoards" else FEW
    faults = conformance_faults(policy_in(site, f"it_{package}", source), requests=requests)
    assert [fault for fault in faults if said in fault], faults


def test_each_use_of_a_clock_of_output_and_of_other_chance_is_found_in_the_source(site: Path) -> None:
    chosen = "print(mask); return Choice(random.choice([lowest_slot(mask)]))"
    source = choosing(chosen, "import time\nimport random\nr = random.Random(1)")
    faults = conformance_faults(policy_in(site, "it_is_impure", source), requests=FEW)
    for said in ("1: imports time", "calls print()", "uses random.choice", "draws chance of its own"):
        assert [fault for fault in faults if said in fault], said


def test_what_it_imports_of_its_own_is_read_as_well(site: Path) -> None:
    (site / "it_leans").mkdir()
    (site / "it_leans/__init__.py").write_text("from it_leans.on import First")
    (site / "it_leans/on.py").write_text("from it_leans import clock" + SOURCE)
    (site / "it_leans/clock.py").write_text("from datetime import datetime")
    policy = import_module("it_leans").First
    assert conformance_faults(policy, requests=FEW)[0] == "it_leans.clock:1: imports datetime"


def test_options_that_it_refuses_cannot_be_tested(site: Path) -> None:
    (fault,) = conformance_faults(policy_in(site, "it_refuses"), {"limit": 3})
    assert "limit: this policy has no options" in fault


def test_the_mesh_it_plays_in_asks_every_question() -> None:
    reasons: Counter[str] = Counter()

    class Counted(placement._Walk):
        def note(self, effect: RecordShadow | StartLeg) -> None:
            reasons[f"{type(effect).__name__} {effect.decision.reason}"] += 1

    Counted(BUILT_IN["prefix"], {}).run()
    wanted = [*(f"StartLeg {each}" for each in PlacementReason if each not in UNASKED), "RecordShadow remote_nearest"]
    assert [each for each in wanted if reasons[each] < 10] == []


def test_from_the_command_line(site: Path) -> None:
    put(site, "asked_for", name="asked_for")
    done = CliRunner().invoke(main, ["asked_for", "--requests", str(FEW)])
    assert (done.exit_code, done.output) == (0, "asked_for may decide\n")
    put(site, "asked_badly", name="asked_badly", source="import time" + SOURCE)
    done = CliRunner().invoke(main, ["asked_badly:First", "--requests", str(FEW)])
    assert (done.exit_code, done.output) == (1, "asked_badly:1: imports time\nasked_badly:First: 1 faults\n")
    assert CliRunner().invoke(main, ["nobody"]).exit_code == 2
    assert CliRunner().invoke(main, ["nobody:Nothing"]).exit_code == 2
