from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.kernel.events import RequestArrived
from gateway.core.tenant_config import TenantConfig
from gateway.core.vocabulary import GatewayId, ModelName, RegionName, RequestId, ServiceClass, TenantName
from gateway.door.parse import Caller
from gateway.door.settings import HttpSettings
from gateway.features.batches.book import BatchBook
from gateway.features.batches.config import BatchesConfig
from gateway.features.batches.forecast import LineRate
from gateway.features.batches.lookout import Lookout
from gateway.features.batches.outlook import BatchOutlook, PlaceShare, RegionOutlook
from gateway.features.batches.paces import REQUESTS_MIN, ModelPaces
from gateway.features.batches.state import WINDOW_S, BatchStatus, ClientBatch
from gateway.request.callers import ClientKey, KeyId, KeyLimits
from mesh.clock import Clock
from tests.support.batches import book_in, client_batch
from tests.support.core import EU, EU_PEER, MODEL, SECOND, US, Desk, desk, forward, profile, replica_spec, rule

CONFIG = BatchesConfig(requests_max=10)
ACME = TenantName("acme")
near: Any = pytest.approx


class Names:
    """Clients' API with one alias."""

    def models_of(self, caller: Caller) -> list[ModelName]:
        return [MODEL, ModelName("alias")]

    def meant_by(self, caller: Caller, name: ModelName) -> list[ModelName]:
        return [MODEL if name == "alias" else name]


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
Line = list[tuple[ClientBatch, bool]]


@pytest.fixture
def line() -> Line:
    """Batches in line, each with whether it runs."""
    return []


@pytest.fixture
def look(book: BatchBook, paces: ModelPaces, line: Line) -> Look:
    def looked(one: Desk, model: str = MODEL, key: ClientKey | None = None) -> BatchOutlook:
        settings = HttpSettings(GatewayId("us-1"), US, body_bytes_max=77, pass_priority=True)
        lookout = Lookout(
            CONFIG, settings, one.core, book, in_line=lambda: line, paces=paces, api=Names(), clock=StoppedClock()
        )
        caller = Caller(RequestId("r"), ACME, ("", ""), key=key)
        return lookout.outlook(caller, ModelName(model), client_batch("batch_z", "acme", 50))

    return looked


def learn(paces: ModelPaces, region: RegionName = US.region, took_ns: int = SECOND, count: int = REQUESTS_MIN) -> None:
    """Have requests complete that have answers of 1,234 tokens each."""
    for _ in range(count):
        paces.add(MODEL, region, 0, 1_234, took_ns)


def batch_of(name: str, tenant: str = "other", model: str = MODEL) -> ClientBatch:
    """Batch of a hundred lines that was found valid, of which ten have ended."""
    checked = {"status": BatchStatus.IN_PROGRESS, "total": 100, "completed": 6, "failed": 4, "model": model}
    return replace(client_batch(name, tenant), **checked)


def even(from_s: float, share: float) -> PlaceShare:
    return PlaceShare(from_s, share, share)


def test_an_idle_gateway_tells_its_room_and_limits(look: Look, paces: ModelPaces) -> None:
    one = desk(replicas=2, peers=[EU_PEER])
    one.hear("gw-eu", EU, room=20)
    learn(paces, EU.region, 1_234_567)
    told = look(one)
    assert (told.faults, told.shares, told.waits_for_unknown, told.lines_at_once) == ([], [even(0, 1)], False, 10)
    assert (told.body_bytes_max, told.pass_priority, told.output_tokens_reserved) == (77, True, 1_024)
    assert told.regions == [RegionOutlook(US.region, 14, 0.0, 1_000), RegionOutlook(EU.region, 18, 0.0, 1_000)]


def test_figures_of_others_requests_are_coarse_and_of_regions_within_the_policy(look: Look, paces: ModelPaces) -> None:
    one = desk(replicas=1, peers=[EU_PEER])
    one.hear("gw-eu", EU, room=200)
    key = ClientKey(KeyId("k"), ACME, process=rule(US))
    learn(paces, EU.region)
    assert look(one).output_tokens == 1_200
    assert (look(one, key=key).output_tokens, [each.region for each in look(one, key=key).regions]) == (
        None,
        ["us-east-1"],
    )
    learn(paces, took_ns=2 * SECOND)
    assert [each.output_ns for each in look(one).regions] == [1_600_000, 810_000], "each region's own pace"


def test_an_alias_has_the_room_of_its_model_and_an_unknown_name_none(look: Look) -> None:
    one = desk(replicas=1)
    assert look(one, "alias").regions == look(one).regions
    told = look(one, "nothing")
    assert ([each.code for each in told.faults], told.regions) == (["model_not_found"], [])


