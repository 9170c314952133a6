"""Divide a limit that several gateways enforce together, by the demand that each reports.

Each gateway computes the shares for itself; gateways with the same reports compute the same shares, whose sum never
exceeds the limit. The computation knows no gateway identities and sends nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

_STEPS_MAX: Final = 64


def floor_of(limit: int, count: int, rank: int, floor_share: float) -> int:
    """Amount that one of `count` gateways may always use, whatever the others report: an equal part of `floor_share` of
    the limit; where that is less than one, one for each of the first `limit` ranks. All floors together never exceed
    the limit."""
    equal = int(limit * floor_share) // count
    return equal or (1 if rank < limit else 0)


def shares_of(limit: int, demands: Sequence[int], floors: Sequence[int]) -> list[int]:
    """Each gateway's share of the limit, in rank order.

    If the sum of demands fits, each gateway gets its demand and an equal part of the remainder, as room for new
    requests. Otherwise each gets its floor, up to its demand, and the rest is divided in proportion to the demand above
    the floor. A demand is capped at the limit, so that an exaggerated demand takes no other gateway's floor. The shares
    sum to the limit.
    """
    asked = [min(max(demand, 0), limit) for demand in demands]
    left = limit - sum(asked)
    if left >= 0:
        shares = [each + left // len(asked) for each in asked]
    else:
        firm = [min(demand, floor) for demand, floor in zip(asked, floors, strict=True)]
        rest, beyond = limit - sum(firm), sum(asked) - sum(firm)
        shares = [each + rest * (demand - each) // beyond for each, demand in zip(firm, asked, strict=True)]
    return _with_rest(limit, shares, asked)


def _with_rest(limit: int, shares: list[int], asked: Sequence[int]) -> list[int]:
    """Shares with the remainder of the division added one by one, first to gateways with a demand."""
    rest = limit - sum(shares)
    if rest:
        order = [at for at, demand in enumerate(asked) if demand] + [
            at for at, demand in enumerate(asked) if not demand
        ]
        for at in order[:rest]:
            shares[at] += 1
    return shares


class SlowGrowth:
    """A share that shrinks at once and grows with delay: only to a value computed before the last report that all other
    gateways have received, so that a gateway that has to give way has done so before the increase is used."""

    __slots__ = ("_seen", "share")

    def __init__(self, share: int, now_ns: int) -> None:
        self.share = share
        self._seen: deque[tuple[int, int]] = deque(((now_ns, share),))
        """Steps (time, share): since that time no smaller share was computed. Both rise; at most `_STEPS_MAX` steps."""

    def follow(self, share: int, now_ns: int, heard_ns: int) -> None:
        """Follow a newly computed share. `heard_ns`: reports sent before this time have reached all other gateways."""
        seen, since_ns = self._seen, now_ns
        while seen and seen[-1][1] > share:
            since_ns = seen.pop()[0]
        if not seen or seen[-1][1] < share:
            seen.append((since_ns, share))
            if len(seen) > _STEPS_MAX:
                del seen[1]  # the range between two steps counts from the later one
        while len(seen) > 1 and seen[1][0] <= heard_ns:
            seen.popleft()
        self.share = seen[0][1]
