"""Service classes of one batch's lines: `batch`, and `interactive` for urgent ones, unless its client is promised a
lower one. It does no I/O.
"""

from __future__ import annotations

from gateway.core.vocabulary import ServiceClass

_INTERACTIVE, _BATCH, _LOWEST = ServiceClass.INTERACTIVE, ServiceClass.BATCH, ServiceClass.BEST_EFFORT


class LineClasses:
    """Classes that the lines of one batch run as. The gateway's answers tell which ones its client may not have."""

    def __init__(self) -> None:
        self.urgent = 0
        """Lines that run as `interactive`."""
        self._refused: set[ServiceClass] = set()

    def next(self, *, is_urgent: bool) -> ServiceClass:
        if is_urgent and _INTERACTIVE not in self._refused:
            return _INTERACTIVE
        return _LOWEST if _BATCH in self._refused else _BATCH

    def refuse(self, served_as: ServiceClass) -> bool:
        """Take in that a class was refused. False: there is no lower one."""
        self._refused.add(served_as)
        return served_as is not _LOWEST

    def begin(self, served_as: ServiceClass) -> None:
        """Count a line that begins to run."""
        self.urgent += served_as is _INTERACTIVE

    def end(self, served_as: ServiceClass) -> None:
        """Count a line that runs no longer."""
        self.urgent -= served_as is _INTERACTIVE
