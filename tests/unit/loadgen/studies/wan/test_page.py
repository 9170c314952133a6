"""The page judges what each fault expects, and names the faults that could not be played."""

from __future__ import annotations

from msgspec.structs import replace

from loadgen.studies.wan.excuses import UNDER_WAY
from loadgen.studies.wan.faults import FAULTS
from loadgen.studies.wan.outcomes import FaultOutcome, PhaseSeen, PlayedFaults
from loadgen.studies.wan.page import page_of

BY_NAME = {each.name: each for each in FAULTS}
FROZEN, CONTROLLER = BY_NAME["frozen host"], BY_NAME["frozen host of the controller"]
ALL, STRUCK = PhaseSeen(4, (), 0, (0.1, 0.2, 0.3)), PhaseSeen(1, (), 0, (0.1,))
MACHINE = dict.fromkeys(("cpu", "cores", "memory_gib", "kernel", "python", "core", "busy"), "some")
OUTCOME = FaultOutcome(
    "",
    dict.fromkeys(("before", "during", "after"), ALL),
    STRUCK,
    5,
    3.0,
    1.0,
    {},
    {},
    7.0,
    0.0,
    0,
    2,
    0,
    0,
    1.0,
    0.0,
    0,
    (),
    9,
    3,
    100,
    1,
    0,
    0.0,
)


def judged(*outcomes: FaultOutcome, unplayed: tuple[str, ...] = ()) -> list[str]:
    faults = [BY_NAME[each.fault] for each in outcomes]
    page = page_of(faults, PlayedFaults([*outcomes], [*unplayed]), MACHINE)
    return [line.removeprefix("- ") for line in page.splitlines() if "met**" in line]


def test_clients_of_a_frozen_host_are_to_be_answered_by_other_regions() -> None:
    text = f"{FROZEN.name}: other regions answer clients of {FROZEN.frozen}"
    assert f"**met**: {text} (5 calls)" in judged(replace(OUTCOME, fault=FROZEN.name))
    assert f"**not met**: {text} (0 calls)" in judged(replace(OUTCOME, fault=FROZEN.name, led_away=0))


def test_other_regions_are_to_answer_their_own_clients_and_another_controller_is_to_lead() -> None:
    text = f"{CONTROLLER.name}: other regions answer their own clients"
    outcome = replace(OUTCOME, fault=CONTROLLER.name)
    assert f"**met**: {text} (2 calls)" in judged(outcome)
    assert f"**not met**: {text} (0 calls)" in judged(replace(outcome, cut_off=ALL))
    leads = f"{CONTROLLER.name}: another controller leads while it lasts"
    assert f"**met**: {leads}" in judged(outcome)
    for led_s in (None, CONTROLLER.seconds + 1):
        assert f"**not met**: {leads}" in judged(replace(outcome, led_s=led_s))


def test_excused_failures_are_told_and_every_other_one_counts() -> None:
    failing = dict.fromkeys(("before", "during"), ALL) | {"after": replace(ALL, failures=("cut", "cut"))}
    outcome = replace(OUTCOME, fault=FROZEN.name, phases=failing)
    text = f"{FROZEN.name}: no request fails"
    assert f"**met**: {text} (0 did; 2 more could not be answered: {UNDER_WAY})" in judged(replace(outcome, excused=2))
    assert f"**not met**: {text} (1 did; 1 more could not be answered: {UNDER_WAY})" in judged(
        replace(outcome, excused=1)
    )


def test_owners_refused_gateways_and_two_leaders_are_judged() -> None:
    database, lies = BY_NAME["frozen host of the database"].name, BY_NAME["name server that lies"].name
    stays, refused = "no replica changes its gateway", "wrong gateways are refused by their certificates"
    lead = "two controllers say that they lead for at most 3 s"
    assert f"**met**: {database}: {stays} (seen 0 times)" in judged(replace(OUTCOME, fault=database))
    assert f"**not met**: {database}: {stays} (seen 1 times)" in judged(replace(OUTCOME, fault=database, reassigned=1))
    assert f"**met**: {lies}: {refused} (2 times)" in judged(replace(OUTCOME, fault=lies))
    assert f"**not met**: {lies}: {refused} (0 times)" in judged(replace(OUTCOME, fault=lies, certificates_refused=0))
    assert f"**met**: {database}: {lead} (2.0 s)" in judged(replace(OUTCOME, fault=database, both_led_s=2.0))
    assert f"**not met**: {database}: {lead} (4.0 s)" in judged(replace(OUTCOME, fault=database, both_led_s=4.0))


def test_a_process_that_ends_by_itself_is_told_and_the_one_that_is_killed_is_expected() -> None:
    killed = BY_NAME["killed gateway"]
    text = "no other process ends by itself"
    assert f"**not met**: {FROZEN.name}: {text} (1 did)" in judged(replace(OUTCOME, fault=FROZEN.name, restarts=1))
    assert f"**met**: {killed.name}: {text} (0 did)" in judged(replace(OUTCOME, fault=killed.name, restarts=1))


def test_faults_that_could_not_be_played_are_not_met() -> None:
    reason = "partition could not be played: a process died"
    assert judged(replace(OUTCOME, fault=FROZEN.name), unplayed=(reason,))[-1] == f"**not met**: {reason}"
