"""What clients used, by key, tenant and day, and whether anything is left of a budget. It reads no clock, and waits for
nobody: what has to last is handed over in rows, to whoever writes them down.

Days and months are those of UTC. What a request may use is set aside while it runs, so that many at once do not go
through a budget of which little is left; only what it has used is written down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import NamedTuple

from gateway.core.limits import TRY_AGAIN_NS
from gateway.core.vocabulary import GatewayId, TenantName
from gateway.records.others_usage import KINDS, NOTHING, BudgetName, BudgetUse, OthersUsage
from gateway.records.others_usage import Used as UsedByOthers
from gateway.request.callers import NO_BUDGET, Budget, KeyId

ACCOUNTS_MAX = 40_000
"""Of keys and tenants together: over it, the oldest is forgotten that has no budget and nothing running."""
UNWRITTEN_MAX = 100_000
"""Rows that wait to be written. What comes on top of them counts for nobody by name."""
OTHERS = TenantName("(others)")
_DAY_NS = 86_400_000_000_000


class Line(NamedTuple):
    """What a row is about."""

    day: str
    """2026-11-22"""
    key: KeyId
    """Empty where clients need none."""
    tenant: TenantName


@dataclass(slots=True)
class Used:
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens, those that an engine had in its cache."""
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    def add(self, other: Used) -> None:
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.output_tokens += other.output_tokens


Rows = Mapping[Line, Used]


@dataclass(slots=True)
class Account:
    """What one key or one tenant has used in this day and this month."""

    name: BudgetName
    budget: Budget = NO_BUDGET
    day: str = ""
    tokens_in_day: int = 0
    tokens_in_month: int = 0
    set_aside: int = 0
    """By requests that run now."""
    held_before: int = 0
    """Of that, by those that run in the process which this one took over from."""
    by_others: UsedByOthers = NOTHING
    """At other gateways, as far as they have told."""

    left: tuple[str, int, int] = ("", 0, 0)
    """The day before the clock's last turn to another one, and what had been used in it and in its month."""

    def turn(self, day: str) -> None:
        """A clock that goes back to the day that it left finds what was used there, and in the meantime besides."""
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
    """A budget of which nothing is left."""

    whose: str
    """`key` or `tenant`."""
    period: str
    """`day` or `month`."""
    budget: int
    wait_ns: int
    """Time until the period is over or, where running requests hold the rest of the budget, until one may end."""


