"""Effect of one tenant's flood on the other tenants, from three runs of the same world: without the flood, with it
under fair queuing, and with it under first come, first served. Fair queuing may leave at most a stated share of the
delay that the flood adds to the others' first tokens, and less where a tenant above its share leaves room for others.

It runs no world and asks no gateway: it compares what clients recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from loadgen.report import RequestReport, quantile
from loadgen.simulator.checkers import Broken
from loadgen.vocabulary import RequestEnd

MOVED_MAX_SHARE: Final = 1 / 3
"""Maximum share stated for fair queuing. It is not zero, because an answer that has begun is not preempted and has to
end first."""
MOVED_MAX_SHARE_WITH_ROOM: Final = 0.15
"""Maximum share stated where `sharing.yields_above` makes the flooding tenant leave room."""
P99: Final = 0.99
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One tenant beside the flooding one: 99th percentiles of its times to first token."""

    tenant: str
    quiet_s: float
    """Percentile without the flood, in seconds."""
    fair_s: float
    """Percentile with the flood under fair queuing, in seconds."""
    first_come_s: float
    """Percentile with the flood under first come, first served, in seconds."""
    lost: int
    """Requests that failed under fair queuing."""

    @property
    def moved_share(self) -> float:
        """Share of the flood's delay that remains under fair queuing."""
        whole = self.first_come_s - self.quiet_s
        return (self.fair_s - self.quiet_s) / whole if whole > 0 else 0.0


def neighbours_of(
    flooder: str,
    *,
    quiet: Sequence[RequestReport],
    fair: Sequence[RequestReport],
    first_come: Sequence[RequestReport],
    from_ns: int = 0,
) -> list[Neighbour]:
    """Every tenant but the flooding one, over requests sent at or after `from_ns`."""
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
    """Check every tenant's remaining share of the delay and its failures. `at_most`: the stated share. Raises
    Broken."""
    for each in found:
        told = f"{each.tenant}: p99 {each.quiet_s:.3f} s without it, {each.fair_s:.3f} s beside it,"
        told += f" {each.first_come_s:.3f} s where it comes first; {each.lost} lost"
        if each.moved_share > at_most or each.lost:
            what = f"of what a flood does to others' first tokens, no more than {at_most:.0%} is left"
            raise Broken(at_ns, what, told)


def _of(tenant: str, records: Iterable[RequestReport], from_ns: int) -> list[RequestReport]:
    return [each for each in records if each.tenant == tenant and each.sent_ns >= from_ns]


def _failed(records: Iterable[RequestReport]) -> int:
    return sum(each.end is not RequestEnd.COMPLETED for each in records)


def _p99_s(records: Iterable[RequestReport]) -> float:
    waits = sorted(each.first_token_ns - each.sent_ns for each in records if each.first_token_ns is not None)
    return quantile(waits, P99) / _SECOND_NS if waits else 0.0
