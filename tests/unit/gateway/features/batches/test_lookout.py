from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.kernel.events import RequestArrived
from gateway.core.tenant_config import TenantConfig
from gateway.core.vocabulary import DEFAULT_POOL, ModelCapacity, ModelName, RequestId, ServiceClass, TenantName
from gateway.door.parse import Caller
from gateway.features.batches.book import BatchBook
from gateway.features.batches.config import BatchesConfig
from gateway.features.batches.forecast import LineRate
from gateway.features.batches.lookout import Lookout, spare_lines
from gateway.features.batches.outlook import BatchOutlook, PlaceShare, RegionOutlook
from gateway.features.batches.paces import ModelPaces
from gateway.features.batches.state import WINDOW_S, BatchStatus, ClientBatch
from gateway.request.callers import ClientKey, KeyId, KeyLimits
from mesh.clock import Clock
from tests.support.batches import book_in, client_batch
from tests.support.core import EU, EU_PEER, MODEL, SECOND, US, Desk, desk, profile

CONFIG = BatchesConfig(requests_max=10)
ACME = TenantName("acme")
near: Any = pytest.approx


class Names:
    """Clients' API with one alias."""

    def models_of(self, caller: Caller) -> list[ModelName]:
        return [MODEL, ModelName("alias")]

    def meant_by(self, caller: Caller, name: ModelName) -> list[ModelName]:
        return [MODEL]


class StoppedClock(Clock):
    @staticmethod
    def now_ns() -> int:
        return 100 * SECOND


@pytest.fixture
def book(tmp_path: Path) -> BatchBook:
    return book_in(tmp_path)


@pytest.fixture
def paces() -> ModelPaces:
    return ModelPaces()


Look = Callable[..., BatchOutlook]


@pytest.fixture
def look(book: BatchBook, paces: ModelPaces) -> Look:
    def looked(one: Desk, model: str = MODEL, key: ClientKey | None = None) -> BatchOutlook:
        lookout = Lookout(CONFIG, one.core, book, paces, Names(), clock=StoppedClock(), output_tokens_reserved=1_024)
        caller = Caller(RequestId("r"), ACME, ("", ""), key=key)
        return lookout.outlook(caller, ModelName(model), client_batch("batch_z", "acme", 50))

    return looked


def running(book: BatchBook, name: str, tenant: str = "other", model: str = MODEL) -> ClientBatch:
    """Batch of a hundred lines that runs here."""
    made = replace(client_batch(name, tenant), status=BatchStatus.IN_PROGRESS, total=100, model=model)
    book.batches[name] = made
    book.rates[name] = LineRate(0)
    return made


def test_an_idle_gateway_tells_its_room(look: Look, paces: ModelPaces) -> None:
    one = desk(replicas=2, peers=[EU_PEER])
    one.hear("gw-eu", EU, available=3, room=20)
    paces.add(MODEL, EU.region, 0, 10, 1_000)
    told = look(one)
    assert (told.knows_model, told.shares, told.unknown_ahead, told.lines_at_once) == (
        True,
        [PlaceShare(0.0, 1.0)],
        0,
        10,
    )
    assert told.regions == [RegionOutlook(US.region, 2, 0.0, 100.0), RegionOutlook(EU.region, 3, 0.0, 100.0)]
    assert told.output_tokens == 10


def test_an_alias_has_the_room_of_its_model_and_an_unknown_name_none(look: Look) -> None:
    one = desk(replicas=1)
    assert look(one, "alias").regions == look(one).regions
    told = look(one, "nothing")
    assert (told.knows_model, told.regions) == (False, [])


def test_room_that_requests_of_the_class_have_is_counted(look: Look) -> None:
    one = desk(replicas=2)
    for number in range(2):
        asked = replace(profile(f"q{number}"), service_class=ServiceClass.BATCH)
        one.tell(RequestArrived(asked, one.now_ns + SECOND))
    assert look(one).regions[0].lines == 2
    one.probe(running=8, healthy=True)
    assert look(one).regions[0].lines == 2
    one.probe(healthy=False)
    told = look(one)
    assert [each.lines for each in told.regions] == [2], "those that run"


