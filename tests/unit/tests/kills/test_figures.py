from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.kills.figures import (
    SECOND_NS,
    AuditedTries,
    Kill,
    KilledBatch,
    figures_of,
    is_whole,
    judged,
    page_of,
    pause_max_s,
    took_s,
)

HOME, FURTHER, OUTSIDE = "us", "us-2", "eu"


def audited(*lines: dict[str, object]) -> AuditedTries:
    found = AuditedTries(HOME, frozenset({HOME, FURTHER}))
    for line in lines:
        found.add(line)
    return found


def request(ran_in: str = HOME, sent_to: tuple[str, ...] = (), **more: object) -> dict[str, object]:
    """Audit line of a completed request of the batch, after attempts in these regions."""
    attempts = [{"region": each, "result": "refused"} for each in sent_to]
    return {
        "kind": "request", "request": "r", "region": HOME, "origin": {"region": HOME}, "outcome": "completed",
        "attempts": [*attempts, {"region": ran_in, "result": "completed"}], "processed": {"region": ran_in}, **more,
    }  # fmt: skip


def kill(line: int, at_s: float, **more: object) -> Kill:
    killed_ns = int(at_s * SECOND_NS)
    return replace(
        Kill("one", "at once", line, 8, 3, killed_ns, killed_ns + 2 * SECOND_NS, ("gw-1", "gw-2"), True),
        **more,  # type: ignore[arg-type]
    )


def batch(**more: object) -> KilledBatch:
    """Batch of which everything is well: ten lines, and two kills."""
    ended = [(int(at_s * SECOND_NS), done) for at_s, done in ((2, 2), (3, 4), (7, 5), (8, 7), (9, 10))]
    kills = [kill(4, 3.5), kill(7, 8.5)]
    well = KilledBatch(
        10, audited(request(), request(FURTHER)), kills, SECOND_NS, ended, "completed", results=10, whole=10,
        asked_outside=2, ran_outside=2, audits=4,
    )  # fmt: skip
    return replace(well, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "tokens", "end", "expected"),
    [(200, 10, "length", True), (500, 10, "length", False), (200, 9, "length", False), (200, 10, "stop", False)],
)
def test_a_whole_answer_has_all_its_tokens(status: int, tokens: int, end: str, expected: bool) -> None:
    body = {"usage": {"completion_tokens": tokens}, "choices": [{"finish_reason": end}]}
    assert is_whole({"response": {"status_code": status, "body": body}}, 10) is expected
    assert not is_whole({"response": None, "error": {}}, 10)


def test_pauses_of_a_kill_end_with_the_next_kill() -> None:
    first, second = figures_of(batch())
    assert (first.pause_max_s, first.up_s, second.pause_max_s) == (3.5, 2, 0.5)
    (alone,) = figures_of(batch(kills=[kill(7, 7.5)], ended=[(int(at_s * SECOND_NS), 1) for at_s in (7, 8, 9.5, 10)]))
    assert alone.pause_max_s == 1.5


def test_a_kill_after_which_no_line_ended_has_no_pause_that_ended() -> None:
    assert figures_of(batch(ended=[], kills=[kill(4, 3.5)]))[0].pause_max_s is None


def test_the_whole_batch_has_a_length_and_a_longest_pause() -> None:
    assert (took_s(batch()), pause_max_s(batch())) == (8, 4)
    assert (took_s(batch(ended=[])), pause_max_s(batch(ended=[]))) == (0, 0)


def test_tries_count_where_the_batch_was_held_and_places_everywhere() -> None:
    found = audited(
        request(),
        request(FURTHER, (HOME, FURTHER)),
        request(FURTHER, region=FURTHER, origin_gateway="gw-us"),
        request(outcome="failed_before_first_byte", processed=None),
        request(OUTSIDE, region=OUTSIDE, origin={"region": OUTSIDE}),
        {"kind": "file"},
    )
    assert found.outcomes == {"completed": 2, "failed_before_first_byte": 1}
    assert (found.tries, found.ran_in) == (3, {HOME: 1, FURTHER: 1})
    assert found.attempts == Counter({"completed": 3, "refused": 2})
    assert not found.strays


@pytest.mark.parametrize(
    "line",
    [
        request(OUTSIDE),
        request(HOME, (OUTSIDE,)),
        request(region=OUTSIDE, attempts=(), processed=None, origin_gateway="gw-us"),
        {"kind": "violation", "request": "r", "gateway": "gw-us"},
    ],
)
def test_a_line_that_meets_a_forbidden_region_in_any_way_is_a_stray(line: dict[str, object]) -> None:
    assert len(audited(line).strays) == 1


@pytest.mark.parametrize(
    ("more", "missed"),
    [
        ({}, 0),
        ({"status": ""}, 1),
        ({"results": 11}, 1),
        ({"lost": 1}, 1),
        ({"doubled": 1}, 1),
        ({"failed": 1}, 1),
        ({"whole": 9}, 1),
        ({"kills": [kill(4, 3.5, is_taken_over=False), kill(7, 8.5, is_taken_over=False)]}, 1),
        ({"kills": [kill(4, 3.5, is_taken_over=False), kill(7, 8.5)]}, 0),
        ({"kills": [kill(4, 3.5), kill(7, 8.5, holders=("gw-1", "gw-1"))]}, 1),
        ({"kills": [kill(2, 2.9), kill(7, 8.5)]}, 1),
        ({"kills": [kill(4, 3.5)]}, 1),
        ({"kills": [kill(4, 3.5), kill(7, 9.5, is_taken_over=False)]}, 1),
        ({"kills": [kill(4, 3.5), kill(7, 8.5, in_flight=0)]}, 1),
        ({"kills": [kill(4, 3.5), kill(7, 8.5, there=0)]}, 1),
        ({"kills": [kill(4, 3.5), kill(7, 8.5, there=None)]}, 0),
        ({"audited": audited(request())}, 1),
        ({"audited": audited(request(FURTHER), request(OUTSIDE))}, 1),
        ({"ran_outside": 3}, 1),
        ({"ran_outside": 0, "asked_outside": 0}, 1),
        ({"audits": 0}, 1),
        ({"audit_faults": ["gw-us"]}, 1),
    ],
)
def test_each_aim_is_judged_by_itself(more: dict[str, object], missed: int) -> None:
    assert sum(not is_met for is_met, _ in judged(batch(**more), 2, FURTHER, 1.6)) == missed


def test_the_page_has_every_kill_and_aim() -> None:
    played = batch(kills=[kill(4, 3.5, there=None)])
    machine = {"cpu": "one", "cores": 2, "memory_gib": 4, "python": "Python", "busy": "idle"}
    page = page_of(
        played, judged(played, 2, FURTHER, 15), machine, commit="aaaa", home=HOME, further=FURTHER, outside=OUTSIDE,
        engines={HOME: 4, FURTHER: 2, OUTSIDE: 1}, slots=4, tokens=10, lease_s=15,
    )  # fmt: skip
    assert page.startswith("# A batch")
    assert "| one | at once | gw-1, gw-2 | 4 | 8 | – | 3.5 | 2.0 |" in page
    assert "tries ended as `completed` 2; completed ones\nran in `us` 1, `us-2` 1." in page
    assert "**not met**: each kill met lines in flight, and the batch ran on after it (1 of 2)" in page
