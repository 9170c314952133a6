"""A controller that publishes where its config file says: from a gateway's death to what resolvers are answered."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dns.asyncquery
import dns.message
import pytest
from click.testing import CliRunner

from controller.app import ControllerHandle
from controller.commands import cli
from mesh.values import Address
from tests.cloud.name_servers import KEY_NAME, SECRET, Bind, Knot, NameServer
from tests.cloud.programs import Emulator
from tests.cloud.stands import Standing, kill, publishing
from tests.cloud.test_route53 import standing
from tests.support.controllers import QUICK
from tests.support.core import AP, EU, US
from tests.support.gateways import until

PLACES = {"us-1": (US, "192.0.2.1"), "eu-1": (EU, "192.0.2.2"), "ap-1": (AP, "192.0.2.3")}
Read = Callable[[], Awaitable[set[str]]]
"""Addresses that the zone's name server gives for the name of us-east-1."""
NEAREST = QUICK | {"decisions": QUICK["decisions"] | {"further_gateways": 0}}
"""Controller whose names answer with the nearest gateways alone."""
Running = tuple[ControllerHandle, dict[str, Standing], Read]


async def answers(server: Address, name: str) -> set[str]:
    query = dns.message.make_query(name, "A")
    answer = await dns.asyncquery.udp(query, server.host, timeout=60, port=server.port)
    return {item.to_text() for each in answer.answer for item in each}


@asynccontextmanager
async def at_name_server(kind: type[NameServer], folder: Path, **more: Any) -> AsyncIterator[Running]:
    (folder / "server").mkdir(parents=True)
    server = kind(folder / "server")
    server.start()
    (folder / "key").write_text(SECRET)
    keys = {"server": str(server.address), "key_name": KEY_NAME, "key_file": str(folder / "key"), "timeout": "60s"}
    try:
        async with publishing(folder, {"provider": "rfc2136", "rfc2136": keys}, PLACES, **more) as (handle, gateways):
            yield handle, gateways, lambda: answers(server.address, "us-east-1.mesh.example.")
    finally:
        server.kill()


@asynccontextmanager
async def at_route53(emulator: Emulator, folder: Path, **more: Any) -> AsyncIterator[Running]:
    async with standing(emulator) as stand:
        keys = {"hosted_zone": stand.front.zone_id, "endpoint": stand.url, "timeout": "60s"}
        async with publishing(folder, {"provider": "route53", "route53": keys}, PLACES, **more) as (handle, gateways):
            yield handle, gateways, lambda: answers(stand.names, "us-east-1.mesh.example.")


@pytest.fixture(
    params=[
        pytest.param("named", marks=pytest.mark.needs("named")),
        pytest.param("knotd", marks=pytest.mark.needs("knotd")),
        pytest.param("route53", marks=pytest.mark.needs("emulators")),
    ]
)
async def running(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Running]:
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "test")
    if request.param == "route53":
        made = at_route53(request.getfixturevalue("running_ministack"), tmp_path, **NEAREST)
    else:
        kinds: dict[str, type[NameServer]] = {"named": Bind, "knotd": Knot}
        made = at_name_server(kinds[request.param], tmp_path, **NEAREST)
    async with made as each:
        yield each


async def until_told(read: Read, wanted: Callable[[set[str]], bool]) -> set[str]:
    while not wanted(told := await read()):  # noqa: ASYNC110 - another process, which tells us nothing
        await asyncio.sleep(0.05)
    return told


async def test_a_death_is_told_where_the_team_keeps_its_names(running: Running) -> None:
    handle, gateways, read = running
    await until_told(read, lambda told: told == {"192.0.2.1"})
    await kill("us-1", gateways)
    await until_told(read, lambda told: bool(told) and told <= {"192.0.2.2", "192.0.2.3"})
    assert handle.publisher is not None
    publisher = handle.publisher
    await until(lambda: bool(publisher.published) and not publisher.fault)
    page = handle.metrics.render().decode()
    assert re.search(r'^nightside_controller_records_attempts_total\{result="published"\} [1-9]', page, re.MULTILINE)
    assert "nightside_controller_records_failing 0.0" in page
    assert re.search(r"^nightside_controller_records_version [1-9]", page, re.MULTILINE)
    assert 'nightside_controller_records_calls_total{call="' in page


@pytest.mark.needs("named")
async def test_what_an_operator_changed_by_hand_is_put_right_and_counted(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    server = Bind(tmp_path / "server")
    server.start()
    (tmp_path / "key").write_text(SECRET)
    keys = {"server": str(server.address), "key_name": KEY_NAME, "key_file": str(tmp_path / "key"), "timeout": "60s"}
    records = {"provider": "rfc2136", "rfc2136": keys, "check_interval": "100ms"}
    async with publishing(tmp_path, records, PLACES, **NEAREST) as (handle, _):

        async def read() -> set[str]:
            return await answers(server.address, "us-east-1.mesh.example.")

        await until_told(read, lambda told: told == {"192.0.2.1"})
        await until(lambda: _is_at_rest(handle))
        await asyncio.to_thread(server.change, ("replace", "us-east-1", 5, "A", "192.0.2.77"))
        await until_told(read, lambda told: told == {"192.0.2.1"})
        count = b'nightside_controller_records_attempts_total{result="put_right"} 1.0'
        await until(lambda: count in handle.metrics.render())
    server.kill()


async def test_the_plan_of_a_controllers_file_is_printed_and_nothing_is_written(
    running: Running, tmp_path: Path
) -> None:
    """The plan is computed beside the running controller, from its store."""
    handle, _, read = running
    await until_told(read, lambda told: told == {"192.0.2.1"})
    await until(lambda: _is_at_rest(handle))
    done = await asyncio.to_thread(CliRunner().invoke, cli, ["plan", str(tmp_path / "controller.yaml")])
    assert (done.exit_code, done.stderr) == (0, "nothing would change\n"), done.output


def _is_at_rest(handle: ControllerHandle) -> bool:
    tree, publisher = handle.manager.records, handle.publisher
    is_published = tree is not None and publisher is not None and publisher.published == tree.version
    return is_published and not handle.manager.store_writer.pending
