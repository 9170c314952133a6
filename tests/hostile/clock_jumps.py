"""Clocks that jump forwards and back, and what is left of a budget of 100 tokens afterwards: one case per line.

Moving a gateway's clock for a while must not refill a budget: usage of a day and a month counts again once the clock is
back in them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JumpCase:
    name: str
    used: tuple[tuple[str, int], ...]
    """Tokens used, each with the clock's time, in the order of use."""
    asked: str
    """Time of the clock when the budget is checked."""
    day: bool
    """True if the day's budget must be spent then."""
    month: bool
    """True if the month's budget must be spent then."""


NOON = "2026-11-22T12:00"
LATE, EARLY = "2026-11-22T23:59", "2026-11-23T00:01"
MONTH_END, MONTH_BEGIN = "2026-11-30T23:59", "2026-12-01T00:01"

# fmt: off
JUMP_CASES = (
    JumpCase("no jump", ((NOON, 100),), NOON, True, True),
    JumpCase("an hour ahead", ((NOON, 100),), "2026-11-22T13:00", True, True),
    JumpCase("an hour back", ((NOON, 100),), "2026-11-22T11:00", True, True),
    JumpCase("a day goes by", ((NOON, 100),), "2026-11-23T12:00", False, True),
    JumpCase("a month goes by", ((NOON, 100),), "2026-12-22T12:00", False, False),
    JumpCase("a day ahead and back, nothing used there", ((NOON, 100), ("2026-11-23T12:00", 0)), NOON, True, True),
    JumpCase("a day ahead and back, one token used there", ((NOON, 100), ("2026-11-23T12:00", 1)), NOON, True, True),
    JumpCase("a month ahead and back", ((NOON, 100), ("2026-12-22T12:00", 1)), NOON, True, True),
    JumpCase("a year ahead and back", ((NOON, 100), ("2027-11-22T12:00", 1)), NOON, True, True),
    JumpCase("to the last day there is, and back", ((NOON, 100), ("9999-12-31T23:59", 1)), NOON, True, True),
    JumpCase("a day back and home again", ((NOON, 100), ("2026-11-21T12:00", 1)), NOON, True, True),
    JumpCase("a month back and home again", ((NOON, 100), ("2026-10-22T12:00", 1)), NOON, True, True),
    JumpCase("to 1970 and home again", ((NOON, 100), ("1970-01-01T00:00", 1)), NOON, True, True),
    JumpCase("half used, half in the time of a jump ahead", ((NOON, 50), ("2026-11-23T12:00", 50)), NOON, True, True),
    JumpCase("half used, half in the time of a jump back", ((NOON, 50), ("2026-11-21T12:00", 50)), NOON, True, True),
    JumpCase("half used, half in another month", ((NOON, 50), ("2026-12-22T12:00", 50)), NOON, True, True),
    JumpCase("half used, less than half in another month", ((NOON, 50), ("2026-12-22T12:00", 49)), NOON, False, False),
    JumpCase("to and fro over midnight", ((LATE, 100), (EARLY, 1)), LATE, True, True),
    JumpCase("to and fro over midnight, ten times", ((LATE, 100), *((EARLY, 1), (LATE, 1)) * 10), LATE, True, True),
    JumpCase("to and fro over midnight, used in the new day", ((LATE, 1), (EARLY, 99), (LATE, 1)), EARLY, True, True),
    JumpCase("over midnight as days do", ((LATE, 99), (EARLY, 1)), EARLY, False, True),
    JumpCase("to and fro over the end of a month", ((MONTH_END, 100), (MONTH_BEGIN, 1)), MONTH_END, True, True),
    JumpCase("to and fro over the end of a month, used in the new one", ((MONTH_END, 1), (MONTH_BEGIN, 100), (MONTH_END, 1)), MONTH_BEGIN, True, True),
    JumpCase("over the end of a month as months do", ((MONTH_END, 100), (MONTH_BEGIN, 1)), "2026-12-01T00:02", False, False),
)
# fmt: on
