"""Interface of the words that a feature adds to explanations of decisions, and how figures are written in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from gateway.records.decisions import ExplainedCandidate, ExplainedPlacement


class Words:
    """Words of one feature. Every hook adds nothing unless a feature overrides it."""

    reasons: ClassVar[Mapping[str, Callable[[ExplainedPlacement], str]]] = {}
    """Clause on why a target was taken, by the name of the reason."""

    def sentence(self, placement: ExplainedPlacement, /) -> str:  # noqa: ARG002
        """Sentence after the one that says where a request ran; empty: none."""
        return ""

    def caption(self, placement: ExplainedPlacement, /) -> str:  # noqa: ARG002
        """Words behind a decision's reason and waiting time, with a comma first; empty: none."""
        return ""

    def own_table(self, placement: ExplainedPlacement, /) -> Table | None:  # noqa: ARG002
        """Table of the considered targets in place of the general ones, or None."""
        return None

    def further_table(self, placement: ExplainedPlacement, /) -> Table | None:  # noqa: ARG002
        """Table of further figures on the considered targets, in the same order, or None."""
        return None


def table_of(words: Sequence[str], figures: Sequence[str]) -> Table:
    """Make a table with a column for the mark of the target that was taken, then columns of words and of figures."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in ("", *words):
        table.add_column(header, overflow="fold")
    for header in figures:
        table.add_column(header, justify="right", overflow="fold")
    return table


def add_row(table: Table, *cells: str, is_taken: bool) -> None:
    table.add_row(*map(plain, ("→" if is_taken else "", *cells)))


def plain(text: str) -> Text:
    """Text without control characters: details come from other machines and must not control the terminal."""
    return Text("".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text))


def figure_of(candidate: ExplainedCandidate, name: str) -> float:
    """Further figure of a target that was considered, by its name; 0 where it has none."""
    figure = (candidate.costs.further or {}).get(name) if candidate.costs else None
    return 0.0 if figure is None or figure.amount is None else figure.amount


def in_ms(duration_ms: float) -> str:
    return f"{rounded(duration_ms)} ms"


def rounded(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}"
