"""What a tenant that floods does to everybody else: the same world is played without it, with it where queues are
shared, and with it where whoever comes first is served first. Of what the flood would do to the others' first tokens,
no more than a stated share may be left, and less where who has more than its share leaves room.

It plays nothing, and asks no gateway: it goes by what clients saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from loadgen.report import RequestRecord, quantile
from loadgen.simulator.checkers import Broken
from loadgen.vocabulary import RequestEnd

MOVED_MAX_SHARE: Final = 1 / 3
"""That is stated of shared queues. Not nothing: no answer that has begun is preempted, so that one has to end first."""
MOVED_MAX_SHARE_WITH_ROOM: Final = 0.15
"""That is stated where `sharing.yields_above` has who floods leave room."""
P99: Final = 0.99
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One tenant, beside the one that floods: 99th percentiles of its first tokens."""

    tenant: str
    quiet_s: float
    """Without the flood."""
    fair_s: float
    """With it, where queues are shared."""
    first_come_s: float
    """With it, where they are not."""
    lost: int
    """Requests that failed where queues are shared."""

    @property
    def moved_share(self) -> float:
        """Of what the flood would do, what is left."""
        whole = self.first_come_s - self.quiet_s
        return (self.fair_s - self.quiet_s) / whole if whole > 0 else 0.0


def neighbours_of(
    flooder: str,
    *,
    quiet: Sequence[RequestRecord],
    fair: Sequence[RequestRecord],
    first_come: Sequence[RequestRecord],
    from_ns: int = 0,
) -> list[Neighbour]:
    """Each tenant but the one that floods; of what was asked after `from_ns`."""
    names = sorted({each.tenant for each in quiet} - {flooder})
    return [
        Neighbour(
            name,
            _p99_s(_of(name, quiet, from_ns)),
            _p99_s(_of(name, fair, from_ns)),
            _p99_s(_of(name, first_come, from_ns)),
            _failed(_of(name, fair, from_ns)),
        )
        for name in names
    ]


def check_neighbours(found: Iterable[Neighbour], *, at_most: float = MOVED_MAX_SHARE, at_ns: int = 0) -> None:
    """Raises Broken. `at_most`: what is stated of how they are shared."""
    for each in found:
        told = f"{each.tenant}: p99 {each.quiet_s:.3f} s without it, {each.fair_s:.3f} s beside it,"
        told += f" {each.first_come_s:.3f} s where it comes first; {each.lost} lost"
        if each.moved_share > at_most or each.lost:
            what = f"of what a flood does to others' first tokens, no more than {at_most:.0%} is left"
            raise Broken(at_ns, what, told)


def _of(tenant: str, records: Iterable[RequestRecord], from_ns: int) -> list[RequestRecord]:
    return [each for each in records if each.tenant == tenant and each.sent_ns >= from_ns]


def _failed(records: Iterable[RequestRecord]) -> int:
    return sum(each.end is not RequestEnd.COMPLETED for each in records)


def _p99_s(records: Iterable[RequestRecord]) -> float:
    waits = sorted(each.first_token_ns - each.sent_ns for each in records if each.first_token_ns is not None)
    return quantile(waits, P99) / _SECOND_NS if waits else 0.0
