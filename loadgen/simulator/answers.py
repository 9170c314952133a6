"""Progress of each answer at its client, whichever engine writes it; an oracle checks every continuation against it."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.simulator.engines import EngineRun, SimReplica


class OutOfPlace(Exception):
    """A token was written twice, or left out."""


@dataclass(slots=True)
class Told:
    """Progress of one answer. Runs follow one another; each writes from some token on."""

    tokens: int = 0
    """Tokens that the client had when a run last began or ended."""
    breaks: int = 0
    broke_ns: int | None = None
    """Time at which it broke, while no run has continued it yet."""
    pause_ns: int | None = None
    """Longest pause between a break and the next token, of those that are over; None: there was none."""
    _start: int = 0
    _run: EngineRun | None = None
    _engine: SimReplica | None = None

    @property
    def now(self) -> int:
        if self._run is None or self._engine is None:
            return self.tokens
        return self._start + self._engine.written(self._run)

    def begins(self, start: int, run: EngineRun, engine: SimReplica, now_ns: int) -> None:
        """Record the first token of a run, as the gateway of its engine hears it. Raises OutOfPlace if the run does not
        continue where the client's answer ends."""
        if start != self.now:
            raise OutOfPlace(f"token {start} was written next, where the client has {self.now}")
        self.tokens, self._start, self._run, self._engine = start, start, run, engine
        if self.broke_ns is not None:
            self.pause_ns, self.broke_ns = max(self.pause_ns or 0, now_ns - self.broke_ns), None

    def comes_no_further(self, tokens: int) -> None:
        """Reset the progress to `tokens`, when a forward ended before any of its tokens came."""
        self.tokens, self._run, self._engine = tokens, None, None

    def breaks_off(self, now_ns: int) -> int:
        """Detach the run: further tokens of its engine are lost. Returns the tokens that the client has."""
        self.tokens, self._run, self._engine = self.now, None, None
        self.breaks += 1
        if self.broke_ns is None:
            self.broke_ns = now_ns
        return self.tokens
