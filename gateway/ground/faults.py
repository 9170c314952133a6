"""Faults of what somebody configured, in words: which file, which line, which key, and what is wrong there.

Nothing here reads or repairs anything, and no message quotes a secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

TOLD_MAX = 100
"""Faults of one file that are told; of more, only their number."""
_LENGTH_MAX = 4000


class ConfigError(Exception):
    """Something that was configured and cannot be used: what and why, one line per fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a file."""

    key: str
    """The path of the key, such as `replicas[2].url`; empty for the file as a whole."""
    message: str
    line: int | None = None
    """Counted from 1; None where no line is to blame."""
    beside: str = field(default="", repr=False, compare=False)
    """The key that it does not go with: that one may be written where `key` is not."""

    @property
    def where(self) -> str:
        """Line and key, as far as there are any."""
        line = "" if self.line is None else f"line {self.line}"
        return ": ".join(filter(None, (line, self.key)))

    def __str__(self) -> str:
        return _one_line(": ".join(filter(None, (self.where, self.message))))


class FileError(ConfigError):
    """A file that cannot be used. One line per fault: `us.yaml: line 12: replicas[2].url: what is wrong`."""

    def __init__(self, path: Path, faults: Iterable[Fault]) -> None:
        self.path = path
        self.faults = tuple(faults)
        super().__init__(path, self.faults)

    def __str__(self) -> str:
        told = [f"{self.path.name}: {fault}" for fault in self.faults[:TOLD_MAX]]
        more = len(self.faults) - len(told)
        return "\n".join([*told, f"{self.path.name}: {more} more faults"] if more else told)


class KeyFaults(ValueError):
    """Raised by a validator that knows which keys below its own are to blame."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = faults


def _one_line(text: str) -> str:
    """What a file holds is quoted in names of keys: it makes no line of its own, and none without an end."""
    shown = text if text.isprintable() else "".join(each if each.isprintable() else _escaped(each) for each in text)
    return shown if len(shown) <= _LENGTH_MAX else f"{shown[:_LENGTH_MAX]}..."


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
