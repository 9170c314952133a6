"""Budget usage reported by other gateways, and its sums. It reads no clock and sends nothing.

For each gateway, budget and day the largest count ever received is valid (a grow-only counter with one part per
gateway). Late, repeated or reordered reports change nothing, and the usage of a gateway that died is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gateway.core.vocabulary import GatewayId

BudgetName = tuple[str, str]
"""`("key", ID)` or `("tenant", NAME)`."""
KINDS = ("key", "tenant")


class BudgetUse(NamedTuple):
    """Report of one gateway on one budget."""

    name: BudgetName
    day: str
    """Day in UTC, such as 2026-11-22; `tokens_in_month` is of this day's month."""
    tokens_in_day: int
    tokens_in_month: int
    set_aside: int = 0
    """Tokens reserved for requests that run at that gateway."""

    def joined(self, later: BudgetUse) -> BudgetUse:
        """Merge of two reports of one gateway: the larger counts where their days or months are the same, else the
        later report's."""
        if later.day < self.day:
            return later.joined(self) if later.day[:7] == self.day[:7] else self
        in_month = later.tokens_in_month
        if later.day[:7] == self.day[:7]:
            in_month = max(in_month, self.tokens_in_month)
        in_day = max(later.tokens_in_day, self.tokens_in_day) if later.day == self.day else later.tokens_in_day
        return BudgetUse(self.name, later.day, in_day, in_month, later.set_aside)


class OthersUsed(NamedTuple):
    """Usage by all other gateways together."""

    in_day: int = 0
    in_month: int = 0
    set_aside: int = 0


NOTHING = OthersUsed()
TOLD_MAX = 40_000
"""Maximum of stored reports over all gateways and budgets; beyond it, a new gateway's or budget's report is
rejected."""

Told = Mapping[tuple[GatewayId, BudgetName], BudgetUse]


class OthersUsage:
    """Last merged report of each gateway on each budget."""

    def __init__(self, told_max: int = TOLD_MAX) -> None:
        self._told_max = told_max
        self._told: dict[BudgetName, dict[GatewayId, BudgetUse]] = {}
        self._count = 0
        self._forgotten_before = ""
        self._unwritten: dict[tuple[GatewayId, BudgetName], BudgetUse] = {}

    def __len__(self) -> int:
        return self._count

    def hear(self, gateway: GatewayId, use: BudgetUse) -> bool:
        """Merge a report. False if there is no room for it; it does not count then."""
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
        """Load reports that were stored before this process began; their reservations are dropped, since nothing of
        that time is known to run. The newest are loaded first, as there may be no room for all."""
        for (gateway, _), use in sorted(told.items(), key=_day, reverse=True):
            self.hear(gateway, use._replace(set_aside=0))
        self._unwritten.clear()

    def forget_before(self, month: str) -> bool:
        """Drop reports whose day lies in an earlier month. It searches once per month; returns True when it has
        searched."""
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
        """Drop a silent gateway's reservations and keep what it has used. Returns the budgets that changed."""
        changed = []
        for name, of_name in self._told.items():
            use = of_name.get(gateway)
            if use is not None and use.set_aside:
                of_name[gateway] = use._replace(set_aside=0)
                changed.append(name)
        return changed

    def used(self, name: BudgetName, day: str) -> OthersUsed:
        """Usage in the day and its month. Reports of a later day or month count too."""
        of_name = self._told.get(name)
        if of_name is None:
            return NOTHING
        uses = of_name.values()
        return OthersUsed(
            sum([use.tokens_in_day for use in uses if use.day >= day]),
            sum([use.tokens_in_month for use in uses if use.day[:7] >= day[:7]]),
            sum([use.set_aside for use in uses]),
        )

    def by_gateway(self, name: BudgetName) -> Mapping[GatewayId, BudgetUse]:
        return self._told.get(name, {})

    def keep_only(self, names: Iterable[BudgetName]) -> None:
        """Drop reports on all other budgets."""
        kept = set(names)
        for name in [each for each in self._told if each not in kept]:
            self._count -= len(self._told.pop(name))

    def take_unwritten(self) -> Told:
        """Return and clear the reports that are not stored yet. A caller that cannot store them calls `give_back`."""
        unwritten, self._unwritten = self._unwritten, {}
        return unwritten

    def give_back(self, told: Told) -> None:
        self._unwritten = {**told, **self._unwritten}


def _day(told: tuple[tuple[GatewayId, BudgetName], BudgetUse]) -> str:
    return told[1].day
