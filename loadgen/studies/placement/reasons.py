"""Known reasons of missed aims: shown beside each miss on the page, and a start for further work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from loadgen.studies.data import read_data


@dataclass(frozen=True, slots=True)
class ReasonClass:
    begins: tuple[str, ...]
    """Prefixes of the names of the points that the reason is about."""
    why: str


REASONS = read_data("placement/reasons.yaml", tuple[ReasonClass, ...])


def reason_of(point: str, reasons: Iterable[ReasonClass] = REASONS) -> str:
    """First reason that is about this point, or a statement that the reason is not known."""
    return next((each.why for each in reasons if point.startswith(each.begins)), "Why is not known.")