class UsageBook:
    """All of one gateway's, and of budgets what others say that they have used of them."""

    def __init__(self, accounts_max: int = ACCOUNTS_MAX, unwritten_max: int = UNWRITTEN_MAX) -> None:
        self.others = OthersUsage()
        self.is_unknown = False
        """What was used before this process began cannot be read yet: no budget is known to have anything left."""
        self._accounts_max = accounts_max
        self._unwritten_max = unwritten_max
        self._budgets: Mapping[BudgetName, Budget] = {}
        self._version = 0
        self._changed: dict[BudgetName, int] = {}
        """Accounts with a budget, and when each last changed; the last to change comes last."""
        self._accounts: dict[BudgetName, Account] = {}
        self._pairs: dict[tuple[KeyId, TenantName], tuple[Account, Account]] = {}
        self._unwritten: dict[Line, Used] = {}
        self._today = ("", 0)
        """The day, and the moment at which it ends."""

    def __len__(self) -> int:
        return len(self._accounts)

    def remember(self, rows: Rows, wall_ns: int) -> None:
        """What was written down before this process began; only this month's counts."""
        day = self._day(wall_ns)
        for line, used in rows.items():
            if line.day[:7] != day[:7]:
                continue
            for account in self._pair(line.key, line.tenant):
                self._count(account, line.day, used.tokens, wall_ns)

    def spent(self, key: KeyId, tenant: TenantName, budgets: tuple[Budget, Budget], wall_ns: int) -> Spent | None:
        """The first budget, of the key or of the tenant, of which nothing is left; what runs now counts as used."""
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

    def settle(self, key: KeyId, tenant: TenantName, set_aside: int, used: Used, wall_ns: int) -> None:
        """A request is over: what it has used counts for the day on which it ended."""
        day, tokens = self._day(wall_ns), used.tokens
        for account in self._pair(key, tenant):
            self._turn(account, day)
            account.set_aside = max(0, account.set_aside - set_aside)
            account.tokens_in_day += tokens
            account.tokens_in_month += tokens
            if account.budget is not NO_BUDGET:
                self._note_change(account)
        self._write(Line(day, key, tenant), used)

    def take_rows(self) -> dict[Line, Used]:
        """What is still to be written down. Whoever cannot write it gives it back."""
        rows, self._unwritten = self._unwritten, {}
        return rows

    def give_back(self, rows: Rows) -> None:
        for line, used in rows.items():
            self._write(line, used)

    # Between the two processes of a hand-over

    def held(self) -> dict[BudgetName, int]:
        """What requests that run now hold of budgets; only of those that hold any."""
        return {
            name: each.set_aside for name, each in self._accounts.items() if each.set_aside and each.budget != NO_BUDGET
        }

    def take_over(self, rows: Rows, held: Mapping[BudgetName, int], wall_ns: int) -> None:
        """Requests of the process before have ended, and are counted and written down as this one's own; `held` is all
        that those hold which still run there."""
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

    def _count(self, account: Account, day: str, tokens: int, wall_ns: int) -> None:
        today = self._day(wall_ns)
        self._turn(account, today)
        account.tokens_in_day += tokens if day == today else 0
        account.tokens_in_month += tokens if day[:7] == today[:7] else 0
        if account.budget is not NO_BUDGET:
            self._note_change(account)

    # What others are told, and what they tell

    def follow_budgets(self, budgets: Mapping[BudgetName, Budget]) -> None:
        """What has a budget now. What was used of it before is told as well."""
        self.others.keep_only(budgets)
        self._budgets = budgets
        self._changed.clear()
        for name, account in self._accounts.items():
            account.budget = budgets.get(name, NO_BUDGET)
            if account.budget is not NO_BUDGET and (account.tokens_in_month or account.set_aside):
                self._note_change(account)

    def changes_since(self, seen: int, wall_ns: int, changes_max: int) -> tuple[list[BudgetUse], int]:
        """Of accounts with a budget, those that changed later than `seen`, the oldest change first, and what is seen
        with them. 0: all."""
        if self._version == seen:
            return [], seen
        day = self._day(wall_ns)
        names = list(takewhile(lambda name: self._changed[name] > seen, reversed(self._changed)))
        told = names[: -changes_max - 1 : -1]
        uses = [self._use_of(self._accounts[name], day) for name in told if name in self._accounts]
        return uses, self._changed[told[-1]] if told else self._version

    def hear(self, gateway: GatewayId, use: BudgetUse, wall_ns: int) -> bool:
        """False: there is no room for what it says, not even without the words of those who were last heard in an
        earlier month."""
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

    def _turn(self, account: Account, day: str) -> None:
        if account.day != day:
            account.turn(day)
            account.by_others = self.others.used(account.name, day)

    def _use_of(self, account: Account, day: str) -> BudgetUse:
        self._turn(account, day)
        return BudgetUse(account.name, day, account.tokens_in_day, account.tokens_in_month, set_aside=account.set_aside)

    def _note_change(self, account: Account) -> None:
        self._version += 1
        self._changed.pop(account.name, None)
        self._changed[account.name] = self._version

    # Inside

    def _write(self, line: Line, used: Used) -> None:
        row = self._unwritten.get(line)
        if row is None:
            if len(self._unwritten) >= self._unwritten_max:
                line = Line(line.day, KeyId(""), OTHERS)
            row = self._unwritten.setdefault(line, Used())
        row.add(used)

    def _pair(self, key: KeyId, tenant: TenantName) -> tuple[Account, Account]:
        """Of the key and of the tenant; looked up for each request, and nearly always known."""
        pair = self._pairs.get((key, tenant))
        if pair is None:
            if len(self._pairs) >= self._accounts_max:
                self._pairs.clear()
            pair = self._account(("key", key)), self._account(("tenant", tenant))
            self._pairs[key, tenant] = pair
        return pair

    def _account(self, name: BudgetName) -> Account:
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = Account(name, self._budgets.get(name, NO_BUDGET))
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
            self._pairs.clear()  # one of them has it

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
