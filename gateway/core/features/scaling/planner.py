"""Plan for one pool over all regions: which region should have more replicas, and which one may have fewer.

The needs of the regions are met by a maximum flow (`flows.py`): each region's own slots first, then slots of neighbours
that policy and distance allow. Let V(n, d) be how much of the demands d is met by n replicas.

    more     wherever one more would raise V(n, d): as many as it takes, at one region after another, each time the
             cheapest, and of equal ones the one whose own clients lack the most slots
    fewer    only if none is wanted anywhere: the region where removing one leaves V(n, d·(1 + slack)) as it is

With constant demands this comes to rest, and a removed replica is never asked for again: in a transport problem slots
and demands are complements, and slots are substitutes for each other (Shapley, On Network Flow Functions, 1961). So a
replica that is worthless at d·(1 + slack) is worthless at d, where V stays the same without it; and a replica that was
not worth adding beside it does not raise V after its removal either.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.features.scaling.flows import Flow
from gateway.core.features.scaling.vocabulary import WHOLE, RegionNeed
from gateway.core.value import value
from gateway.core.vocabulary import RegionName

_TRIED_MAX = 8
"""Most regions that one plan examines for a replica to remove."""


@value
class RegionPlan:
    """Plan for one region."""

    replicas: int
    """Planned replicas: the region's requested number or more, never fewer."""
    may_lose: bool
    """The next replica to be removed is one of this region's."""
    is_for_others: bool
    """Replicas were added for other regions, although the region's own clients lacked none."""
    borrowed: int
    """Slots of neighbours that the region's clients rely on, in thousandths."""
    lent: int
    missing: int
    """Slots that the region's clients need and that no region has or may add, in thousandths."""


def plan(needs: Sequence[RegionNeed], slack_share: float) -> dict[RegionName, RegionPlan]:
    """Plan for all regions; independent of the order of `needs`."""
    regions = sorted(needs, key=lambda each: each.region)
    counts = [min(max(each.replicas, each.least), each.most) for each in regions]
    before = list(counts)
    flow = _flow_of(regions, counts, 0.0)
    for_others = _grow(regions, counts, flow)
    loser = _loser(regions, counts, slack_share) if counts == before else None
    return {
        each.region: RegionPlan(
            counts[index],
            may_lose=loser == index,
            is_for_others=index in for_others,
            borrowed=sum(flow.used(other, 2 * index + 1) for other in range(len(regions)) if other != index),
            lent=sum(amount for demand, amount in flow.users(index).items() if demand // 2 != index),
            missing=flow.left[2 * index] + flow.left[2 * index + 1],
        )
        for index, each in enumerate(regions)
    }


def _flow_of(regions: Sequence[RegionNeed], counts: Sequence[int], slack_share: float) -> Flow:
    """Flow with two demands per region: the part that may not leave it, and the rest."""
    index_of = {each.region: index for index, each in enumerate(regions)}
    demands: list[int] = []
    ways: list[list[int]] = []
    for index, each in enumerate(regions):
        pinned = each.needed if each.is_alone else min(each.pinned, each.needed)
        more = 1.0 + slack_share
        demands += [round(pinned * more), round((each.needed - pinned) * more)]
        near = [] if each.is_alone else [index_of[way.region] for way in each.ways if way.region in index_of]
        ways += [[index], [index, *(other for other in dict.fromkeys(near) if other != index)]]
    return Flow(demands, ways, [_slots(each, count) for each, count in zip(regions, counts, strict=True)])


def _grow(regions: Sequence[RegionNeed], counts: list[int], flow: Flow) -> set[int]:
    """Add replicas to `counts` and `flow`. Return the indexes of the regions chosen for other regions' sake."""
    for_others: set[int] = set()
    reached = flow.settle()
    while choices := [index for index in reached if counts[index] < regions[index].most]:
        chosen = min(choices, key=lambda index: _order(regions[index], _own_left(flow, index)))
        if not _own_left(flow, chosen):
            for_others.add(chosen)
        slots = _slots(regions[chosen], 1)
        more = min(max(1, _left_near(flow, chosen) // slots), regions[chosen].most - counts[chosen])
        counts[chosen] += more
        flow.add(chosen, more * slots)
        reached = flow.settle()
    return for_others


def _loser(regions: Sequence[RegionNeed], counts: Sequence[int], slack_share: float) -> int | None:
    """Index of the region that may lose a replica, or None. The most expensive is tried first, then the one that uses
    the smallest part of its slots."""
    flow = _flow_of(regions, counts, slack_share)
    flow.settle()
    could = [index for index, each in enumerate(regions) if counts[index] > each.least]
    could.sort(key=lambda index: (-regions[index].price, -_idle(flow, regions, counts, index), index))
    for index in could[:_TRIED_MAX]:
        slots = _slots(regions[index], 1)
        if flow.room[index] >= slots:
            return index
        without = flow.copy()
        without.remove(index, slots)
        without.settle()
        if without.unmet == flow.unmet:
            return index
    return None


def _idle(flow: Flow, regions: Sequence[RegionNeed], counts: Sequence[int], index: int) -> float:
    return flow.room[index] / _slots(regions[index], counts[index])


def _order(need: RegionNeed, own_left: int) -> tuple[int, int, int, str]:
    return need.price, -own_left, -need.queue, need.region


def _own_left(flow: Flow, index: int) -> int:
    return flow.left[2 * index] + flow.left[2 * index + 1]


def _left_near(flow: Flow, supply: int) -> int:
    """Unmet part of the demands that could use the supply directly."""
    return sum(left for demand, left in enumerate(flow.left) if left and flow.may_use(demand, supply))


def _slots(need: RegionNeed, count: int) -> int:
    return count * need.concurrency * WHOLE
