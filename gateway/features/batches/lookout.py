"""Outlooks for a further batch of a client: limits, backlog, room and pace at this moment. Nothing is changed.

Figures that rest on other clients' requests are told with two digits, so that none of them can be told apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

from msgspec.structs import replace

from gateway.core.config import all_of
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.requests import RequestState
from gateway.core.tenant_config import tenant_in
from gateway.core.vocabulary import ModelName, PlaceRule, RegionName, RequestId, ServiceClass, TenantName
from gateway.door.parse import Caller
from gateway.door.settings import HttpSettings
from gateway.features.batches.backlog import BatchWork, place_shares
from gateway.features.batches.book import BatchBook
from gateway.features.batches.checking import MODEL_NOT_FOUND
from gateway.features.batches.config import BatchesConfig
from gateway.features.batches.outlook import BatchOutlook, PlaceShare, RegionOutlook
from gateway.features.batches.paces import ModelPaces
from gateway.features.batches.state import ClientBatch
from gateway.request.callers import KeyLimits
from mesh.clock import Clock

_SECOND_NS = 1_000_000_000
_AHEAD_MAX = 128
"""Batches whose backlog is played forward; behind more, a batch counts as waiting until their windows end."""
_ROOMS_MAX = 16
"""Pairs of model and client of the batches before it whose room is counted; that of further ones is not known."""
_Asked = tuple[ModelName, TenantName, PlaceRule | None]
"""Model, and the tenant and rule of the client's key."""
InLine = Callable[[], Sequence[tuple[ClientBatch, bool]]]
"""Batches with lines to run here, in the order in which they came, each with whether it runs."""


class _Rooms:
    """Room for lines at one moment."""

    def __init__(self, core: GatewayCore) -> None:
        self._core = core
        self._running = Counter(map(_runs_in, core.requests.values()))
        self._known: dict[_Asked, dict[RegionName, int]] = {}

    def by_region(self, asked: _Asked) -> dict[RegionName, int]:
        """Lines of a model that could run at once, by region that the client may use, with those that run already;
        empty also where it is not counted."""
        if asked not in self._known:
            if len(self._known) >= _ROOMS_MAX:
                return {}
            rooms = self._core.batch_rooms(*asked)
            self._known[asked] = {each: room + self._running[asked[0], each] for each, room in rooms.items()}
        return self._known[asked]


class KnowsModels(Protocol):
    """Clients' API, as an outlook uses it."""

    def models_of(self, caller: Caller) -> list[ModelName]: ...

    def meant_by(self, caller: Caller, name: ModelName) -> list[ModelName]: ...


