from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mesh.problems import PROBLEMS_MAX, Problem, ProblemWatch, Runbook

SECOND_NS = 1_000_000_000


@dataclass
class Found:
    """Problems that the next look finds."""

    problems: list[Problem] = field(default_factory=list)
    looks: int = 0

    def __call__(self) -> list[Problem]:
        self.looks += 1
        return self.problems


def rows(watch: ProblemWatch, began_ms: int = 0) -> list[dict[str, Any]]:
    found: Any = watch.shown(began_ms)["rows"]
    return list(found)


def test_a_problem_has_the_time_at_which_it_was_first_seen_whatever_its_text_says_since() -> None:
    found = Found([Problem("replica a is stale: 1 s", "replica_unusable", "a", Runbook.REPLICA_DOWN)])
    watch = ProblemWatch(found)
    watch.look(7 * SECOND_NS)
    found.problems = [
        Problem("no controller is attached", "no_controller"),
        Problem("replica a is stale: 9 s", "replica_unusable", "a", Runbook.REPLICA_DOWN),
    ]
    watch.look(15 * SECOND_NS)
    assert [(row["text"], row["since_ms"], row["runbook"]) for row in rows(watch, began_ms=1_000)] == [
        ("no controller is attached", 16_000, ""),
        ("replica a is stale: 9 s", 8_000, "NightsideReplicaDown"),
    ]


def test_one_that_went_and_came_again_is_a_new_one() -> None:
    problem = Problem("frozen", "frozen")
    found = Found([problem])
    watch = ProblemWatch(found)
    watch.look(0)
    found.problems = []
    watch.look(10 * SECOND_NS)
    assert rows(watch) == []
    found.problems = [problem]
    watch.look(20 * SECOND_NS)
    assert rows(watch)[0]["since_ms"] == 20_000


def test_they_are_looked_for_every_few_seconds_however_often_it_is_asked() -> None:
    found = Found()
    watch = ProblemWatch(found)
    for second in range(11):
        watch.look(second * SECOND_NS)
    assert found.looks == 3


def test_more_than_are_followed_are_counted() -> None:
    watch = ProblemWatch(lambda: [Problem("x", "replica_unusable", str(number)) for number in range(PROBLEMS_MAX + 3)])
    watch.look(0)
    assert len(rows(watch)) == PROBLEMS_MAX
    assert watch.shown(0)["left_out"] == 3
