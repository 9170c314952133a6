"""Outlooks for a further batch of a client: limits, backlog, room and pace at this moment. Nothing is changed."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from gateway.core.config import all_of
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.requests import RequestState
from gateway.core.tenant_config import tenant_in
from gateway.core.vocabulary import ModelCapacity, ModelName, PlaceRule, RegionName, ServiceClass, TenantName
from gateway.door.parse import Caller
from gateway.features.batches.backlog import BatchWork, place_shares
from gateway.features.batches.book import BatchBook
from gateway.features.batches.config import BatchesConfig
from gateway.features.batches.outlook import BatchOutlook, PlaceShare, RegionOutlook
from gateway.features.batches.paces import ModelPaces
from gateway.features.batches.state import BatchStatus, ClientBatch
from gateway.request.callers import KeyLimits
from mesh.clock import Clock

_SECOND_NS = 1_000_000_000
_AHEAD_MAX = 128
"""Batches whose backlog is played forward; behind more, a batch counts as waiting until their windows end."""
_ROOMS_MAX = 16
"""Pairs of model and client of the batches before it whose room is counted; that of further ones is not known."""
_Asked = tuple[ModelName, TenantName, PlaceRule | None]
"""Model, and the tenant and rule of the client's key."""


class _Rooms:
    """Room for lines at one moment."""

    def __init__(self, core: GatewayCore) -> None:
        self._core = core
        self._running = Counter(map(_runs_in, core.requests.values()))
        self._totals: dict[_Asked, int] = {}

    def by_region(self, asked: _Asked) -> dict[RegionName, int]:
        """Lines of a model that could run at once, by region, with those that run already. A replica that prefills is
        given no further request of class `batch`, and one that is not streamed counts as prefill until its answer is
        there: it is one line a replica."""
        free_share = all_of(self._core.config).classes.batch.free_share
        rooms: Counter[RegionName] = Counter()
        replicas: Counter[RegionName] = Counter()
        for each in self._core.capacities_for(*asked):
            rooms[each.place.region] += spare_lines(each, free_share)
            replicas[each.place.region] += each.replicas
        model = asked[0]
        return {each: min(rooms[each] + self._running[model, each], replicas[each]) for each in rooms}

    def total(self, asked: _Asked) -> int:
        """Lines of a model that could run at once in all regions; 0 also where it is not counted."""
        if asked not in self._totals:
            if len(self._totals) >= _ROOMS_MAX:
                return 0
            self._totals[asked] = sum(self.by_region(asked).values())
        return self._totals[asked]


class KnowsModels(Protocol):
    """Clients' API, as an outlook uses it."""

    def models_of(self, caller: Caller) -> list[ModelName]: ...

    def meant_by(self, caller: Caller, name: ModelName) -> list[ModelName]: ...


