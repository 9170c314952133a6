"""Budgets of keys and tenants, which all gateways of a mesh use up together: selects the usage that each peer is told,
and records what peers report. It reads no file and sends no message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from gateway.core.kernel.residency import ResidencyPolicy, processing_rule
from gateway.core.vocabulary import GatewayId, Place, TenantName
from gateway.records.budget_metrics import BudgetLevels
from gateway.records.peer_usage import BudgetName, BudgetUse, OthersUsed
from gateway.records.usage_book import UsageBook
from gateway.security.keyring import Keyring
from mesh.clock import Clock

USES_MAX = 256
"""Budget reports in one heartbeat."""
_SECOND_NS = 1_000_000_000


class Budgets:
    """Budget usage told to peers and heard from them. Without budgets here, no usage is told or kept."""

    def __init__(
        self, book: UsageBook, keyring: Keyring | None, clock: Clock, is_failing: Callable[[], bool] = lambda: False
    ) -> None:
        """`is_failing` tells if usage here would be lost with this process."""
        self._book = book
        self._is_failing = is_failing
        self._keyring = keyring
        self._clock = clock
        self._tenants: dict[BudgetName, TenantName] = {}
        """Tenant of each budget."""
        self.not_kept = 0
        """Reports of peers that were dropped: for a day far from this clock's, or for want of room."""

    def begin(self) -> None:
        """Follow the keyring's budgets, once earlier usage is loaded."""
        if self._keyring is not None:
            self._keyring.follow(self._follow_keys)
            self._follow_keys()

    def told_to(self, place: Place | None, policy: ResidencyPolicy, seen: int) -> tuple[Sequence[BudgetUse], int]:
        """Changes since `seen` that a gateway in `place` may know; and the position up to which it has seen them."""
        uses, seen = self._book.changes_since(seen, self._clock.wall_ns(), USES_MAX)
        return [each for each in uses if self._may_be_known(each.name, place, policy)], seen

    def hear(self, gateway: GatewayId, uses: Sequence[BudgetUse]) -> None:
        wall_ns = self._clock.wall_ns()
        days = _days_around(wall_ns)
        for use in uses:
            if use.name not in self._tenants:
                continue  # no budget here: keys files may differ
            if use.day not in days or not self._book.hear(gateway, use, wall_ns):
                self.not_kept += 1

    def fell_silent(self, gateway: GatewayId) -> None:
        self._book.fell_silent(gateway, self._clock.wall_ns())

    def levels(self) -> BudgetLevels:
        """Figures for the metrics page."""
        return BudgetLevels(lambda: len(self._book.others), lambda: self.not_kept, self._is_failing)

    def by_others(self, name: BudgetName) -> OthersUsed:
        """Usage of a budget by other gateways in this day and month."""
        return self._book.others.used(name, _days_around(self._clock.wall_ns())[1])

    def _may_be_known(self, name: BudgetName, place: Place | None, policy: ResidencyPolicy) -> bool:
        tenant = self._tenants.get(name)
        return tenant is not None and place is not None and processing_rule(policy, tenant).allows(place)

    def _follow_keys(self) -> None:
        assert self._keyring is not None, "it has told of a change"
        budgets = self._keyring.budgets()
        self._tenants = {name: tenant for name, (_, tenant) in budgets.items()}
        self._book.follow_budgets({name: budget for name, (budget, _) in budgets.items()})


def _days_around(wall_ns: int) -> tuple[str, str, str]:
    """Yesterday, today and tomorrow (UTC): the days that peers' clocks may take for today."""
    now = datetime.fromtimestamp(wall_ns // _SECOND_NS, UTC)
    yesterday, today, tomorrow = (f"{now + timedelta(days=days):%Y-%m-%d}" for days in (-1, 0, 1))
    return yesterday, today, tomorrow
