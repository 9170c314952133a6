"""All faults at once: engines that fail in every way, clients that leave, a lockdown, a gateway that drains and
returns.

The audit log accounts for every request, at the origin and in every region that saw it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import AuditConfig, GatewayConfig
from gateway.core.features.lockdown.events import LockdownChanged
from gateway.core.vocabulary import Place
from loadgen.engine.faults import EngineFault, FaultMode
from loadgen.engine.presets import PRESETS
from loadgen.engine.server import EngineServer, serve_engines
from loadgen.engine.server_config import EngineServerConfig
from tests.support.core import AP, EU, MODEL, MS, US
from tests.support.gateways import knowing, region_config, until, usable_peers, write_policy
from tests.support.programs import nightside

REQUESTS = 150
SECRET = "a secret that no record may hold"
FAULTS = [
    EngineFault(mode, times=2, delay_s=0.1)
    for mode in (
        FaultMode.ERROR_500,
        FaultMode.ERROR_503,
        FaultMode.DIE_MIDSTREAM,
        FaultMode.EMPTY_STREAM,
        FaultMode.ERROR_EVENT_FIRST,
        FaultMode.HANG_AFTER_HEADERS,
        FaultMode.REFUSE,
    )
]


class Chaos:
    """Three regions, most of the load in the first; the EU keeps its own requests at home."""

    def __init__(self, folder: Path, ports: Any) -> None:
        self.policies = folder / "policies"
        self.policies.mkdir()
        self.audit = folder / "audit"
        self._ports = ports
        self._rng = random.Random(11)
        self.stacks: dict[str, AsyncExitStack] = {}
        self.gateways: dict[str, GatewayHandle] = {}
        self.configs: dict[str, GatewayConfig] = {}
        self.results: dict[str, tuple[str, str]] = {}
        """Gateway and result of each request, by its id, as the client saw them."""

    def configure(self, engines: list[EngineServer]) -> None:
        places: dict[str, Place] = {"us": US, "eu": EU, "ap": AP}
        configs = []
        for number, (name, place) in enumerate(places.items()):
            allowed = (EU,) if place == EU else (US, EU, AP)
            config = region_config(
                name,
                place,
                [engines[number].url],
                policy_file=write_policy(self.policies, place, process=allowed),
                peers_port=self._ports(),
            )
            audit = AuditConfig(folder=self.audit, flush_interval_ns=5 * MS)
            configs.append(replace(config, audit=audit))
        for config in configs:
            others = [other for other in configs if other is not config]
            self.configs[config.gateway_id] = knowing(config, *others)

    async def start(self, name: str) -> None:
        self.stacks[name] = AsyncExitStack()
        self.gateways[name] = await self.stacks[name].enter_async_context(serve_gateway(self.configs[name]))

    async def stop(self, name: str) -> None:
        await self.stacks[name].aclose()

    async def until_connected(self) -> None:
        for gateway in self.gateways.values():
            await until(lambda gateway=gateway: usable_peers(gateway) == 2)  # type: ignore[misc]

    async def load(self, engines: list[EngineServer]) -> None:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
            for number in range(REQUESTS):
                await self._disturb(number, engines)
                name = self._rng.choices(["us", "eu", "ap"], [8, 1, 1])[0]
                tasks.create_task(self._client(session, name, f"chaos-{number}", leaves=self._rng.random() < 0.15))
                await asyncio.sleep(self._rng.random() * 0.02)

    async def _disturb(self, number: int, engines: list[EngineServer]) -> None:
        if number % 6 == 0:
            self._rng.choice(engines).set_fault(self._rng.choice(FAULTS))
        if number in (40, 55):
            self.gateways["us"].driver.submit(LockdownChanged(active=number == 40, cut=True))
        if number == 75:
            await self.gateways["eu"].drain(2.0)
            await self.stop("eu")
        if number == 95:
            await self.start("eu")

    async def _client(self, session: aiohttp.ClientSession, name: str, request_id: str, *, leaves: bool) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"{SECRET} {request_id} " * 10}],
            "stream": self._rng.random() < 0.7,
            "max_tokens": 24,
        }
        self.results[request_id] = (name, "left")
        url = f"{self.gateways[name].http_url}/v1/chat/completions"
        try:
            async with asyncio.timeout(0.03 if leaves else 20):
                async with session.post(url, json=body, headers={"x-request-id": request_id}) as answer:
                    self.results[request_id] = (name, "answered")
                    await answer.read()
        except aiohttp.ClientConnectorError:
            self.results[request_id] = (name, "not connected")
        except (TimeoutError, aiohttp.ClientError):
            pass

    def lines(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for path in self.audit.iterdir() for line in path.read_text().splitlines()]
        return [line for line in lines if line["kind"] == "request"]


async def test_the_audit_record_accounts_for_every_request(tmp_path: Path, unused_tcp_port_factory: Any) -> None:
    chaos = Chaos(tmp_path, unused_tcp_port_factory)
    engine = dataclasses.replace(PRESETS["tiny"], sequences_max=2)
    async with serve_engines([EngineServerConfig(MODEL, engine)] * 3) as engines:
        chaos.configure(engines)
        for name in chaos.configs:
            await chaos.start(name)
        await chaos.until_connected()
        await chaos.load(engines)
        for name, gateway in chaos.gateways.items():
            await until(lambda gateway=gateway: not gateway.core.requests)  # type: ignore[misc]
            assert all(state.in_flight == 0 for state in [*gateway.core.replicas, *gateway.core.peers])
            await chaos.stop(name)
        await until(lambda: all(server.load().running + server.load().waiting == 0 for server in engines))

    regions = {name: config.place.region for name, config in chaos.configs.items()}
    at_origin = Counter[str]()
    seen_elsewhere = Counter[tuple[str, str]]()
    vouched = Counter[tuple[str, str]]()
    for line in chaos.lines():
        request_id = line["request"]
        ingress, _ = chaos.results[request_id]
        if line["gateway"] == ingress:
            at_origin[request_id] += 1
            for attempt in line.get("attempts", ()):
                if attempt["region"] != regions[ingress]:  # includes refused attempts, which may have waited there
                    vouched[request_id, attempt["region"]] += 1
        else:
            seen_elsewhere[request_id, line["region"]] += 1
    for request_id, (_, what) in chaos.results.items():
        expected = {"answered": {1}, "left": {0, 1}, "not connected": {0}}[what]
        assert at_origin[request_id] in expected, (request_id, what)
    assert Counter(what for _, what in chaos.results.values())["answered"] > REQUESTS / 2
    assert len(seen_elsewhere) > 5
    for seen, times in seen_elsewhere.items():
        assert vouched[seen] >= times, f"{seen} was seen without the origin's word"
    everything = "".join(path.read_text() for path in chaos.audit.iterdir())
    assert SECRET not in everything

    status, out, _ = await nightside("audit", "verify", *sorted(chaos.audit.iterdir()))
    assert status == 0, out
    status, out, _ = await nightside("audit", "summary", *sorted(chaos.audit.iterdir()), "--policies", chaos.policies)
    assert status == 0, out
