"""Service classes of batches' lines: some become urgent as their window ends, and none is above its client's class."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle
from gateway.config.sections import GatewayConfig
from gateway.core.tenant_config import TenantConfig
from gateway.core.vocabulary import ServiceClass, TenantName
from gateway.security.keys_editing import add_key
from mesh.clock import Clock
from tests.fakes.engine import GOOD_ANSWER, FakeEngine, answer, hang
from tests.support.batches import SettableClock, batches_config, client_of, ended, lines_of, serving, submit
from tests.support.gateways import counted, until

LATE_S = 20 * 3600


@pytest.fixture
def config(tmp_path: Path, engine: FakeEngine) -> GatewayConfig:
    made = batches_config(tmp_path, engine)
    return replace(made, batches=replace(made.batches, requests_max=4, urgent_share=0.5))


def classes_of(gateway: GatewayHandle) -> Counter[ServiceClass]:
    return Counter(each.request_class.service_class for each in gateway._observed.core.requests.values())


async def test_a_part_of_the_lines_becomes_urgent_as_their_window_ends(
    config: GatewayConfig, engine: FakeEngine
) -> None:
    engine.plays(hang)
    clock = SettableClock()
    async with serving(config, clock) as gateway, client_of(gateway) as client:
        await submit(client, lines_of(8))
        await until(lambda: classes_of(gateway) == Counter({ServiceClass.BATCH: 4}))
        assert counted(gateway, "batch_urgent_tries_total") == 0
    clock.ahead_s = LATE_S
    async with serving(config, clock) as gateway:
        await until(lambda: classes_of(gateway) == Counter({ServiceClass.INTERACTIVE: 2, ServiceClass.BATCH: 2}))
        assert counted(gateway, "batch_urgent_tries_total") == 2


@pytest.mark.parametrize("promised", [ServiceClass.BATCH, ServiceClass.BEST_EFFORT])
async def test_no_line_is_above_the_class_of_its_key(
    config: GatewayConfig, engine: FakeEngine, tmp_path: Path, promised: ServiceClass
) -> None:
    engine.plays(hang)
    path = tmp_path / "keys.yaml"
    entry = {"tenant": "acme", "service_class": str(promised)}
    key = add_key(path, "first", entry, Clock().wall_ns(), may_be_missing=True).key
    keyed = replace(config, keys_file=path)
    clock = SettableClock()
    async with serving(keyed, clock) as gateway, client_of(gateway, key) as client:
        await submit(client, lines_of(8))
        await engine.arrived.reaches(1)
    clock.ahead_s = LATE_S
    async with serving(keyed, clock) as gateway:
        await engine.arrived.reaches(2)
        await until(lambda: promised in classes_of(gateway))
        assert set(classes_of(gateway)) == {promised}


@pytest.mark.parametrize("promised", list(ServiceClass))
async def test_a_tenant_that_is_promised_any_class_has_its_lines_run(
    config: GatewayConfig, engine: FakeEngine, promised: ServiceClass
) -> None:
    engine.plays(hang)
    tenants = {TenantName("default"): TenantConfig(service_class=promised)}
    of_tenant = replace(config, core=replace(config.core, tenants=tenants))
    clock = SettableClock()
    async with serving(of_tenant, clock) as gateway, client_of(gateway) as client:
        batch = await submit(client, lines_of(8))
        await engine.arrived.reaches(1)
    clock.ahead_s = LATE_S
    engine.plays(answer(200, GOOD_ANSWER))
    async with serving(of_tenant, clock) as gateway, client_of(gateway) as client:
        assert (await ended(client, batch.id)).request_counts.completed == 8
