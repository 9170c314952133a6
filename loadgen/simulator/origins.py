"""Origins of a scenario's load, for readers of its results: synthetic, recorded, cut or shifted.

It only reports what a scenario holds; a curve moved to another time of day is called shifted, because it was not
measured so.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import PurePath

from loadgen.figures import Figures
from loadgen.simulator.scenario import ClientsSection, Scenario, questions_in
from loadgen.traces.rows import Unreadable

_HOUR_NS = 3_600_000_000_000


def origins_of(scenario: Scenario) -> Figures:
    """JSON-able figures: the clients, and the files that their requests come from."""
    asking = {clients.workload for clients in scenario.clients}
    sections = {name: section for name, section in scenario.workloads.items() if name in asking}
    return {
        "clients": [_clients(section) for section in scenario.clients],
        "traces": [_trace(scenario, name) for name, section in sections.items() if section.trace is not None],
        "questions": [
            _questions(name, section.questions)
            for name, section in scenario.workloads.items()
            if section.questions is not None
        ],
    }


def _clients(section: ClientsSection) -> Figures:
    shift_hours = section.shift / _HOUR_NS if section.arrivals is None else section.arrivals.shift_hours
    return {
        "region": section.region,
        "workload": section.workload,
        "arrive": _arrival(section),
        "shifted_hours": round(shift_hours, 4),
    }


def _arrival(section: ClientsSection) -> str:
    if section.clients is not None:
        return f"{section.clients} at a time"
    if section.arrivals is None:
        return "as recorded"
    if section.arrivals.rate is not None:
        return f"{section.arrivals.rate:g} a second"
    kind = "recorded rate" if section.arrivals.recorded is not None else "curve"
    shift = section.arrivals.shift_hours
    return f"{kind}, shifted by {shift:+g} h" if shift else kind


def _trace(scenario: Scenario, name: str) -> Figures:
    section = scenario.workloads[name].trace
    assert section is not None
    replay = scenario.replay(name)
    return {
        "workload": name,
        "file": PurePath(section.file).name,
        "format": str(replay.trace.format),
        "speed": section.speed,
        "scale_tokens": section.scale_tokens,
        "sample": section.sample,
        **asdict(replay.counts),
        **_unread(replay.trace.unreadable),
        "notes": list(replay.trace.notes),
    }


def _questions(name: str, file: str) -> Figures:
    questions = questions_in(file)
    unread = _unread(questions.unreadable)
    return {"workload": name, "file": PurePath(file).name, "questions": len(questions.asked), **unread}


def _unread(unreadable: Unreadable) -> Figures:
    return {"unreadable": unreadable.count, "first_unreadable": list(unreadable.first)}
