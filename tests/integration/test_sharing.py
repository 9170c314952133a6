"""Service classes at a live gateway: the classes that clients may name, early refusals, and counters."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from gateway.core.features.classes.config import ClassesConfig, InteractiveConfig
from tests.fakes.engine import Exchange, answer, hang
from tests.support.core import EU, LAYERED, SECOND, US, under
from tests.support.gateways import CHAT, counted, until
from tests.support.regions import Mesh, Region

PROMISED = ClassesConfig(interactive=InteractiveConfig(first_token_ns=SECOND // 2))


async def promising(mesh: Mesh) -> Region:
    us = await mesh.region("us-1", US)
    us.config = replace(us.config, core=under(LAYERED, replace(us.config.core, classes=PROMISED)))
    return us


def chat_of(region: Region) -> str:
    return f"{region.gateway.http_url}/v1/chat/completions"


async def test_a_class_is_taken_or_refused_by_its_name_and_counted(mesh: Mesh) -> None:
    us = await promising(mesh)
    await mesh.start(us)
    async with mesh.session.post(chat_of(us), json=CHAT, headers={"x-nightside-class": "gold"}) as response:
        assert response.status == 400
        error = (await response.json())["error"]
        assert (error["code"], error["param"]) == ("invalid_class", "x-nightside-class")
        assert "'gold'" in error["message"]
    async with mesh.session.post(chat_of(us), json=CHAT, headers={"x-nightside-class": "batch"}) as response:
        assert response.status == 200
        await response.read()
    async with mesh.session.get(f"{us.gateway.admin_url}/metrics") as page:
        text = await page.text()
    assert 'nightside_class_requests_total{promise="kept",service_class="batch"} 1.0' in text


async def wait_in_queue(mesh: Mesh, region: Region) -> None:
    async with mesh.session.post(chat_of(region), json=CHAT):
        pass


async def test_who_would_be_late_is_told_at_once_and_when_to_come_again(mesh: Mesh) -> None:
    us = await promising(mesh)
    await mesh.start(us)
    await us.become_busy()
    core = us.gateway.core
    async with asyncio.TaskGroup() as tasks:
        before_it = tasks.create_task(wait_in_queue(mesh, us))
        await until(lambda: len(core.waiting) == 1)
        now_ns, first = core._now_ns, next(iter(core.waiting))
        assert now_ns is not None
        core.drain_rates.waits(core.waiting, first, now_ns - 8 * SECOND)
        for number in range(8):
            core.drain_rates.served(core.waiting, first, now_ns - (7 - number) * SECOND)
        async with mesh.session.post(chat_of(us), json=CHAT) as response:
            assert response.status == 429
            assert (await response.json())["error"]["code"] == "deadline_unreachable"
            assert 0 < int(response.headers["retry-after"]) <= 60
            assert float(response.headers["retry-after-ms"]) >= 500, "one a second, less the promised half"
        assert us.engine.received == []
        before_it.cancel()


async def test_a_batch_is_run_where_another_region_is_idle_and_says_there_what_it_is(mesh: Mesh) -> None:
    us, eu = await promising(mesh), await mesh.region("eu-1", EU)
    await mesh.start(us, eu)
    await us.become_busy()
    async with mesh.session.post(chat_of(us), json=CHAT, headers={"x-nightside-class": "batch"}) as response:
        assert response.status == 200
        await response.read()
        assert response.headers["x-nightside-region"] == EU.region
    assert len(eu.engine.received) == 1


async def test_an_interactive_request_is_given_the_slot_of_a_running_batch_request(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    (only,) = us.config.replicas
    us.config = replace(us.config, replicas=(replace(only, spec=replace(only.spec, slots=2)),))
    await mesh.start(us)
    may_end = asyncio.Event()

    async def end_later(exchange: Exchange) -> None:
        await may_end.wait()
        await answer()(exchange)

    us.engine.plays(hang, end_later, answer(), answer())
    whole = CHAT | {"stream": False}

    async def ask(service_class: str) -> int:
        headers = {"x-nightside-class": service_class}
        async with mesh.session.post(chat_of(us), json=whole, headers=headers) as response:
            await response.read()
            return response.status

    async with asyncio.TaskGroup() as tasks:
        batch = tasks.create_task(ask("batch"))
        await us.engine.arrived.reaches(1)
        first = tasks.create_task(ask("interactive"))
        await us.engine.arrived.reaches(2)
        assert us.engine.aborted.count == 0, "there was a slot for both"
        assert await ask("interactive") == 200
        await us.engine.aborted.reaches(1)
        assert counted(us.gateway, "interruptions_total", service_class="batch") == 1
        assert not batch.done()
        may_end.set()
        assert await first == 200
        assert await batch == 200
    assert len(us.engine.received) == 4
