"""Usage of clients by key, tenant and day, and the rest of their budgets. It reads no clock and does no I/O: usage to
be stored is handed over as rows.

Days and months are in UTC. The tokens that a request may use are reserved while it runs, so that concurrent requests do
not overrun a budget of which little is left; only the tokens used are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import NamedTuple

from gateway.core.allowance import TRY_AGAIN_NS
from gateway.core.vocabulary import GatewayId, TenantName
from gateway.records.peer_usage import KINDS, NOTHING, BudgetName, BudgetUse, OthersUsage, OthersUsed
from gateway.request.callers import NO_BUDGET, Budget, KeyId

ACCOUNTS_MAX = 40_000
"""Maximum of accounts, keys and tenants together; beyond it, the oldest without a budget and without running requests
is dropped."""
UNWRITTEN_MAX = 100_000
"""Maximum of rows waiting to be stored; further usage is added to a row of the tenant `(others)`."""
OTHERS = TenantName("(others)")
_DAY_NS = 86_400_000_000_000


class UsageKey(NamedTuple):
    """Key of a row."""

    day: str
    """Day in UTC, such as 2026-11-22."""
    key: KeyId
    """Empty where clients need no key."""
    tenant: TenantName


@dataclass(slots=True)
class UsageAmounts:
    """Usage of a row."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that an engine had in its cache."""
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    def add(self, other: UsageAmounts) -> None:
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.output_tokens += other.output_tokens


Rows = Mapping[UsageKey, UsageAmounts]


@dataclass(slots=True)
class UsageAccount:
    """Usage of one key or one tenant in the current day and month."""

    name: BudgetName
    budget: Budget = NO_BUDGET
    day: str = ""
    tokens_in_day: int = 0
    tokens_in_month: int = 0
    set_aside: int = 0
    """Tokens reserved for running requests."""
    held_before: int = 0
    """Part of `set_aside` that belongs to requests in the process that this one took over from."""
    by_others: OthersUsed = NOTHING
    """Usage at other gateways, as far as reported."""

    left: tuple[str, int, int] = ("", 0, 0)
    """Day that the clock left last, with the tokens used in that day and in its month."""

    def turn(self, day: str) -> None:
        """Change to another day. A clock that returns to the day it left finds that day's usage again, and the usage of
        the meantime is added."""
        if day == self.day:
            return
        left, self.left = self.left, (self.day, self.tokens_in_day, self.tokens_in_month)
        if day == left[0]:
            self.tokens_in_month = left[2] + self.tokens_in_day
            self.tokens_in_day += left[1]
        else:
            self.tokens_in_day = 0
            self.tokens_in_month = self.tokens_in_month if day[:7] == self.day[:7] else 0
        self.day = day

    def is_spent(self, of: int, used: int) -> bool:
        return used + self.set_aside + self.by_others.set_aside >= of

    def wait_ns(self, of: int, used: int, period_ns: int) -> int:
        """Earliest time at which some of the budget may be left: reservations of running requests may be refunded."""
        return period_ns if used >= of else min(period_ns, TRY_AGAIN_NS)


class Spent(NamedTuple):
    """Refusal because a budget is used up."""

    whose: str
    """Either `key` or `tenant`."""
    period: str
    """Either `day` or `month`."""
    budget: int
    wait_ns: int
    """Time until the period is over or, where running requests hold the rest of the budget, until one may end."""