def test_room_that_requests_of_the_class_have_is_counted_but_that_of_others(look: Look) -> None:
    one = desk(replicas=3, peers=[EU_PEER])
    for number, kind in enumerate((ServiceClass.BATCH, ServiceClass.INTERACTIVE)):
        asked = replace(profile(f"q{number}"), service_class=kind)
        one.tell(RequestArrived(asked, one.now_ns + SECOND))
    arrival = forward("f1")
    one.tell(replace(arrival, profile=replace(arrival.profile, service_class=ServiceClass.BATCH)))
    assert len(one.core.requests) == 3, "the forward runs, too"
    assert look(one).regions[0].lines == 1


def test_limits_of_tenant_and_key_are_told_the_lowest_first(look: Look, book: BatchBook) -> None:
    tenants = {ACME: TenantConfig(concurrency_max=5, requests_per_minute=60)}
    one = desk(config=replace(CoreConfig(), tenants=tenants))
    limits = KeyLimits(concurrency_max=7, requests_per_minute=30, tokens_per_minute=1_000)
    told = look(one, key=ClientKey(KeyId("k"), ACME, limits))
    assert (told.own_requests_max, told.requests_per_minute, told.tokens_per_minute) == (5, 30, 1_000)
    book.sizes.put("file-1", ACME, CONFIG.tenant_max_bytes - 99)
    assert look(one).file_bytes_max == 99, "what the tenant's files leave"


@pytest.mark.parametrize(("model", "share"), [(MODEL, 0.5), ("alias", 0.5), ("other", 1.0)])
def test_batches_before_it_go_by_their_own_rate(
    book: BatchBook, look: Look, line: Line, model: str, share: float
) -> None:
    """Ninety lines go on at half of the rate that they had alone."""
    line.append((batch_of("batch_a", model=model), True))
    book.rates["batch_a"] = LineRate(0)
    book.rates["batch_a"].add(100, 100 * SECOND)
    (first, second) = look(desk()).shares
    assert (first, second.places) == (PlaceShare(0.0, 0.5, share), 1)
    assert second.from_s == near(2 * 90 / book.rates["batch_a"].per_second(100 * SECOND), rel=0.05)


def test_batches_of_one_model_go_on_at_the_room_that_one_more_leaves(book: BatchBook, look: Look, line: Line) -> None:
    """Two had half of the room for three lines, and have a third now."""
    for name in ("batch_a", "batch_b"):
        line.append((batch_of(name, name), True))
        book.rates[name] = LineRate(0)
        book.rates[name].add(100, 100 * SECOND)
    (first, second) = look(desk(replicas=[replace(replica_spec("r0"), slots=4)])).shares
    assert (first, second.places) == (even(0, 0.33), 1)
    assert second.from_s == near(1.5 * 90 / book.rates["batch_a"].per_second(100 * SECOND), rel=0.05)


def test_batches_that_have_just_begun_go_by_the_models_pace(
    book: BatchBook, look: Look, line: Line, paces: ModelPaces
) -> None:
    """Ninety lines of a second each run at five of ten places; the room is fourteen lines."""
    line.append((batch_of("batch_a"), True))
    book.rates["batch_a"] = LineRate(99 * SECOND)
    assert look(desk()).waits_for_unknown
    learn(paces)
    told = look(desk())
    assert (told.shares, told.waits_for_unknown) == ([even(0, 0.5), even(18, 1)], False)


@pytest.mark.parametrize("batch", [batch_of("batch_a", model="strange"), client_batch("batch_b")])
def test_a_batch_of_unknown_pace_is_told(look: Look, line: Line, paces: ModelPaces, batch: ClientBatch) -> None:
    learn(paces)
    line.append((batch, False))
    assert look(desk()).waits_for_unknown


def test_behind_very_many_batches_a_batch_waits_until_their_windows_end(
    look: Look, line: Line, paces: ModelPaces
) -> None:
    learn(paces)
    line += [(batch_of(f"batch_{number}", f"t{number % 9}"), False) for number in range(129)]
    told = look(desk())
    assert (told.shares, told.waits_for_unknown) == ([even(0, 0), even(WINDOW_S - 50, 1)], True)
    del line[0]
    told = look(desk())
    assert (told.shares[-1].places, told.shares[-1].from_s < WINDOW_S / 2, told.waits_for_unknown) == (1, True, False)


def test_of_very_many_clients_the_first_ones_room_is_counted(look: Look, line: Line, paces: ModelPaces) -> None:
    learn(paces)
    line += [(batch_of(f"batch_{number}", f"t{number}"), False) for number in range(15)]
    assert not look(desk()).waits_for_unknown
    line.append((batch_of("batch_15", "t15"), False))
    assert look(desk()).waits_for_unknown
