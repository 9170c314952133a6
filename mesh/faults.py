"""Faults in configuration files: file, line, key, and what is wrong there.

It reads and repairs nothing, and no message quotes a secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

TOLD_MAX = 100
"""Most faults of one file that are listed; beyond them only their number is."""
_LENGTH_MAX = 4000


class ConfigError(Exception):
    """Configuration that cannot be used; the message has one line for each fault."""


@dataclass(frozen=True, slots=True)
class FileFault:
    """Fault in a file."""

    key: str
    """Path of the key, such as `replicas[2].url`; empty for the file as a whole."""
    message: str
    line: int | None = None
    """Line, counted from 1; None where the fault has no line."""
    beside: str = field(default="", repr=False, compare=False)
    """Key that `key` conflicts with; it may be in the file where `key` is not."""

    @property
    def where(self) -> str:
        """Line and key, as far as they are known."""
        line = "" if self.line is None else f"line {self.line}"
        return ": ".join(filter(None, (line, self.key)))

    def __str__(self) -> str:
        return _one_line(": ".join(filter(None, (self.where, self.message))))


class FileError(ConfigError):
    """File that cannot be used. One line for each fault: `us.yaml: line 12: replicas[2].url: what is wrong`."""

    def __init__(self, path: Path, faults: Iterable[FileFault]) -> None:
        self.path = path
        self.faults = tuple(faults)
        super().__init__(path, self.faults)

    def __str__(self) -> str:
        told = [f"{self.path.name}: {fault}" for fault in self.faults[:TOLD_MAX]]
        more = len(self.faults) - len(told)
        return "\n".join([*told, f"{self.path.name}: {more} more faults"] if more else told)


class KeyFaults(ValueError):
    """Faults that a validator raises for keys below its own."""

    def __init__(self, *faults: FileFault) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = faults


def _one_line(text: str) -> str:
    """Text on one line of bounded length: names of keys come from the file, and may hold anything."""
    shown = text if text.isprintable() else "".join(each if each.isprintable() else _escaped(each) for each in text)
    return shown if len(shown) <= _LENGTH_MAX else f"{shown[:_LENGTH_MAX]}..."


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
