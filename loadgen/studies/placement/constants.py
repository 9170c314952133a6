"""The constants of the default placement rule, each with values over a decade: none may be fitted to a result, and
figures should be flat over each.

A constant added to the rule is added here; `key` is its key in a region file's `placement`.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.settings import scalar


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

    def given(self, value: str) -> object:
        """Value as in a scenario."""
        return scalar(value)


CONSTANTS: tuple[Constant, ...] = (
    Constant(
        "delay_weight",
        "0.5",
        ("0.2", "0.35", "0.5", "0.7", "1.0", "2.0"),
        "What a second of one client's waiting counts against a second by which an engine's reading delays one of those"
        " who run there. Chosen below 1, since a session that moves to save a wait leaves its cache behind.",
        on_h100="the same",
        on_l4="the same: it has no unit",
    ),
    Constant(
        "hold",
        "50ms",
        ("20ms", "50ms", "100ms", "200ms"),
        "What may be read ahead at a replica before more waits here: an engine must not run dry between its first token"
        " and our next request, which is a round trip to it and one iteration.",
        on_h100="50ms: an iteration with a chunk of prefill takes about 30 ms",
        on_l4="200ms: it takes about 150 ms there",
    ),
    Constant(
        "kept_gaps",
        "3.0",
        ("1.0", "2.0", "3.0", "6.0", "10.0"),
        "Derived: a cache that keeps things through three average gaps between turns loses one of twenty, were gaps"
        " without memory. What is read into one that keeps them for less counts what it pushes out, and may have to"
        " wait.",
        on_h100="the same",
        on_l4="the same: gaps are users'",
    ),
    Constant(
        "explore_load",
        "128B",
        ("32B", "64B", "128B", "256B", "512B"),
        "What one request more costs those who run at a replica, as bytes of prompt: about a 64-token chunk for all the"
        " tokens that it will write. As in the rule before this one.",
        on_h100="the same",
        on_l4="the same: bytes are turned into time by what a byte takes there",
    ),
)
