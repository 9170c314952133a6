"""Measures interactive chats beside a backlog of batch work: chats answered in time and the backlog's throughput, with
service classes and without."""

from __future__ import annotations

from typing import Any, Final

from loadgen.figures import Figures, asked_in
from loadgen.pages.markdown import NOTHING
from loadgen.simulator.results import goodput_of
from loadgen.simulator.world import Story
from loadgen.studies.rendering import render
from loadgen.studies.sharing.worlds import StudySize, client, play, world

_SLO: Final = "2s"
_SLO_NS: Final = 2_000_000_000
_SECOND_NS: Final = 1_000_000_000
_CASES: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    ("no classes", "interactive", {}),
    ("classes", "batch", {}),
    ("classes, and late ones refused", "batch", {"classes": {"interactive": {"first_token": _SLO}}}),
    ("batch is best effort", "best_effort", {}),
)
_CHAT, _BACKLOG = "people", "nightly"


def measure(size: StudySize) -> Figures:
    seconds = size.seconds
    rows = [
        _row(name, service_class, dict(run), seed, seconds)
        for name, service_class, run in _CASES
        for seed in size.seeds
    ]
    return {"seconds": seconds, "rows": rows}


def _row(name: str, service_class: str, run: dict[str, Any], seed: int, seconds: int) -> dict[str, object]:
    clients = [client(_CHAT, rate=1.5), client(_BACKLOG, floods=2, service_class=service_class)]
    story = play(world(clients, run, seconds=seconds, seed=seed))
    return {"case": name, "seed": seed} | _figures(story, seconds)


def _figures(story: Story, seconds: int) -> dict[str, object]:
    from_ns = seconds // 6 * _SECOND_NS
    asked = asked_in(story.records, (from_ns, seconds * _SECOND_NS))
    chat = goodput_of([each for each in asked if each.tenant == _CHAT], _SLO_NS)
    backlog = [each for each in story.records if each.tenant == _BACKLOG]
    done = sum(each.tokens_in_time for each in backlog)
    return {"chat": chat, "backlog_tokens_per_s": done / seconds}


def section(measured: Figures) -> str:
    return render("sharing/class_goodput.j2", measured=measured, slo=_SLO, seconds=_seconds)


def _seconds(ms: float | None) -> str:
    return NOTHING if ms is None else f"{ms / 1000:.2f} s"