def test_limits_of_tenant_and_key_are_told_the_lowest_first(look: Look) -> None:
    tenants = {ACME: TenantConfig(concurrency_max=5, requests_per_minute=60)}
    one = desk(config=replace(CoreConfig(), tenants=tenants))
    limits = KeyLimits(concurrency_max=7, requests_per_minute=30, tokens_per_minute=1_000)
    told = look(one, key=ClientKey(KeyId("k"), ACME, limits))
    assert (told.own_requests_max, told.requests_per_minute, told.tokens_per_minute) == (5, 30, 1_000)


def test_batches_before_it_go_by_their_own_rate(book: BatchBook, look: Look) -> None:
    """Lines go on at half of the rate that they had alone."""
    running(book, "batch_a")
    book.rates["batch_a"].add(100, 100 * SECOND)
    (first, second) = look(desk()).shares
    assert (first, second.share) == (PlaceShare(0.0, 0.5), 1)
    assert second.from_s == near(2 * 100 / book.rates["batch_a"].per_second(100 * SECOND))


def test_batches_that_have_just_begun_go_by_the_models_pace(book: BatchBook, look: Look, paces: ModelPaces) -> None:
    running(book, "batch_a")
    book.rates["batch_a"] = LineRate(99 * SECOND)
    paces.add(MODEL, US.region, 0, 10, SECOND)
    told = look(desk())
    assert told.shares == [PlaceShare(0.0, 0.5), PlaceShare(near(100), 1.0)]
    assert told.unknown_ahead == 0


def test_batches_of_unknown_pace_are_counted(book: BatchBook, look: Look) -> None:
    running(book, "batch_a", model="strange")
    book.rates["batch_a"] = LineRate(99 * SECOND)
    book.batches["batch_b"] = client_batch("batch_b")
    book.batches["batch_c"] = replace(client_batch("batch_c"), status=BatchStatus.COMPLETED)
    assert look(desk()).unknown_ahead == 2


def test_batches_that_are_over_or_cancelled_are_not_ahead(book: BatchBook, look: Look) -> None:
    for status in (BatchStatus.COMPLETED, BatchStatus.CANCELLING, BatchStatus.EXPIRED):
        book.batches[status] = replace(client_batch(status), status=status, total=100, model=MODEL)
    book.batches["late"] = replace(client_batch("late"), expires_s=50)
    told = look(desk())
    assert (told.shares, told.unknown_ahead) == ([PlaceShare(0.0, 1.0)], 0)


def test_behind_very_many_batches_a_batch_waits_until_their_windows_end(book: BatchBook, look: Look) -> None:
    for number in range(129):
        running(book, f"batch_{number}", f"t{number}")
        book.rates[f"batch_{number}"].add(100, 100 * SECOND)
    told = look(desk())
    assert (told.shares, told.unknown_ahead) == ([PlaceShare(0.0, 0.0), PlaceShare(WINDOW_S - 50, 1.0)], 1)
    del book.batches["batch_0"]
    told = look(desk())
    assert (told.shares[-1].share, told.shares[-1].from_s < WINDOW_S / 2, told.unknown_ahead) == (1, True, 0)


def test_of_very_many_clients_the_first_ones_room_is_counted(book: BatchBook, look: Look, paces: ModelPaces) -> None:
    paces.add(MODEL, US.region, 0, 10, SECOND)
    for number in range(40):
        running(book, f"batch_{number}", f"t{number}")
        book.rates[f"batch_{number}"] = LineRate(99 * SECOND)
    assert look(desk()).unknown_ahead == 40 - 16


@pytest.mark.parametrize(
    ("room", "load", "lines"), [(10, 0, 9), (5, 5, 4), (1, 9, 0), (0, 4, 0), (-3, 8, 0), (100, 0, 90)]
)
def test_a_share_of_the_room_is_kept_free(room: int, load: int, lines: int) -> None:
    assert spare_lines(ModelCapacity(MODEL, DEFAULT_POOL, US, 1, 1, room=room, load=load), 0.1) == lines