class UsageBook:
    """Accounts of one gateway, with the other gateways' reports on shared budgets."""

    def __init__(self, accounts_max: int = ACCOUNTS_MAX, unwritten_max: int = UNWRITTEN_MAX) -> None:
        self.others = OthersUsage()
        self.is_unknown = False
        """True while usage from before this process cannot be read: no budget is known to have anything left."""
        self._accounts_max = accounts_max
        self._unwritten_max = unwritten_max
        self._budgets: Mapping[BudgetName, Budget] = {}
        self._version = 0
        self._changed: dict[BudgetName, int] = {}
        """Accounts with a budget and the version of their last change, in the order of that change."""
        self._accounts: dict[BudgetName, UsageAccount] = {}
        self._pairs: dict[tuple[KeyId, TenantName], tuple[UsageAccount, UsageAccount]] = {}
        self._unwritten: dict[UsageKey, UsageAmounts] = {}
        self._today = ("", 0)
        """Current day and the time at which it ends."""

    def __len__(self) -> int:
        return len(self._accounts)

    def remember(self, rows: Rows, wall_ns: int) -> None:
        """Load stored rows of earlier processes; only those of the current month count."""
        day = self._day(wall_ns)
        for line, used in rows.items():
            if line.day[:7] != day[:7]:
                continue
            for account in self._pair(line.key, line.tenant):
                self._count(account, line.day, used.tokens, wall_ns)

    def spent(self, key: KeyId, tenant: TenantName, budgets: tuple[Budget, Budget], wall_ns: int) -> Spent | None:
        """First budget, of the key or of the tenant, that is used up, running requests included; None if there is
        none."""
        if budgets[0] is NO_BUDGET and budgets[1] is NO_BUDGET:
            return None
        day = self._day(wall_ns)
        for whose, account, budget in zip(KINDS, self._pair(key, tenant), budgets, strict=True):
            self._turn(account, day)
            account.budget = budget
            others = account.by_others
            most, used = budget.tokens_per_day, account.tokens_in_day + others.in_day
            if most is not None and account.is_spent(most, used):
                return Spent(whose, "day", most, account.wait_ns(most, used, self._today[1] - wall_ns))
            most, used = budget.tokens_per_month, account.tokens_in_month + others.in_month
            if most is not None and account.is_spent(most, used):
                return Spent(whose, "month", most, account.wait_ns(most, used, _month_end_ns(day) - wall_ns))
        return None

    def set_aside(self, key: KeyId, tenant: TenantName, tokens: int) -> None:
        for account in self._pair(key, tenant):
            account.set_aside += tokens
            if account.budget is not NO_BUDGET:
                self._note_change(account)

    def settle(self, key: KeyId, tenant: TenantName, set_aside: int, used: UsageAmounts, wall_ns: int) -> None:
        """Count a finished request's usage on the day on which it ended, and release its reservation."""
        day, tokens = self._day(wall_ns), used.tokens
        for account in self._pair(key, tenant):
            if account.day != day:
                self._turn(account, day)
            account.set_aside = max(0, account.set_aside - set_aside)
            account.tokens_in_day += tokens
            account.tokens_in_month += tokens
            if account.budget is not NO_BUDGET:
                self._note_change(account)
        self._write(UsageKey(day, key, tenant), used)

    def take_rows(self) -> dict[UsageKey, UsageAmounts]:
        """Return and clear the rows to be stored. A caller that cannot store them calls `give_back`."""
        rows, self._unwritten = self._unwritten, {}
        return rows

    def give_back(self, rows: Rows) -> None:
        for line, used in rows.items():
            self._write(line, used)

    # Hand-over between two processes

    def held(self) -> dict[BudgetName, int]:
        """Reservations of running requests by budget; accounts without a budget or a reservation are left out."""
        return {
            name: each.set_aside for name, each in self._accounts.items() if each.set_aside and each.budget != NO_BUDGET
        }

    def take_over(self, rows: Rows, held: Mapping[BudgetName, int], wall_ns: int) -> None:
        """Count and store requests that ended in the predecessor process. `held` is all that its running requests still
        reserve."""
        for line, used in rows.items():
            for account in self._pair(line.key, line.tenant):
                self._count(account, line.day, used.tokens, wall_ns)
            self._write(line, used)
        before = [name for name, each in self._accounts.items() if each.held_before]
        for name in dict.fromkeys((*before, *held)):
            account = self._account(name)
            account.set_aside += held.get(name, 0) - account.held_before
            account.held_before = held.get(name, 0)
            self._note_change(account)

    def _count(self, account: UsageAccount, day: str, tokens: int, wall_ns: int) -> None:
        today = self._day(wall_ns)
        self._turn(account, today)
        account.tokens_in_day += tokens if day == today else 0
        account.tokens_in_month += tokens if day[:7] == today[:7] else 0
        if account.budget is not NO_BUDGET:
            self._note_change(account)

    # Exchange with other gateways

    def follow_budgets(self, budgets: Mapping[BudgetName, Budget]) -> None:
        """Set the budgets in force. Accounts that have usage already are reported as changed."""
        self.others.keep_only(budgets)
        self._budgets = budgets
        self._changed.clear()
        for name, account in self._accounts.items():
            account.budget = budgets.get(name, NO_BUDGET)
            if account.budget is not NO_BUDGET and (account.tokens_in_month or account.set_aside):
                self._note_change(account)

    def changes_since(self, seen: int, wall_ns: int, changes_max: int) -> tuple[list[BudgetUse], int]:
        """Reports on accounts with a budget that changed after version `seen`, at most `changes_max`, oldest change
        first; and the version that the reports reach. `seen` 0: all accounts."""
        if self._version == seen:
            return [], seen
        day = self._day(wall_ns)
        names = list(takewhile(lambda name: self._changed[name] > seen, reversed(self._changed)))
        told = names[: -changes_max - 1 : -1]
        uses = [self._use_of(self._accounts[name], day) for name in told if name in self._accounts]
        return uses, self._changed[told[-1]] if told else self._version

    def hear(self, gateway: GatewayId, use: BudgetUse, wall_ns: int) -> bool:
        """Take a report of another gateway. False if there is no room for it, even after dropping the reports of
        earlier months."""
        is_kept = self.others.hear(gateway, use)
        if not is_kept and self.others.forget_before(self._day(wall_ns)[:7]):
            is_kept = self.others.hear(gateway, use)
        self._sum_others(use.name, wall_ns)
        return is_kept

    def fell_silent(self, gateway: GatewayId, wall_ns: int) -> None:
        for name in self.others.fell_silent(gateway):
            self._sum_others(name, wall_ns)

    def _sum_others(self, name: BudgetName, wall_ns: int) -> None:
        account = self._account(name)
        day = self._day(wall_ns)
        self._turn(account, day)
        account.by_others = self.others.used(name, day)

    def _turn(self, account: UsageAccount, day: str) -> None:
        if account.day != day:
            account.turn(day)
            account.by_others = self.others.used(account.name, day)

    def _use_of(self, account: UsageAccount, day: str) -> BudgetUse:
        self._turn(account, day)
        return BudgetUse(account.name, day, account.tokens_in_day, account.tokens_in_month, set_aside=account.set_aside)

    def _note_change(self, account: UsageAccount) -> None:
        self._version += 1
        self._changed.pop(account.name, None)
        self._changed[account.name] = self._version

    # Internals

    def _write(self, line: UsageKey, used: UsageAmounts) -> None:
        row = self._unwritten.get(line)
        if row is None:
            if len(self._unwritten) >= self._unwritten_max:
                line = UsageKey(line.day, KeyId(""), OTHERS)
            row = self._unwritten.setdefault(line, UsageAmounts())
        row.add(used)

    def _pair(self, key: KeyId, tenant: TenantName) -> tuple[UsageAccount, UsageAccount]:
        """Accounts of the key and of the tenant; looked up for each request, nearly always from the cache."""
        pair = self._pairs.get((key, tenant))
        if pair is None:
            if len(self._pairs) >= self._accounts_max:
                self._pairs.clear()
            pair = self._account(("key", key)), self._account(("tenant", tenant))
            self._pairs[key, tenant] = pair
        return pair

    def _account(self, name: BudgetName) -> UsageAccount:
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = UsageAccount(name, self._budgets.get(name, NO_BUDGET))
            if len(self._accounts) > self._accounts_max:
                self._forget_one()
        return account

    def _forget_one(self) -> None:
        newest = next(reversed(self._accounts))
        idle = (
            name
            for name, each in self._accounts.items()
            if not each.set_aside and each.budget == NO_BUDGET and name != newest
        )
        oldest = next(idle, None)
        if oldest is not None:
            del self._accounts[oldest]
            self._pairs.clear()  # a cached pair may hold the dropped account

    def _day(self, wall_ns: int) -> str:
        day, end_ns = self._today
        if not end_ns - _DAY_NS <= wall_ns < end_ns:
            number = wall_ns // _DAY_NS
            day = f"{datetime.fromtimestamp(number * 86_400, UTC):%Y-%m-%d}"
            self._today = day, (number + 1) * _DAY_NS
        return day


def _month_end_ns(day: str) -> int:
    first = datetime.strptime(day[:7], "%Y-%m").replace(tzinfo=UTC)
    return int((first + timedelta(days=32)).replace(day=1).timestamp()) * 1_000_000_000
