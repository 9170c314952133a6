"""The constants of our default rule, each over a decade: none is to be fitted to a result, and each is to be flat.

Whoever adds one to the rule adds it here; `key` is its key in a region file's `placement`.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.settings import scalar


@dataclass(frozen=True, slots=True)
class Constant:
    """One of them."""

    key: str
    default: str
    """As written in a region file; one of the values."""
    values: tuple[str, ...]
    """From a third of it to three times it, or further."""
    what: str
    """What it is, and where it comes from: derived, learnt, or chosen."""
    on_h100: str = ""
    on_l4: str = ""
    """What it would be there, if it is not the same everywhere."""

    def __post_init__(self) -> None:
        assert self.default in self.values, f"{self.key}: {self.default} is none of its values"

    def given(self, value: str) -> object:
        """As in a scenario."""
        return scalar(value)


CONSTANTS: tuple[Constant, ...] = ()
