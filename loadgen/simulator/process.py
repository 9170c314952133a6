"""Process of one gateway that can stall, as under SIGSTOP or on a frozen host: its timers and all that reaches it wait,
in order, until it goes on.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from loadgen.simulator.agenda import Action


class Process:
    """Stall of one process. A stalled process runs nothing; its connections stay open."""

    def __init__(self) -> None:
        self.is_stalled = False
        self.stalls = 0
        """Number of stalls so far."""
        self._held: deque[tuple[Action, tuple[Any, ...]]] = deque()

    def run(self, action: Action, *details: Any) -> None:
        """Run an action of the process, or hold it until the stall is over."""
        if self.is_stalled:
            self._held.append((action, details))
        else:
            action(*details)

    def stall(self) -> None:
        """Stall the process. No effect on one that is stalled."""
        if not self.is_stalled:
            self.is_stalled = True
            self.stalls += 1

    def go_on(self) -> None:
        """End the stall and run what has waited, in the order in which it came."""
        self.is_stalled = False
        held, self._held = self._held, deque()
        for action, details in held:
            action(*details)