class Lookout:
    """Outlooks of one gateway."""

    def __init__(
        self,
        config: BatchesConfig,
        core: GatewayCore,
        book: BatchBook,
        paces: ModelPaces,
        api: KnowsModels,
        *,
        clock: Clock,
        output_tokens_reserved: int,
    ) -> None:
        self._config = config
        self._core = core
        self._book = book
        self._paces = paces
        self._api = api
        self._clock = clock
        self._output_tokens_reserved = output_tokens_reserved

    def outlook(self, caller: Caller, asked: ModelName, fresh: ClientBatch) -> BatchOutlook:
        """Outlook for `fresh`, a batch that the caller would hand in at this moment with the model that it asked
        for."""
        config, process = self._config, caller.process
        model = None
        if asked in self._api.models_of(caller):
            model = self._core.first_served(self._api.meant_by(caller, asked), caller.tenant, process, "")
        rooms = _Rooms(self._core)
        works = self._works(rooms, fresh.created_s, self._clock.now_ns())
        limits = tenant_in(all_of(self._core.config).tenants, caller.tenant)
        of_key = KeyLimits() if caller.key is None else caller.key.limits
        return BatchOutlook(
            region=self._core.place.region,
            file_bytes_max=config.file_max_bytes,
            lines_max=config.lines_max,
            line_bytes_max=config.line_max_bytes,
            output_tokens_reserved=self._output_tokens_reserved,
            lines_at_once=config.requests_max,
            shares=self._shares(fresh, works),
            unknown_ahead=sum(each.work_s is None for each in works),
            knows_model=model is not None,
            output_tokens=None if model is None else self._paces.output_tokens(model),
            regions=[] if model is None else self._regions(rooms.by_region((model, caller.tenant, process)), model),
            own_requests_max=_least(limits.concurrency_max, of_key.concurrency_max),
            requests_per_minute=_least(limits.requests_per_minute, of_key.requests_per_minute),
            tokens_per_minute=_least(limits.tokens_per_minute, of_key.tokens_per_minute),
        )

    def _shares(self, fresh: ClientBatch, works: list[BatchWork]) -> list[PlaceShare]:
        """Shares of the places for a further batch; behind very many it has none until their windows end."""
        if len(works) > _AHEAD_MAX:
            last_s = max(each.batch.expires_s for each in works)
            return [PlaceShare(0.0, 0.0), PlaceShare(float(last_s - fresh.created_s), 1.0)]
        config = self._config
        return place_shares(
            fresh,
            works,
            lines_at_once=config.requests_max,
            batches_max=config.batches_max,
            tenant_max=config.tenant_batches_max,
            now_s=fresh.created_s,
        )

    def _regions(self, rooms: dict[RegionName, int], model: ModelName) -> list[RegionOutlook]:
        """Regions that may run lines of the model, this gateway's first."""
        home = self._core.place.region
        told = []
        for region in sorted(rooms, key=lambda each: (each != home, each)):
            times = self._paces.times(model, region)
            prompt_ns, output_ns = (None, None) if times is None else (times.prompt_ns, times.output_ns)
            told.append(RegionOutlook(region, rooms[region], prompt_ns, output_ns))
        return told

    # Backlog

    def _works(self, rooms: _Rooms, now_s: int, now_ns: int) -> list[BatchWork]:
        """Batches before a further one, in the order in which they came."""
        unfinished = [
            each
            for each in self._book.not_elsewhere()
            if not each.has_ended and not each.is_cancelling and each.expires_s > now_s
        ]
        unfinished.sort(key=lambda each: (each.created_s, each.id))
        running = sum(each.id in self._book.rates for each in unfinished)
        return [
            self._work(each, running, rooms, now_ns) if index < _AHEAD_MAX else BatchWork(each, False, None)
            for index, each in enumerate(unfinished)
        ]

    def _work(self, batch: ClientBatch, running: int, rooms: _Rooms, now_ns: int) -> BatchWork:
        """Work that is left of a batch: at its own rate where that is known, else at its model's pace."""
        rate = self._book.rates.get(batch.id)
        is_running = rate is not None and batch.status is BatchStatus.IN_PROGRESS
        if not batch.is_checked:
            return BatchWork(batch, is_running, None)
        left = batch.total - batch.completed - batch.failed
        if is_running and rate is not None and rate.is_known(now_ns) and (per_s := rate.per_second(now_ns)):
            return BatchWork(batch, is_running, left / per_s * self._config.requests_max / running)
        model = ModelName(batch.model)
        line_ns = self._paces.line_ns(model)
        room = rooms.total((model, batch.tenant, None if batch.key is None else batch.key.process))
        if line_ns is None or not room:
            return BatchWork(batch, is_running, None)
        return BatchWork(batch, is_running, left * line_ns / _SECOND_NS, room)


def spare_lines(capacity: ModelCapacity, free_share: float) -> int:
    """Lines that replicas could begin at once while they keep a share of their room free."""
    slots = capacity.room + capacity.load
    return max(0, min(capacity.room, int((1 - free_share) * slots) - capacity.load))


def _runs_in(request: RequestState) -> tuple[ModelName, RegionName] | None:
    """Model, and region that a client's own request of class `batch` runs in; None for any other request."""
    is_line = request.profile.service_class is ServiceClass.BATCH and request.origin_gateway_id is None
    legs = request.attempt.legs.values() if is_line and request.attempt is not None else ()
    return next(((request.profile.model, each.spec.place.region) for each in legs), None)


def _least(*limits: int | None) -> int | None:
    """Lowest of the limits that are set; None: none is."""
    return min((each for each in limits if each is not None), default=None)
