from __future__ import annotations

from collections.abc import Iterable

import pytest

from mesh.silence import (
    BEAT_NS,
    BLOCK_NS,
    BLOCKS,
    GRACES_MAX,
    LATENESS_FACTOR,
    LEARNT_AFTER_NS,
    STALL_NS,
    TIMEOUT_MAX_NS,
    TIMEOUT_MIN_NS,
    SilenceDetector,
    next_beat_ns,
)
from tests.support.core import MS, SECOND
from tests.support.silence import WatchedLink

CEILING_NS = 10 * SECOND
OFTEN_NS = 100 * MS
REMEMBERED_NS = BLOCK_NS * BLOCKS


def beats(count: int, *, after_ns: int = 0, apart_ns: int = BEAT_NS) -> list[int]:
    return [after_ns + number * apart_ns for number in range(1, count + 1)]


def known(extra: Iterable[int] = (), *, ceiling_ns: int = CEILING_NS, apart_ns: int = BEAT_NS) -> WatchedLink:
    """Clean link, with further intervals."""
    link = WatchedLink(SilenceDetector(ceiling_ns))
    link.hear(beats(LEARNT_AFTER_NS // apart_ns + 1, apart_ns=apart_ns))
    for interval_ns in extra:
        link.hear([link.now_ns + interval_ns])
    assert not link.alarms_ns
    return link


def test_a_link_whose_beats_are_never_late_is_silent_after_six() -> None:
    assert known().detector.timeout_ns == TIMEOUT_MIN_NS == 6 * BEAT_NS


@pytest.mark.parametrize("apart_ns", [OFTEN_NS, BEAT_NS])
def test_a_link_that_is_hardly_known_is_given_the_longest_time(apart_ns: int) -> None:
    link = WatchedLink(SilenceDetector(CEILING_NS))
    link.hear(beats(LEARNT_AFTER_NS // apart_ns, apart_ns=apart_ns))
    last_ns = link.now_ns
    assert link.wait_until(last_ns + CEILING_NS) == []
    assert link.wait_until(last_ns + CEILING_NS + 1) == [last_ns + CEILING_NS]


def test_nothing_is_silent_that_was_never_heard() -> None:
    link = WatchedLink(SilenceDetector(CEILING_NS))
    link.detector.begin(0)
    assert link.wait_until(1000 * SECOND) == []


@pytest.mark.parametrize("old_ns", [0, TIMEOUT_MIN_NS - 1, 60 * SECOND])
def test_silence_on_a_new_connection_is_measured_from_its_beginning(old_ns: int) -> None:
    """Neither from the last sign of life on the old one, nor only from the first on the new one."""
    link = known()
    link.wait_until(link.now_ns + old_ns)
    link.detector.begin(link.now_ns)
    began_ns = link.now_ns
    assert link.wait_until(began_ns + 3 * SECOND)[0] - began_ns in range(TIMEOUT_MIN_NS, TIMEOUT_MIN_NS + BEAT_NS)


@pytest.mark.parametrize("apart_ns", [OFTEN_NS, BEAT_NS])
def test_lateness_extends_the_time_out_for_two_minutes_however_much_is_said(apart_ns: int) -> None:
    link = known([BEAT_NS + 300 * MS], apart_ns=apart_ns)
    late_ns = TIMEOUT_MIN_NS + LATENESS_FACTOR * 300 * MS
    assert link.detector.timeout_ns == late_ns
    link.hear(beats((REMEMBERED_NS - BLOCK_NS) // apart_ns, after_ns=link.now_ns, apart_ns=apart_ns))
    assert link.detector.timeout_ns == late_ns, "still known"
    link.hear(beats(3 * BLOCK_NS // apart_ns, after_ns=link.now_ns, apart_ns=apart_ns))
    assert link.detector.timeout_ns == TIMEOUT_MIN_NS, "forgotten"


def reported(link: WatchedLink, until_ns: int, *, beats_apart_ns: int = BEAT_NS) -> None:
    """Let a busy end's messages arrive, each `OFTEN_NS`, and its beats."""
    since_ns = link.now_ns
    ages_ns = range(50 * MS, until_ns - since_ns + 1, 50 * MS)
    said = ((age_ns, age_ns % beats_apart_ns == 0) for age_ns in ages_ns)
    link.hear_each((since_ns + age_ns, is_beat) for age_ns, is_beat in said if is_beat or age_ns % OFTEN_NS == 0)


def test_what_is_said_between_beats_makes_no_link_known_and_hides_no_lateness() -> None:
    link = WatchedLink(SilenceDetector(CEILING_NS))
    link.hear_each((number * OFTEN_NS, False) for number in range(1000))
    assert link.detector.timeout_ns == CEILING_NS
    busy = known()
    reported(busy, busy.now_ns + 60 * SECOND)
    assert busy.detector.timeout_ns == TIMEOUT_MIN_NS
    reported(busy, busy.now_ns + 60 * SECOND, beats_apart_ns=BEAT_NS + 300 * MS)
    assert busy.detector.timeout_ns == TIMEOUT_MIN_NS + LATENESS_FACTOR * 300 * MS


def test_silence_of_a_busy_end_is_measured_from_its_last_message() -> None:
    link = known()
    link.hear_each([(link.now_ns + OFTEN_NS, False)])
    last_ns = link.now_ns
    assert link.wait_until(last_ns + 3 * SECOND)[0] == last_ns + TIMEOUT_MIN_NS


def test_beats_keep_to_their_times_and_missed_ones_are_left_out() -> None:
    assert next_beat_ns(BEAT_NS, BEAT_NS) == 2 * BEAT_NS
    assert next_beat_ns(BEAT_NS, BEAT_NS + 3 * MS) == 2 * BEAT_NS
    assert next_beat_ns(BEAT_NS, 60 * SECOND + MS) == 60 * SECOND + BEAT_NS


def test_two_minutes_are_remembered() -> None:
    assert REMEMBERED_NS == 128 * SECOND


@pytest.mark.parametrize("apart_ns", [OFTEN_NS, BEAT_NS])
def test_a_death_is_noticed_within_two_seconds_however_much_is_said(apart_ns: int) -> None:
    link = known(apart_ns=apart_ns)
    link.hear(beats(10 * REMEMBERED_NS // apart_ns, after_ns=link.now_ns, apart_ns=apart_ns))
    died_ns = link.now_ns
    assert link.wait_until(died_ns + 2 * SECOND)[0] == died_ns + TIMEOUT_MIN_NS


def test_faster_beats_do_not_shorten_the_time_out() -> None:
    assert known([10 * MS] * 2000).detector.timeout_ns == TIMEOUT_MIN_NS


def test_no_lateness_extends_it_without_end() -> None:
    assert known([1400 * MS] * 3).detector.timeout_ns == TIMEOUT_MAX_NS
    assert known([1400 * MS] * 3, ceiling_ns=2 * SECOND).detector.timeout_ns == 2 * SECOND


def test_silence_is_told_once_the_time_out_has_passed_and_a_late_beat_ends_it() -> None:
    link = known()
    last_ns = link.now_ns
    assert link.wait_until(last_ns + 3 * SECOND)[0] == last_ns + TIMEOUT_MIN_NS
    link.hear([link.now_ns])
    assert link.wait_until(link.now_ns + SECOND) == []


def test_an_outage_counts_as_no_longer_than_the_time_out_that_noticed_it() -> None:
    link = known()
    assert link.hear([link.now_ns + 60 * SECOND]), "it was noticed"
    noticed_late_ns = TIMEOUT_MIN_NS - BEAT_NS
    assert link.detector.timeout_ns == min(TIMEOUT_MAX_NS, TIMEOUT_MIN_NS + LATENESS_FACTOR * noticed_late_ns)


def test_the_time_between_two_connections_is_no_interval() -> None:
    link = known()
    link.detector.begin(link.now_ns)
    link.hear([link.now_ns + 100 * SECOND])
    assert link.detector.timeout_ns == TIMEOUT_MIN_NS


@pytest.mark.parametrize("is_heard_first", [True, False])
def test_time_in_which_this_process_did_not_run_is_no_silence(is_heard_first: bool) -> None:
    """The look that was asked for comes a minute late, before or after the beats that arrived meanwhile."""
    link = known()
    link.stall_until(link.now_ns + 60 * SECOND)
    if is_heard_first:
        link.detector.hear(link.now_ns, is_beat=True)
    assert link.wait_until(link.now_ns + 1) == []
    link.hear([link.now_ns])
    assert link.detector.timeout_ns <= TIMEOUT_MIN_NS + LATENESS_FACTOR * BEAT_NS, "nor is it lateness of the link"


@pytest.mark.parametrize("ago_ns", range(0, TIMEOUT_MIN_NS + 1, BEAT_NS // 2))
def test_what_arrived_while_this_process_did_not_run_is_read_first(ago_ns: int) -> None:
    """The look comes first, however long nothing had been heard when the process was stopped."""
    link = known()
    link.wait_until(link.now_ns + ago_ns)
    assert not link.alarms_ns
    link.stall_until(link.now_ns + 60 * SECOND)
    began_ns = link.now_ns
    assert link.wait_until(began_ns + 1) == []
    link.hear([began_ns + 10 * MS])
    assert link.wait_until(began_ns + SECOND) == []


def test_a_process_that_is_always_late_notices_silence_in_the_end() -> None:
    """Every look comes late, and nothing is heard."""
    detector, looks, now_ns = known().detector, 0, known().now_ns
    while wait_ns := detector.look(now_ns):
        now_ns += wait_ns + STALL_NS
        looks += 1
    assert looks <= TIMEOUT_MIN_NS // BEAT_NS + GRACES_MAX + 1


def test_a_peer_that_died_while_this_process_did_not_run_is_noticed_afterwards() -> None:
    link = known()
    link.stall_until(link.now_ns + 60 * SECOND)
    began_ns = link.now_ns
    (first_ns, *_) = link.wait_until(began_ns + 2 * SECOND)
    assert began_ns + TIMEOUT_MIN_NS - BEAT_NS <= first_ns <= began_ns + TIMEOUT_MIN_NS + BEAT_NS
