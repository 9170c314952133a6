"""Scaling at one gateway: it averages the gateway's own demand, receives that of others, plans for all regions, and
states what its own region wants.

Every gateway makes the same plan from the same reports, so no coordination is needed: the region chosen for more
replicas sees it in its own plan, and the others see that they are not chosen. Reports are up to a heartbeat old;
differences between two gateways in that time are corrected by the next plan. The gateway with the first id of a region
speaks for it, as long as its reports arrive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from gateway.core.features.scaling.demand import Demand, needed_replicas, needed_slots
from gateway.core.features.scaling.planner import RegionPlan, plan
from gateway.core.features.scaling.steady import Steady
from gateway.core.features.scaling.vocabulary import (
    Heard,
    PoolKey,
    PoolLoad,
    PoolSettings,
    RegionNeed,
    Sample,
    ScalingReason,
    ScalingReport,
    ScalingSettings,
    Want,
    Way,
)
from gateway.core.vocabulary import GatewayId, RegionName

_MILLIONTHS = 1_000_000
_GATEWAYS_MAX = 1024
"""Most gateways whose reports are kept."""
_IDLE_WAITERS_SHARE = 4
"""Divisor: neighbours are doubted once the queue reaches this part of what one replica runs at once."""

_Members = dict[RegionName, list[tuple[GatewayId, PoolLoad]]]


class Scaler:
    """Receives samples and reports, and decides at each `look`."""

    def __init__(
        self,
        gateway_id: GatewayId,
        region: RegionName,
        settings: ScalingSettings,
        pools: Sequence[PoolSettings],
        *,
        stale_ns: int,
    ) -> None:
        """`stale_ns`: age from which a gateway's last report is not counted."""
        self._gateway_id = gateway_id
        self._region = region
        self._settings = settings
        self._stale_ns = stale_ns
        self.pools = {each.key: each for each in pools}
        self.demands = {key: Demand(settings) for key in self.pools}
        self.wants: dict[PoolKey, Want] = {}
        self.report = ScalingReport()
        """Report for other gateways."""
        self._steady: dict[PoolKey, Steady] = {}
        self._heard: dict[GatewayId, Heard] = {}
        self._promised_ns: dict[tuple[RegionName, PoolKey], int] = {}
        """Time since when a region has wanted more than it has."""
        self._others: dict[PoolKey, tuple[tuple[RegionName, int], ...]] = {}
        """Replicas that other regions wanted at the last look."""
        self._waits_ns: dict[PoolKey, int] = {}
        """Time since when requests have waited although neighbours should have room."""
        self._alone_until_ns: dict[PoolKey, int] = {}
        self._ways: dict[RegionName, tuple[Way, ...]] = {}
        """Usable ways between regions, as of this look."""

    def hear(self, heard: Heard) -> None:
        """Record another gateway's report; it replaces the previous one."""
        if heard.gateway_id in self._heard or len(self._heard) < _GATEWAYS_MAX:
            self._heard[heard.gateway_id] = heard

    def listened_to(self) -> list[GatewayId]:
        """Ids of the gateways with a current report."""
        return sorted(self._heard)

    def look(
        self,
        now_ns: int,
        samples: Mapping[PoolKey, Sample],
        *,
        minute_of_day: int,
        ways: Sequence[Way] = (),
        accepts: Sequence[RegionName] = (),
    ) -> list[Want]:
        """Plan anew and return what is wanted of each pool. `ways` and `accepts` come from this gateway's own
        policy."""
        for gateway_id in [each for each, heard in self._heard.items() if now_ns - heard.heard_ns > self._stale_ns]:
            del self._heard[gateway_id]
        regions = {heard.region for heard in self._heard.values()}
        self._promised_ns = {told: since for told, since in self._promised_ns.items() if told[0] in regions}
        near = tuple(sorted((each for each in ways if each.rtt_ns <= self._settings.reach_ns), key=_by_distance))
        self.report = ScalingReport((), near, tuple(accepts))
        self._ways = self._all_ways()
        wants = [
            self._look_at(pool, samples.get(key, Sample()), minute_of_day, now_ns) for key, pool in self.pools.items()
        ]
        self.wants = {want.key: want for want in wants}
        return wants

    def _look_at(self, pool: PoolSettings, sample: Sample, minute_of_day: int, now_ns: int) -> Want:
        key = pool.key
        demand = self.demands[key]
        demand.look(sample, now_ns)
        least = pool.least_at(minute_of_day)
        steady = self._steady.get(key)
        if steady is None:
            steady = self._steady[key] = Steady(self._settings, self._begin_with(pool, sample, least), now_ns)
        steady.find(sample.ready, now_ns)
        was_bound = steady.keep_within(least, pool.replicas_max, now_ns)
        members = self._members(key)
        own = self._load_of(pool, sample, least, now_ns)
        members.setdefault(self._region, []).append((self._gateway_id, own))
        needs = [self._need_of(region, key, those, now_ns) for region, those in members.items()]
        self._note_others(key, needs, steady, now_ns)
        verdicts = plan(needs, self._settings.slack_share)
        verdict = verdicts[self._region]
        reason = self._decide(members[self._region], steady, verdicts, pool, now_ns)
        self._doubt(pool, sample, verdict, now_ns)
        load = replace(own, wanted=steady.wanted)
        self.report = replace(self.report, loads=(*self.report.loads, load))
        need = next(each for each in needs if each.region == self._region)
        return Want(
            self._region,
            key,
            steady.wanted,
            ScalingReason.BOUNDS if was_bound else reason,
            ready=sum(each.ready for _, each in members[self._region]),
            alone=min(max(needed_replicas(need.needed, pool.concurrency), least), pool.replicas_max),
            offered=sum(each.offered for _, each in members[self._region]),
            borrowed=verdict.borrowed,
            lent=verdict.lent,
            missing=verdict.missing,
            least=least,
            most=pool.replicas_max,
            concurrency=pool.concurrency,
            changed_ns=steady.changed_ns,
        )

    def _begin_with(self, pool: PoolSettings, sample: Sample, least: int) -> int:
        """Initial number: existing replicas, or the number that another gateway of the region wants. A restart removes
        no replica."""
        told = (each for _, each in self._members(pool.key).get(self._region, ()))
        return min(max(sample.ready, least, *(each.wanted for each in told)), pool.replicas_max)

    def _members(self, key: PoolKey) -> _Members:
        members: _Members = {}
        for gateway_id, heard in self._heard.items():
            if not self._settings.mesh and heard.region != self._region:
                continue
            for load in heard.report.loads:
                if load.key == key:
                    members.setdefault(heard.region, []).append((gateway_id, load))
        return members

    def _load_of(self, pool: PoolSettings, sample: Sample, least: int, now_ns: int) -> PoolLoad:
        demand = self.demands[pool.key]
        return PoolLoad(
            pool.key,
            sample.ready,
            self._steady[pool.key].wanted,
            pool.concurrency,
            least,
            pool.replicas_max,
            demand.offered,
            demand.pinned,
            sample.waiting,
            round(pool.price * _MILLIONTHS),
            now_ns < self._alone_until_ns.get(pool.key, now_ns),
        )

    def _need_of(
        self, region: RegionName, key: PoolKey, members: list[tuple[GatewayId, PoolLoad]], now_ns: int
    ) -> RegionNeed:
        """Need of a region, summed over its gateways; the speaker's settings apply."""
        _, speaker = min(members, key=_by_id)
        offered = sum(each.offered for _, each in members)
        needed = needed_slots(offered, self._settings.headroom)
        pinned = sum(each.pinned for _, each in members)
        replicas, most = speaker.wanted, speaker.most
        if region != self._region and not self._is_promise_good(region, key, members, now_ns):
            replicas = most = min(sum(each.ready for _, each in members), most)
        return RegionNeed(
            region,
            replicas,
            speaker.concurrency,
            min(speaker.least, most),
            most,
            needed,
            needed * pinned // offered if offered else 0,
            sum(each.queue for _, each in members),
            speaker.price,
            self._ways.get(region, ()),
            any(each.is_alone for _, each in members),
        )

    def _is_promise_good(
        self, region: RegionName, key: PoolKey, members: list[tuple[GatewayId, PoolLoad]], now_ns: int
    ) -> bool:
        _, speaker = min(members, key=_by_id)
        if sum(each.ready for _, each in members) >= speaker.wanted:
            self._promised_ns.pop((region, key), None)
            return True
        since_ns = self._promised_ns.setdefault((region, key), now_ns)
        return now_ns - since_ns < self._settings.start_max_ns

    def _all_ways(self) -> dict[RegionName, tuple[Way, ...]]:
        """Regions that each region's requests may go to: allowed by its own report and accepted by the other's."""
        told: dict[RegionName, dict[RegionName, int]] = {}
        taken: dict[RegionName, set[RegionName]] = {}
        own = Heard(self._gateway_id, self._region, self.report, 0)
        for heard in (own, *self._heard.values()):
            taken.setdefault(heard.region, set()).update(heard.report.accepts)
            nearest = told.setdefault(heard.region, {})
            for way in heard.report.ways:
                nearest[way.region] = min(way.rtt_ns, nearest.get(way.region, way.rtt_ns))
        return {
            region: tuple(
                sorted(
                    (Way(other, rtt_ns) for other, rtt_ns in nearest.items() if region in taken.get(other, ())),
                    key=_by_distance,
                )
            )
            for region, nearest in told.items()
        }

    def _note_others(self, key: PoolKey, needs: Sequence[RegionNeed], steady: Steady, now_ns: int) -> None:
        others = tuple((each.region, each.replicas) for each in sorted(needs, key=_by_region))
        others = tuple(each for each in others if each[0] != self._region)
        if others != self._others.get(key, others):
            steady.others_moved(now_ns)
        self._others[key] = others

    def _decide(
        self,
        members: list[tuple[GatewayId, PoolLoad]],
        steady: Steady,
        verdicts: Mapping[RegionName, RegionPlan],
        pool: PoolSettings,
        now_ns: int,
    ) -> ScalingReason:
        verdict = verdicts[self._region]
        gateway_id, speaker = min(members, key=_by_id)
        if gateway_id != self._gateway_id:
            before = steady.wanted
            steady.follow(speaker.wanted, now_ns)
            return (
                ScalingReason.LOAD
                if steady.wanted > before
                else ScalingReason.IDLE
                if steady.wanted < before
                else ScalingReason.STEADY
            )
        any_may_lose = any(each.may_lose for each in verdicts.values())
        return steady.take(verdict, any_may_lose, pool, now_ns)

    def _doubt(self, pool: PoolSettings, sample: Sample, verdict: RegionPlan, now_ns: int) -> None:
        """Doubt neighbours that seem idle but do not take waiting requests for `patience_ns`: the region then relies on
        its own replicas for `distrust_ns`."""
        key = pool.key
        if not verdict.borrowed or sample.waiting * _IDLE_WAITERS_SHARE < max(pool.concurrency, _IDLE_WAITERS_SHARE):
            self._waits_ns.pop(key, None)
            return
        if now_ns - self._waits_ns.setdefault(key, now_ns) >= self._settings.patience_ns:
            self._alone_until_ns[key] = now_ns + self._settings.distrust_ns
            del self._waits_ns[key]


def _by_distance(way: Way) -> tuple[int, str]:
    return way.rtt_ns, way.region


def _by_id(member: tuple[GatewayId, PoolLoad]) -> str:
    return member[0]


def _by_region(need: RegionNeed) -> str:
    return need.region
