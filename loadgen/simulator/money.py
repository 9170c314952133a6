"""What a run would have cost: of replicas by their hours and what they did, of what left a region by its bytes.

It looks at engines when it is told to, and adds up; nothing is decided by it. A day that a scenario squeezes into
minutes is paid for as the day that it stands for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from gateway.core.price_list import PriceList
from gateway.core.prices import MICROS, Prices, PriceTable, ReplicaPrice
from gateway.core.vocabulary import PoolName, RegionName
from loadgen.figures import Figures
from loadgen.report import RequestRecord

_SECOND_NS = 1_000_000_000
_HOUR_S = 3600
_DAY_S = 24 * _HOUR_S
_MONDAY_S = 4 * _DAY_S
"""1970 began on a Thursday."""
_PROMPT_TOKEN_BYTES = 4
"""As prompts are in a simulation."""
ANSWER_TOKEN_BYTES = 250
"""A token of a streamed answer, in an event of its own."""
_MILLIGRAMS = 1_000_000
"""In a kilogram."""


@dataclass(frozen=True, slots=True)
class PricedDay:
    """A price list, and which time of the week a run is."""

    prices: PriceList
    day_ns: int
    """How long a day of 24 hours takes in the run."""
    from_s: int = 0
    """Where the run begins, after a Monday's midnight in UTC."""

    @property
    def stretch(self) -> float:
        """How much longer everything is than it takes in the run."""
        return _DAY_S * _SECOND_NS / self.day_ns

    def wall_s(self, now_ns: int) -> int:
        return _MONDAY_S + self.from_s + int(now_ns * self.stretch) // _SECOND_NS

    def at(self, now_ns: int) -> Prices:
        return self.prices.at(self.wall_s(now_ns))

    def next_change_ns(self, now_ns: int) -> int | None:
        """The first moment of the run that is no sooner than that."""
        wall_s = self.wall_s(now_ns)
        change_s = self.prices.next_change_s(wall_s)
        if change_s is None:
            return None
        return ceil((change_s - _MONDAY_S - self.from_s) * _SECOND_NS / self.stretch)


@dataclass(slots=True)
class _Spent:
    """Of one region."""

    replica_micros: float = 0.0
    replica_hours: float = 0.0
    """That were paid for."""
    busy_hours: float = 0.0
    """Of these, with as many requests as share a replica that is well used, in part where there were fewer."""
    milligrams: float = 0.0


Engine = tuple[RegionName, PoolName, int]
"""Where it stands, and how many requests run or wait there."""


class Meter:
    """Told at every sample how busy engines are, which they are taken to have been until the next."""

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
        """What is paid by use is taken to be as many replicas as its requests need, whole ones."""
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

    def figures(self, now_ns: int, records: Iterable[RequestRecord]) -> Figures:
        """Of all of the run until now."""
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

    def _egress_micros(self, answered: Iterable[RequestRecord]) -> dict[RegionName, float]:
        """By the region that was left: the client's, whose gateway sent the prompt on, and whoever answered."""
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

    def _tenants(self, answered: Sequence[RequestRecord]) -> Figures:
        """Each region's replicas are shared out by how long requests were with it, from being sent to their end."""
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
