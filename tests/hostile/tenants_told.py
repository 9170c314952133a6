"""False reports of a peer about tenants' requests and budgets: one case per line.

A peer's report must not reduce a tenant's guaranteed share, make an unknown tenant known, or exceed its bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from protos.mesh.v1 import peer_pb2 as pb

HONEST = "default"
"""Tenant with limits that sends requests to the gateway which hears the report."""
_BIG, _ALL = 10**12, 2**64 - 1
HOUR_US = 3600 * 10**6


@dataclass(frozen=True, slots=True)
class UseCase:
    name: str
    uses: tuple[pb.TenantUse, ...]
    believed: bool
    """True if the heartbeat is accepted; otherwise the peer is lost until its next valid heartbeat."""
    age_us: int = 0
    """Age of the report in microseconds, as the peer claims."""


def _use(tenant: str = HONEST, each: int = 0, **changes: int) -> pb.TenantUse:
    said = {"running": each, "demand": each, "requests_per_minute": each, "tokens_per_minute": each}
    return pb.TenantUse(tenant=tenant, **{**said, **changes})


# fmt: off
USE_CASES = (
    UseCase("nothing", (), True),
    UseCase("nothing of it", (_use(),), True),
    UseCase("a little", (_use(each=3),), True),
    UseCase("as much as the limit", (_use(each=60),), True),
    UseCase("10**12 of each", (_use(each=_BIG),), True),
    UseCase("more than there can be", (_use(each=_BIG + 1),), False),
    UseCase("2**63, a number below nothing to some", (_use(each=2**63),), False),
    UseCase("2**64 - 1, as -1 is written", (_use(each=_ALL),), False),
    UseCase("2**64 - 1 under way", (_use(running=_ALL),), False),
    UseCase("2**64 - 1 tokens", (_use(tokens_per_minute=_ALL),), False),
    UseCase("all under way, nothing asked for", (_use(running=_BIG),), True),
    UseCase("all asked for, nothing under way", (_use(demand=_BIG),), True),
    UseCase("requests only", (_use(requests_per_minute=_BIG),), True),
    UseCase("tokens only", (_use(tokens_per_minute=_BIG),), True),
    UseCase("twice, little last", (_use(each=_BIG), _use(each=1)), True),
    UseCase("twice, much last", (_use(each=1), _use(each=_BIG)), True),
    UseCase("4,096 times", (_use(each=_BIG),) * 4096, True),
    UseCase("4,097 times", (_use(each=1),) * 4097, False),
    UseCase("4,096 names, and none of ours", tuple(_use(f"t-{number}", _BIG) for number in range(4096)), True),
    UseCase("4,095 names, and ours", (*(_use(f"t-{number}", _BIG) for number in range(4095)), _use(each=_BIG)), True),
    UseCase("4,096 names of 256 letters", tuple(_use(f"{number:x}".rjust(256, "a"), 1) for number in range(4096)), True),
    UseCase("a name of 257 letters", (_use("a" * 257, 1),), False),
    UseCase("no name", (_use("", 1),), False),
    UseCase("a line break", (_use(f"{HONEST}\n", 1),), False),
    UseCase("an escape of a terminal", (_use("\x1b[2J", 1),), False),
    UseCase("NUL", (_use(f"{HONEST}\0", 1),), False),
    UseCase("letters that turn around", (_use("\u202etluafed", 1),), False),
    UseCase("a space of no width", (_use(f"{HONEST}\u200b", 1),), False),
    UseCase("letters that look alike", (_use("d\u0435fault", _BIG),), True),
    UseCase("capitals", (_use("DEFAULT", _BIG),), True),
    UseCase("spaces around it", (_use(f" {HONEST} ", _BIG),), True),
    UseCase("names of Python's", (_use("__class__", _BIG), _use("__proto__", _BIG)), True),
    UseCase("all of it, and half an hour old", (_use(each=_BIG),), True, age_us=HOUR_US // 2),
    UseCase("little of it, and an hour old", (_use(each=1),), True, age_us=HOUR_US),
    UseCase("more than an hour old", (_use(each=1),), False, age_us=HOUR_US + 1),
)
# fmt: on


@dataclass(frozen=True, slots=True)
class BudgetCase:
    """Reports about the budget of key `a`, 100 tokens a day and 1,000 a month, on 22 November 2026."""

    name: str
    said: tuple[dict[str, Any], ...]
    believed: bool
    left: bool
    """True if any of that budget must be left. A peer can report that it is used up."""


def _said(**changes: Any) -> dict[str, Any]:
    return {"kind": "key", "name": "a", "day": "2026-11-22", **changes}


_MOST = 10**15
# fmt: off
BUDGET_CASES = (
    BudgetCase("nothing", (), True, True),
    BudgetCase("a little", (_said(tokens_in_day=1, tokens_in_month=1),), True, True),
    BudgetCase("all of the day", (_said(tokens_in_day=100, tokens_in_month=100),), True, False),
    BudgetCase("10**15", (_said(tokens_in_day=_MOST, tokens_in_month=_MOST, set_aside=_MOST),), True, False),
    BudgetCase("more than there can be", (_said(tokens_in_day=_MOST + 1),), False, True),
    BudgetCase("2**64 - 1, as -1 is written", (_said(tokens_in_day=_ALL),), False, True),
    BudgetCase("2**64 - 1 set aside", (_said(set_aside=_ALL),), False, True),
    BudgetCase("much, and then less", (_said(tokens_in_day=100), _said(tokens_in_day=1)), True, False),
    BudgetCase("of yesterday", (_said(day="2026-11-21", tokens_in_day=100),), True, True),
    BudgetCase("of tomorrow", (_said(day="2026-11-23", tokens_in_day=100),), True, False),
    BudgetCase("of the day after", (_said(day="2026-11-24", tokens_in_day=100),), True, True),
    BudgetCase("of a year ahead", (_said(day="2027-11-22", tokens_in_day=100),), True, True),
    BudgetCase("of the last day there is", (_said(day="9999-12-31", tokens_in_day=100),), True, True),
    BudgetCase("of 1970", (_said(day="1970-01-01", tokens_in_day=100),), True, True),
    BudgetCase("of no day", (_said(day="2026-02-30", tokens_in_day=100),), True, True),
    BudgetCase("of a day that is none", (_said(day="today", tokens_in_day=100),), False, True),
    BudgetCase("of a day with a line break", (_said(day="2026-11-22\n", tokens_in_day=100),), False, True),
    BudgetCase("of a day in other digits", (_said(day="\u0662\u0660\u0662\u0666-11-22", tokens_in_day=100),), False, True),
    BudgetCase("of tomorrow, and then of today", (_said(day="2026-11-23"), _said(tokens_in_day=1)), True, True),
    BudgetCase("of a key that has no budget", (_said(name="free", tokens_in_day=_MOST),), True, True),
    BudgetCase("of a key that nobody has", (_said(name="zzz", tokens_in_day=_MOST),), True, True),
    BudgetCase("of a tenant of that name", (_said(kind="tenant", tokens_in_day=_MOST),), True, True),
    BudgetCase("of another kind", (_said(kind="mesh", tokens_in_day=_MOST),), True, True),
    BudgetCase("of a kind in capitals", (_said(kind="KEY", tokens_in_day=_MOST),), True, True),
    BudgetCase("of no name", (_said(name="", tokens_in_day=1),), False, True),
    BudgetCase("of a name with NUL", (_said(name="a\0", tokens_in_day=1),), False, True),
    BudgetCase("of a name of 257 letters", (_said(name="a" * 257, tokens_in_day=1),), False, True),
    BudgetCase("of 4,096 names", tuple(_said(name=f"n-{number}", tokens_in_day=_MOST) for number in range(4096)), True, True),
    BudgetCase("of 4,097 names", tuple(_said(name=f"n-{number}") for number in range(4097)), False, True),
)
# fmt: on
