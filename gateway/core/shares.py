"""How a limit that several gateways keep together is divided among them, by what each says that it needs.

Each gateway works this out for itself; those that have heard the same come to the same, and their shares are never
more than the limit. Nothing here knows who they are, or sends anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

_STEPS_MAX: Final = 64


def floor_of(limit: int, count: int, rank: int, floor_share: float) -> int:
    """What one of so many gateways may use at once, whatever the others say: an equal part of `floor_share` of the
    limit, but one at least as far as the limit goes round. Over all ranks they are never more than the limit."""
    equal = int(limit * floor_share) // count
    return equal or (1 if rank < limit else 0)


def shares_of(limit: int, demands: Sequence[int], floors: Sequence[int]) -> list[int]:
    """Each gateway's part of the limit, in the order of their ranks.

    While all demands fit, each has its own and an equal part of what is left, so that whoever comes next finds room.
    Else each has its floor, as far as it asks for it, and the rest is divided in proportion to what is asked for
    beyond. A demand counts for no more than the limit: who exaggerates takes nobody's floor. The sum is the limit.
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
    """What division left over goes to the first, of those who ask for anything before the others."""
    rest = limit - sum(shares)
    if rest:
        order = [at for at, demand in enumerate(asked) if demand] + [
            at for at, demand in enumerate(asked) if not demand
        ]
        for at in order[:rest]:
            shares[at] += 1
    return shares


class SlowGrowth:
    """A share that shrinks at once and grows late: only to what was worked out when all others have heard of it since,
    so that whoever has to give something up has done so before it is used here."""

    __slots__ = ("_seen", "share")

    def __init__(self, share: int, now_ns: int) -> None:
        self.share = share
        self._seen: deque[tuple[int, int]] = deque(((now_ns, share),))
        """Since when nothing less than this was worked out. Both rise; at most `_STEPS_MAX`."""

    def follow(self, share: int, now_ns: int, heard_ns: int) -> None:
        """`heard_ns`: what was told before that, all others have taken in."""
        seen, since_ns = self._seen, now_ns
        while seen and seen[-1][1] > share:
            since_ns = seen.pop()[0]
        if not seen or seen[-1][1] < share:
            seen.append((since_ns, share))
            if len(seen) > _STEPS_MAX:
                del seen[1]  # what is between two steps comes with the later one
        while len(seen) > 1 and seen[1][0] <= heard_ns:
            seen.popleft()
        self.share = seen[0][1]
