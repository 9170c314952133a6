"""Leases of batches, as one gateway knows them. It reads no clock and does no I/O.

The store alone decides who holds a batch: each holding has a higher term than the one before, and the store refuses
writes of a lower term. A holder changes a count with each renewal. Another gateway finds the holding lapsed once that
count has stayed the same for the length of a lease by its own clock: clocks of two machines are never compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct


class BatchHolding(Struct, frozen=True):
    """Proof that a gateway holds a batch."""

    batch_id: str
    term: int


class HoldingMark(Struct, frozen=True):
    """BatchHolding of another gateway as the store shows it; each renewal changes it."""

    term: int
    renewals: int


class BatchLeases:
    """Batches that one gateway holds, and holdings of others that have lapsed. Times are of this machine's clock, which
    goes on while the machine sleeps."""

    def __init__(self, lease_ns: int) -> None:
        self._lease_ns = lease_ns
        self._terms: dict[str, int] = {}
        self._seen: dict[str, tuple[HoldingMark, int]] = {}
        """Holdings of others, and the times since which they are unchanged."""
        self._lapsed: set[str] = set()
        self._answered_ns: int | None = None
        """Time of the store's last answer; None: it has not answered yet."""

    @property
    def held(self) -> list[BatchHolding]:
        return [BatchHolding(batch_id, term) for batch_id, term in self._terms.items()]

    def holding(self, batch_id: str) -> BatchHolding | None:
        term = self._terms.get(batch_id)
        return None if term is None else BatchHolding(batch_id, term)

    def took(self, holding: BatchHolding) -> None:
        assert holding.term > self._terms.get(holding.batch_id, 0), "terms rise"
        self._terms[holding.batch_id] = holding.term

    def gave_up(self, batch_id: str) -> None:
        """Forget a holding that was given up or lost; an unknown one changes nothing."""
        self._terms.pop(batch_id, None)

    def renewed(self, asked: Iterable[BatchHolding], still_held: Iterable[BatchHolding]) -> list[BatchHolding]:
        """Take in the store's answer to a renewal. Returns the holdings that are lost; one that was given up or taken
        anew meanwhile is not."""
        answer = set(still_held)
        lost = [each for each in asked if each not in answer and self._terms.get(each.batch_id) == each.term]
        for each in lost:
            del self._terms[each.batch_id]
        return lost

    def saw(self, marks: Mapping[str, HoldingMark], *, asked_ns: int, answered_ns: int) -> bool:
        """Take in all holdings that the store shows. A mark that stays the same was not renewed from the answer that
        first showed it until the latest query. Returns True if a further holding has lapsed.

        While the store does not answer, holders may be unable to renew as well. So the wait begins anew after half a
        lease without an answer; one or two queries that fail do not matter.
        """
        was_away = self._answered_ns is None or answered_ns - self._answered_ns > self._lease_ns // 2
        self._answered_ns = answered_ns
        others = {batch_id: mark for batch_id, mark in marks.items() if self._terms.get(batch_id) != mark.term}
        before = {} if was_away else self._seen
        self._seen = {
            batch_id: known if (known := before.get(batch_id)) is not None and known[0] == mark else (mark, answered_ns)
            for batch_id, mark in others.items()
        }
        lapsed_before = self._lapsed
        self._lapsed = {key for key, (_, since_ns) in self._seen.items() if asked_ns - since_ns >= self._lease_ns}
        return not self._lapsed <= lapsed_before

    def mark_to_take(self, batch_id: str) -> HoldingMark | None:
        """Mark of a holding that has lapsed; None: it has not, or no other gateway holds the batch."""
        return self._seen[batch_id][0] if batch_id in self._lapsed else None

    def is_anothers(self, batch_id: str) -> bool:
        """True while another gateway's holding was seen that has not lapsed."""
        return batch_id in self._seen and batch_id not in self._lapsed
