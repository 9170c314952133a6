"""Costs of a run: of replicas by their hours and use, and of egress by the bytes that left a region.

It samples engines when it is called, and adds up; no decision depends on it. A day that a scenario compresses into
minutes costs as much as the day it stands for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from gateway.core.features.prices.price_list import PriceList
from gateway.core.features.prices.price_table import MICROS, Prices, PriceTable, ReplicaPrice
from gateway.core.vocabulary import PoolName, RegionName
from loadgen.figures import Figures
from loadgen.report import RequestReport

_SECOND_NS = 1_000_000_000
_HOUR_S = 3600
_DAY_S = 24 * _HOUR_S
_MONDAY_S = 4 * _DAY_S
"""Unix time of the first Monday in seconds, as 1970 began on a Thursday."""
_PROMPT_TOKEN_BYTES = 4
"""Bytes per prompt token, as in the simulation's prompts."""
ANSWER_TOKEN_BYTES = 250
"""Bytes per token of a streamed answer, each in an event of its own."""
_MILLIGRAMS = 1_000_000
"""Milligrams per kilogram."""


@dataclass(frozen=True, slots=True)
class PricedDay:
    """Price list, and the time of the week at which a run takes place."""

    prices: PriceList
    day_ns: int
    """Duration of a day of 24 hours in the run."""
    from_s: int = 0
    """Seconds from Monday's midnight in UTC to the beginning of the run."""

    @property
    def stretch(self) -> float:
        """Factor from durations in the run to those they stand for."""
        return _DAY_S * _SECOND_NS / self.day_ns

    def wall_s(self, now_ns: int) -> int:
        return _MONDAY_S + self.from_s + int(now_ns * self.stretch) // _SECOND_NS

    def at(self, now_ns: int) -> Prices:
        return self.prices.at(self.wall_s(now_ns))

    def next_change_ns(self, now_ns: int) -> int | None:
        """Earliest time in the run that is not before the next change of prices."""
        wall_s = self.wall_s(now_ns)
        change_s = self.prices.next_change_s(wall_s)
        if change_s is None:
            return None
        return ceil((change_s - _MONDAY_S - self.from_s) * _SECOND_NS / self.stretch)


@dataclass(slots=True)
class _Spent:
    """Costs of one region."""

    replica_micros: float = 0.0
    replica_hours: float = 0.0
    """Replica-hours that were paid for."""
    busy_hours: float = 0.0
    """Replica-hours in use; a replica with fewer than `requests_at_once` requests counts in part."""
    milligrams: float = 0.0


Engine = tuple[RegionName, PoolName, int]
"""Region and pool of an engine, and its requests running or waiting."""


class Meter:
    """Meter of costs, which assumes that engines stay as busy as in each sample until the next one."""

    def __init__(self, day: PricedDay) -> None:
        self._day = day
        self._spent: dict[RegionName, _Spent] = {}
        self._seen: tuple[Engine, ...] = ()
        self._seen_ns = 0

    def look(self, now_ns: int, engines: Iterable[Engine]) -> None:
        self._add(now_ns)
        self._seen, self._seen_ns = tuple(engines), now_ns

    def _add(self, now_ns: int) -> None:
        hours = (now_ns - self._seen_ns) / _SECOND_NS * self._day.stretch / _HOUR_S
        if not hours:
            return
        table = PriceTable(self._day.at(self._seen_ns))
        pools: dict[tuple[RegionName, PoolName], list[int]] = {}
        for region, pool, outstanding in self._seen:
            pools.setdefault((region, pool), []).append(outstanding)
        for (region, pool), members in pools.items():
            price = table.of(region, pool)
            if price is not None:
                self._add_pool(self._spent.setdefault(region, _Spent()), price, members, hours)

    def _add_pool(self, spent: _Spent, price: ReplicaPrice, outstanding: Sequence[int], hours: float) -> None:
        """Add the hours of one pool. Replicas paid by use count as the whole number that their requests need."""
        at_once = max(1, price.requests_at_once)
        if price.is_per_use:
            paid = busy = float(min(len(outstanding), ceil(sum(outstanding) / at_once)))
        else:
            paid = float(len(outstanding))
            busy = sum(min(1.0, each / at_once) for each in outstanding)
        spent.replica_hours += paid * hours
        spent.busy_hours += busy * hours
        spent.replica_micros += paid * hours * price.hour_micros
        spent.milligrams += hours * (paid * price.idle_milligrams + busy * price.busy_milligrams)

    def figures(self, now_ns: int, records: Iterable[RequestReport]) -> Figures:
        """Costs of the run until `now_ns`."""
        self._add(now_ns)
        self._seen_ns = now_ns
        answered = [each for each in records if each.served_by is not None]
        egress = self._egress_micros(answered)
        tenants = self._tenants(answered)
        regions = {
            region: {
                "replicas": _money(spent.replica_micros),
                "egress": _money(egress[region]),
                "replica_hours": round(spent.replica_hours, 3),
                "busy_hours": round(spent.busy_hours, 3),
                "carbon_kg": round(spent.milligrams / _MILLIGRAMS, 3),
            }
            for region, spent in self._spent.items()
        }
        replicas, left = sum(each.replica_micros for each in self._spent.values()), sum(egress.values())
        return {
            "currency": self._day.prices.currency,
            "price_list": self._day.prices.digest,
            "days": round(self._day.stretch * now_ns / _SECOND_NS / _DAY_S, 4),
            "total": _money(replicas + left),
            "replicas": _money(replicas),
            "egress": _money(left),
            "carbon_kg": round(sum(each.milligrams for each in self._spent.values()) / _MILLIGRAMS, 3),
            "regions": regions,
            "tenants": tenants,
        }

    def _egress_micros(self, answered: Iterable[RequestReport]) -> dict[RegionName, float]:
        """Egress costs by the region that was left: the client's for the prompt, and the serving region's for the
        answer."""
        left: dict[RegionName, float] = defaultdict(float)
        for each in answered:
            home, away = each.client_region, each.served_by
            if away is None or away == home:
                continue
            table = PriceTable(self._day.at(each.sent_ns))
            prompt_bytes = _PROMPT_TOKEN_BYTES * (each.prompt_tokens or 0) * self._day.stretch
            answer_bytes = ANSWER_TOKEN_BYTES * each.output_tokens * self._day.stretch
            left[home] += table.egress_micros(home, away, prompt_bytes)
            left[away] += table.egress_micros(away, home, answer_bytes)
        return left

    def _tenants(self, answered: Sequence[RequestReport]) -> Figures:
        """Costs by tenant: each region's replicas are divided by the time that requests spent there, from sending to
        end."""
        seconds: Counter[tuple[str, RegionName]] = Counter()
        requests: Counter[str] = Counter()
        for each in answered:
            assert each.served_by is not None, "it was answered"
            seconds[each.tenant, each.served_by] += each.ended_ns - each.sent_ns
            requests[each.tenant] += 1
        totals: Counter[RegionName] = Counter()
        for (_, region), took_ns in seconds.items():
            totals[region] += took_ns
        owed: dict[str, float] = defaultdict(float)
        for (tenant, region), took_ns in seconds.items():
            spent = self._spent.get(region)
            if spent is not None and totals[region]:
                owed[tenant] += spent.replica_micros * took_ns / totals[region]
        return {
            tenant: {"requests": count, "replicas": _money(owed[tenant])} for tenant, count in sorted(requests.items())
        }


def _money(micros: float) -> float:
    return round(micros / MICROS, 4)
