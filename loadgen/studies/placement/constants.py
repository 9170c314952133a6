"""The constants of the default placement rule, each with values over a decade: none may be fitted to a result, and
figures should be flat over each.

A constant added to the rule is added to `constants.yaml`; `key` is its key in a region file's `placement`.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.settings import scalar
from loadgen.studies.data import read_data


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of the rule."""

    key: str
    default: str
    """Default as written in a region file; one of the values."""
    values: tuple[str, ...]
    """Values from a third of the default to three times it, or further."""
    what: str
    """Description and origin: derived, learnt, or chosen."""
    on_h100: str = ""
    on_l4: str = ""
    """Value on that GPU, where it depends on the GPU."""

    def __post_init__(self) -> None:
        assert self.default in self.values, f"{self.key}: {self.default} is none of its values"

    @property
    def machines(self) -> list[str]:
        """Values on the GPUs that have one of their own."""
        return [f"{name}: {value}" for name, value in (("H100", self.on_h100), ("L4", self.on_l4)) if value]

    def given(self, value: str) -> object:
        """Value as in a scenario."""
        return scalar(value)


CONSTANTS = read_data("placement/constants.yaml", tuple[Constant, ...])
