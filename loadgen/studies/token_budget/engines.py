"""Modelled engines in groups, such as pools or regions, in virtual time, with the requests that each runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from loadgen.engine.model import EngineModel, Finished, FirstTokenMade, Preempted
from loadgen.engine.sequences import EngineRequest


@dataclass(slots=True, kw_only=True)
class Running:
    """A request at an engine."""

    first_ns: int = 0
    preempted: bool = False


_Request = TypeVar("_Request", bound=Running)


class Engines(ABC, Generic[_Request]):
    """Runs requests at the engine of a group that has the fewest. `ended` is told of each request's end."""

    def __init__(self, groups: Sequence[Sequence[EngineModel]]) -> None:
        self.groups: list[list[tuple[EngineModel, dict[str, _Request]]]] = [
            [(engine, {}) for engine in engines] for engines in groups
        ]

    @abstractmethod
    def ended(self, request: _Request, ended_ns: int) -> None:
        """Take in the end of a request."""

    def submit(self, group: int, request: _Request, asked: EngineRequest, now_ns: int) -> None:
        engine, running = min(self.groups[group], key=lambda each: len(each[1]))
        rejection = engine.submit(asked, now_ns)
        assert rejection is None, "it fits into the window"
        running[asked.request_id] = request

    def run_until(self, now_ns: int) -> None:
        for group in self.groups:
            for engine, running in group:
                self._take(engine, running, now_ns)

    def run_out(self) -> None:
        for group in self.groups:
            for engine, running in group:
                while running:
                    next_ns = engine.next_change_ns()
                    assert next_ns is not None, "every request comes to an end"
                    self._take(engine, running, next_ns)

    def _take(self, engine: EngineModel, running: dict[str, _Request], now_ns: int) -> None:
        for output in engine.advance(now_ns):
            match output:
                case FirstTokenMade():
                    running[output.request_id].first_ns = running[output.request_id].first_ns or output.at_ns
                case Preempted():
                    running[output.request_id].preempted = True
                case Finished():
                    self.ended(running.pop(output.request_id), output.at_ns)
                case _:
                    pass
