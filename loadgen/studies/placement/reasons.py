"""Known reasons of missed aims: shown beside each miss on the page, and a start for further work.

A reason is listed only if a figure of the page, or a run with one thing changed, supports it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_WAITS = (
    "A client's wait counts as half of what its reading costs an engine (`delay_weight`, see Constants): with 1 first"
    " tokens come sooner here at the same throughput, and agents whose caches are full lose some."
)
_FULL = (
    "Caches are past their room, and who has which is settled by chance in the first half minute: single seeds lie up"
    " to a third apart, for everybody."
)
_COPIES = (
    "More comes than engines can do, so the backlog grows as long as it is played. A document is copied to another"
    " replica once many wait for it: fewer hits, and first tokens in half of the time that those wait who send all of"
    " them to one."
)
_CROWDED = (
    "The crowded region keeps more of its sessions than session-sticky does: with 64 slots 49 % of the requests leave"
    " it instead of 63 %, its replica runs 1.6 times the average instead of 1.3, and decodes slower for all. What one"
    " more running request costs the others is a constant (`explore_load_bytes`, less in proportion above a mean load"
    " of 11), not learnt. Counting a region as crowded from one request more on, instead of four, leaves 0.6 % at 64"
    " slots, 0.8 % at 128 and 0.6 % at 256 (three seeds), but takes long sessions away from a region at light load (8"
    " agents: 75 ms to the first token, not 64)."
)
_NOISE = "Seeds reach from no worse to much worse: they say no more than that it is as quick."


@dataclass(frozen=True, slots=True)
class ReasonClass:
    begins: tuple[str, ...]
    """Prefixes of the names of the points that the reason is about."""
    why: str


REASONS = (
    ReasonClass(("bursts about one document, skewed, 4/4/4; 2/2/2; 0.",), "Why is not known."),
    ReasonClass(("bursts about one document",), _COPIES),
    ReasonClass(("agentic sessions twice as long",), _FULL),
    ReasonClass(("conversations as by default, skewed, 4/4/4; one replica",), _CROWDED),
    ReasonClass(("WildChat-like", "skewed", "conversations as by default"), _WAITS),
    ReasonClass(("Arena-like, 4/4/4",), _NOISE),
)


def reason_of(point: str, reasons: Iterable[ReasonClass] = REASONS) -> str:
    """First reason that is about this point, or a statement that the reason is not known."""
    for each in reasons:
        if point.startswith(each.begins):
            return each.why
    return "Why is not known."
