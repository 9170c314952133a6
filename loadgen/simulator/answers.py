"""How much of each answer its client has, whoever wrote it: what an oracle holds against whoever goes on with one."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.simulator.engines import EngineRun, SimReplica


class OutOfPlace(Exception):
    """A token was written twice, or left out."""


@dataclass(slots=True)
class Told:
    """One answer's. Runs follow on each other; each writes from some token on."""

    tokens: int = 0
    """That the client had when nobody was writing last."""
    breaks: int = 0
    _start: int = 0
    _run: EngineRun | None = None
    _engine: SimReplica | None = None

    @property
    def now(self) -> int:
        if self._run is None or self._engine is None:
            return self.tokens
        return self._start + self._engine.written(self._run)

    def begins(self, start: int, run: EngineRun, engine: SimReplica) -> None:
        """The first of what this run writes has come. Raises OutOfPlace."""
        if start != self.now:
            raise OutOfPlace(f"token {start} was written next, where the client has {self.now}")
        self.tokens, self._start, self._run, self._engine = start, start, run, engine

    def comes_no_further(self, tokens: int) -> None:
        """Whoever forwarded it left before any of it had come: its client still has so many."""
        self.tokens, self._run, self._engine = tokens, None, None

    def breaks_off(self) -> int:
        """Whatever its engine still writes goes nowhere. Gives what there is."""
        self.tokens, self._run, self._engine = self.now, None, None
        self.breaks += 1
        return self.tokens
