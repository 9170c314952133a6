"""What other gateways say that they have used of budgets, and what that comes to. It reads no clock and sends nothing.

Of each gateway, budget and day the largest count that was ever heard holds (a grow-only counter, with a part for each
gateway): whatever comes late, twice or out of order changes nothing, and one that died is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gateway.core.vocabulary import GatewayId

BudgetName = tuple[str, str]
"""`("key", ID)` or `("tenant", NAME)`."""
KINDS = ("key", "tenant")


class BudgetUse(NamedTuple):
    """What one gateway says of one budget."""

    name: BudgetName
    day: str
    """2026-11-22, UTC; its month is meant as well."""
    tokens_in_day: int
    tokens_in_month: int
    set_aside: int = 0
    """For requests that run there now."""

    def joined(self, later: BudgetUse) -> BudgetUse:
        """Both words as one."""
        if later.day < self.day:
            return later.joined(self) if later.day[:7] == self.day[:7] else self
        in_month = later.tokens_in_month
        if later.day[:7] == self.day[:7]:
            in_month = max(in_month, self.tokens_in_month)
        in_day = max(later.tokens_in_day, self.tokens_in_day) if later.day == self.day else later.tokens_in_day
        return BudgetUse(self.name, later.day, in_day, in_month, later.set_aside)


class Used(NamedTuple):
    """By all others together."""

    in_day: int = 0
    in_month: int = 0
    set_aside: int = 0


NOTHING = Used()
TOLD_MAX = 40_000
"""Words that are kept, of all gateways and budgets: over it, no other is taken in."""

Told = Mapping[tuple[GatewayId, BudgetName], BudgetUse]


class OthersUsage:
    """The last word of each gateway on each budget."""

    def __init__(self, told_max: int = TOLD_MAX) -> None:
        self._told_max = told_max
        self._told: dict[BudgetName, dict[GatewayId, BudgetUse]] = {}
        self._count = 0
        self._forgotten_before = ""
        self._unwritten: dict[tuple[GatewayId, BudgetName], BudgetUse] = {}

    def __len__(self) -> int:
        return self._count

    def hear(self, gateway: GatewayId, use: BudgetUse) -> bool:
        """False: there is no room, and what it says does not count."""
        of_name = self._told.get(use.name, {})
        before = of_name.get(gateway)
        if before is None:
            if self._count >= self._told_max:
                return False
            self._count += 1
            self._told[use.name] = of_name
        of_name[gateway] = now = use if before is None else before.joined(use)
        if before is None or before[1:4] != now[1:4]:
            self._unwritten[gateway, use.name] = now
        return True

    def remember(self, told: Told) -> None:
        """What was written down before this process began: nothing of it runs any more. The newest first, as there may
        be no room for all."""
        for (gateway, _), use in sorted(told.items(), key=_day, reverse=True):
            self.hear(gateway, use._replace(set_aside=0))
        self._unwritten.clear()

    def forget_before(self, month: str) -> bool:
        """What was last said in an earlier one counts no more. It is looked for once a month; True: now."""
        if month <= self._forgotten_before:
            return False
        self._forgotten_before = month
        for name, of_name in list(self._told.items()):
            kept = {gateway: use for gateway, use in of_name.items() if use.day[:7] >= month}
            self._count -= len(of_name) - len(kept)
            if kept:
                self._told[name] = kept
            else:
                del self._told[name]
        return True

    def fell_silent(self, gateway: GatewayId) -> list[BudgetName]:
        """What it has used stays used; what ran there is not known any more. Gives what that is about."""
        changed = []
        for name, of_name in self._told.items():
            use = of_name.get(gateway)
            if use is not None and use.set_aside:
                of_name[gateway] = use._replace(set_aside=0)
                changed.append(name)
        return changed

    def used(self, name: BudgetName, day: str) -> Used:
        """In this day and its month. Whoever is already in the next one counts, too."""
        of_name = self._told.get(name)
        if of_name is None:
            return NOTHING
        uses = of_name.values()
        return Used(
            sum([use.tokens_in_day for use in uses if use.day >= day]),
            sum([use.tokens_in_month for use in uses if use.day[:7] >= day[:7]]),
            sum([use.set_aside for use in uses]),
        )

    def by_gateway(self, name: BudgetName) -> Mapping[GatewayId, BudgetUse]:
        return self._told.get(name, {})

    def keep_only(self, names: Iterable[BudgetName]) -> None:
        """Other budgets are none any more."""
        kept = set(names)
        for name in [each for each in self._told if each not in kept]:
            self._count -= len(self._told.pop(name))

    def take_unwritten(self) -> Told:
        """Whoever cannot write it gives it back."""
        unwritten, self._unwritten = self._unwritten, {}
        return unwritten

    def give_back(self, told: Told) -> None:
        self._unwritten = {**told, **self._unwritten}


def _day(told: tuple[tuple[GatewayId, BudgetName], BudgetUse]) -> str:
    return told[1].day