class Lookout:
    """Outlooks of one gateway."""

    def __init__(
        self,
        config: BatchesConfig,
        settings: HttpSettings,
        core: GatewayCore,
        book: BatchBook,
        *,
        in_line: InLine,
        paces: ModelPaces,
        api: KnowsModels,
        clock: Clock,
    ) -> None:
        self._config = config
        self._settings = settings
        self._core = core
        self._book = book
        self._in_line = in_line
        self._paces = paces
        self._api = api
        self._clock = clock

    def outlook(self, caller: Caller, asked: ModelName, fresh: ClientBatch) -> BatchOutlook:
        """Outlook for `fresh`, a batch that the caller would hand in at this moment with the model that it asked
        for."""
        config, process = self._config, caller.process
        model = self._model(caller, asked) if asked in self._api.models_of(caller) else None
        rooms = _Rooms(self._core)
        mine = {} if model is None else rooms.by_region((model, caller.tenant, process))
        works = self._works(rooms)
        pace = None if model is None else self._paces.over(model, mine)
        limits = tenant_in(all_of(self._core.config).tenants, caller.tenant)
        of_key = KeyLimits() if caller.key is None else caller.key.limits
        own_bytes_left = config.tenant_max_bytes - self._book.sizes.bytes_of(caller.tenant)
        return BatchOutlook(
            region=self._core.place.region,
            faults=[MODEL_NOT_FOUND] if model is None else [],
            file_bytes_max=max(0, min(config.file_max_bytes, own_bytes_left)),
            lines_max=config.lines_max,
            line_bytes_max=config.line_max_bytes,
            body_bytes_max=self._settings.body_bytes_max,
            pass_priority=self._settings.pass_priority,
            output_tokens_reserved=self._settings.output_tokens_reserved,
            lines_at_once=config.requests_max,
            shares=self._shares(replace(fresh, model=model or asked), works),
            waits_for_unknown=any(each.work_s is None for each in works),
            output_tokens=None if pace is None else _coarse(pace.output_tokens),
            regions=[] if model is None else self._regions(mine, model),
            own_requests_max=_least(limits.concurrency_max, of_key.concurrency_max),
            requests_per_minute=_least(limits.requests_per_minute, of_key.requests_per_minute),
            tokens_per_minute=_least(limits.tokens_per_minute, of_key.tokens_per_minute),
        )

    def _model(self, caller: Caller, asked: str) -> ModelName | None:
        """Model that a client's requests run on; None: no gateway serves it."""
        meant = self._api.meant_by(caller, ModelName(asked))
        return self._core.first_served(meant, caller.tenant, caller.process, "")

    def _shares(self, fresh: ClientBatch, works: list[BatchWork]) -> list[PlaceShare]:
        """Shares for a further batch; behind very many it has none until their windows end."""
        if len(works) > _AHEAD_MAX:
            last_s = max(each.batch.expires_s for each in works)
            return [PlaceShare(0.0, 0.0, 0.0), PlaceShare(float(last_s - fresh.created_s), 1.0, 1.0)]
        config = self._config
        exact = place_shares(
            fresh,
            works,
            lines_at_once=config.requests_max,
            batches_max=config.batches_max,
            tenant_max=config.tenant_batches_max,
            now_s=fresh.created_s,
        )
        told = [PlaceShare(_coarse(each.from_s), _coarse(each.places), _coarse(each.room)) for each in exact]
        return list({each.from_s: each for each in told}.values())

    def _regions(self, rooms: dict[RegionName, int], model: ModelName) -> list[RegionOutlook]:
        """Regions that may run lines of the model, this gateway's first. One without a pace goes by the others."""
        home = self._core.place.region
        told = []
        for region in sorted(rooms, key=lambda each: (each != home, each)):
            pace = self._paces.over(model, [region]) or self._paces.over(model, rooms)
            times = None if pace is None else pace.times()
            prompt_ns, output_ns = (
                (None, None) if times is None else (_coarse(times.prompt_ns), _coarse(times.output_ns))
            )
            told.append(RegionOutlook(region, round(_coarse(rooms[region])), prompt_ns, output_ns))
        return told

    # Backlog

    def _works(self, rooms: _Rooms) -> list[BatchWork]:
        """Batches before a further one, in the order in which they came."""
        line = self._in_line()
        if len(line) > _AHEAD_MAX:
            return [BatchWork(batch, is_running, None) for batch, is_running in line]
        line = [(self._resolved(batch), is_running) for batch, is_running in line]
        alike, now_ns = Counter(batch.model for batch, is_running in line if is_running), self._clock.now_ns()
        return [self._work(batch, is_running, alike, rooms, now_ns) for batch, is_running in line]

    def _resolved(self, batch: ClientBatch) -> ClientBatch:
        """Batch with the model that its lines run on in place of an alias."""
        owner = Caller(RequestId(batch.id), batch.tenant, ("", ""), key=batch.key)
        return replace(batch, model=self._model(owner, batch.model) or batch.model)

    def _work(self, batch: ClientBatch, is_running: bool, alike: Counter[str], rooms: _Rooms, now_ns: int) -> BatchWork:
        """Work that is left of a batch: at its own rate where that is known, else at its model's pace. `alike`: batches
        that run, by model."""
        if not batch.is_checked:
            return BatchWork(batch, is_running, None)
        left, model = batch.total - batch.completed - batch.failed, ModelName(batch.model)
        mine = rooms.by_region((model, batch.tenant, None if batch.key is None else batch.key.process))
        room = sum(mine.values())
        rate = self._book.rates.get(batch.id) if is_running else None
        if rate is not None and rate.is_known(now_ns) and (per_s := rate.per_second(now_ns)):
            lines = min(self._config.requests_max / alike.total(), (room or inf) / alike[batch.model])
            return BatchWork(batch, is_running, left / per_s * lines, room or inf)
        pace = self._paces.over(model, mine)
        if pace is None or not room:
            return BatchWork(batch, is_running, None)
        return BatchWork(batch, is_running, left * pace.took_ns / _SECOND_NS, room)


def _runs_in(request: RequestState) -> tuple[ModelName, RegionName] | None:
    """Model, and region that a client's own request of class `batch` runs in; None for any other request."""
    is_line = request.profile.service_class is ServiceClass.BATCH and request.origin_gateway_id is None
    legs = request.attempt.legs.values() if is_line and request.attempt is not None else ()
    return next(((request.profile.model, each.spec.place.region) for each in legs), None)


def _coarse(figure: float) -> float:
    """Figure with its first two digits."""
    return float(f"{figure:.2g}")


def _least(*limits: int | None) -> int | None:
    """Lowest of the limits that are set; None: none is."""
    return min((each for each in limits if each is not None), default=None)
