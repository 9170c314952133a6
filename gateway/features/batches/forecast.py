"""Forecast of one batch: when it would be done at the rate at which its lines end, and how many of its lines are to be
urgent as its window ends. It reads no clock and does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, exp

from msgspec import Struct

from gateway.core.vocabulary import TenantName

_SECOND_NS = 1_000_000_000
_MEMORY_S = 300.0
"""Time after which a line that ended counts by a factor e less."""
_NEAR_SHARE = 0.25
"""Part of the window at its end in which lines may be urgent; before it, idle engines may come by themselves."""
_MARGIN_SHARE = 0.1
"""Part of what is left of the window that a batch should not need."""
_SPARE_SHARE = 0.5
"""Part of what is left of the window that a batch should not need while its lines wait for cheaper engines."""
_FORECAST_MAX_S = 366 * 24 * 3600
_EVIDENCE_S = 60.0
"""Time of running without which a rate says little: lines take a while to end."""


class LineRate:
    """Rate at which the lines of a batch end, by those of the last minutes. Memory is constant."""

    def __init__(self, now_ns: int) -> None:
        self._at_ns = now_ns
        self._lines = 0.0
        self._span_s = 0.0

    def add(self, lines: int, now_ns: int) -> None:
        """Take in lines that ended since the last call."""
        self._pass(now_ns)
        self._lines += lines

    def per_second(self, now_ns: int) -> float:
        self._pass(now_ns)
        return self._lines / self._span_s if self._span_s else 0.0

    def is_known(self, now_ns: int) -> bool:
        """True once the batch has run for long enough to judge it by its rate."""
        self._pass(now_ns)
        return self._span_s >= _EVIDENCE_S

    def _pass(self, now_ns: int) -> None:
        assert now_ns >= self._at_ns, "time went backwards"
        kept = exp(-(now_ns - self._at_ns) / _SECOND_NS / _MEMORY_S)
        self._lines *= kept
        self._span_s = self._span_s * kept + _MEMORY_S * (1 - kept)
        self._at_ns = now_ns


def expected_end_s(lines_left: int, lines_per_s: float, now_s: int) -> int | None:
    """Time at which the last line would end at this rate; None where the rate is too low to tell."""
    if lines_left and lines_left > lines_per_s * _FORECAST_MAX_S:
        return None
    return now_s + (ceil(lines_left / lines_per_s) if lines_left else 0)


class Urgency(Struct, frozen=True):
    """Urgent lines of a batch that runs."""

    tenant: TenantName
    running: int
    wanted: int
    """Lines that should be urgent at once (`urgent_lines`)."""


def may_be_urgent(batch_id: str, batches: Mapping[str, Urgency], most: int) -> bool:
    """True if the next line of a batch may run as interactive beside those of all batches that run. Tenants whose
    batches want urgent lines share `most` places for them."""
    own = batches[batch_id]
    if own.running >= own.wanted or sum(each.running for each in batches.values()) >= most:
        return False
    tenants = {each.tenant for each in batches.values() if each.wanted}
    of_tenant = sum(each.running for each in batches.values() if each.tenant == own.tenant)
    return of_tenant < ceil(most / len(tenants))


def has_time_to_spare(lines_left: int, rate: LineRate, left_s: float, now_ns: int) -> bool:
    """True while lines of a batch may wait for cheaper engines: at its rate it is done in half of the time left, or it
    has not run for long enough to have one."""
    return not rate.is_known(now_ns) or rate.per_second(now_ns) * left_s * (1 - _SPARE_SHARE) >= lines_left


def urgent_lines(lines_left: int, lines_per_s: float, left_s: int, window_s: int, lines_max: int) -> int:
    """Lines of a batch, at most `lines_max`, that should run as interactive at once. None is while the window is not
    near its end, or while the rate suffices. Then it is the part of `lines_max` that the rate is short of."""
    if lines_left <= 0 or left_s <= 0 or left_s > _NEAR_SHARE * window_s:
        return 0
    enough = lines_per_s * left_s * (1 - _MARGIN_SHARE)
    return ceil(lines_max * (1 - min(1.0, enough / lines_left)))
