"""The image and compose.yaml, in real containers: built from the Dockerfile, started as compose.yaml says, and upgraded
one gateway after the other while requests run.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from mesh.values import SECOND_NS, parse_duration_ns
from tests.deploy.containers import COMPOSE, IMAGE, ROOT, Containers, Service, services, why_not_here

pytestmark = pytest.mark.timeout(1200)

GATEWAYS = {"us-east-1a": "us-east-1", "eu-west-1a": "eu-west-1", "ap-northeast-1a": "ap-northeast-1"}
MODEL = "Qwen/Qwen3-8B"
_SUBNET = "10.98.76"


@pytest.fixture(scope="module")
def containers() -> Iterator[Containers]:
    """Containers whose storage is kept beside the other environments, so that the base image is made only once."""
    assert not why_not_here(), why_not_here()
    folder = ROOT / ".venv-kubernetes/containers"
    folder.mkdir(exist_ok=True)
    with Containers(folder).open() as made:
        yield made


@pytest.fixture(scope="module")
def image(containers: Containers) -> dict[str, Any]:
    """Image built without compiling the core: compiling needs a compiler and minutes, and all other steps are
    the same.
    """
    done = containers.build(BASE_IMAGE=containers.base(), COMPILE="0")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return containers.inspect_image()


def test_the_image_runs_as_nobody_and_says_how_it_is_asked(image: dict[str, Any], containers: Containers) -> None:
    config = image["Config"]
    assert (config["User"], config["Entrypoint"]) == ("65532:65532", ["nightside"])
    assert config["Cmd"] == ["gateway", "run", "/etc/nightside/region.yaml"]
    assert image["Healthcheck"]["Test"][:2] == ["CMD", "python3"]
    told = containers.podman("run", "--rm", *_LIMITS, "--network", "none", "--read-only", IMAGE, "--version").stdout
    assert told.startswith("nightside, version ")


_LIMITS = ["--cgroups", "disabled", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096", "--cap-drop", "ALL"]


def test_nothing_but_what_runs_is_in_the_image(image: dict[str, Any], containers: Containers) -> None:
    look = ["run", "--rm", *_LIMITS, "--network", "none", "--entrypoint", "sh", IMAGE, "-c"]
    found = containers.podman(
        *look, "ls /opt/nightside/bin; id -u; ls /src /wheels 2>&1; touch /etc/x 2>&1 || true"
    ).stdout
    assert "nightside" in found.split()
    assert "pip" not in found.split()
    assert "65532" in found.split()
    assert found.count("No such file or directory") == 2
    assert "Permission denied" in found


# compose.yaml


def test_each_gateway_of_compose_has_as_long_as_its_longest_request_may_take() -> None:
    for name, region in GATEWAYS.items():
        limits = yaml.safe_load((COMPOSE.parent / f"{region}.yaml").read_text())["limits"]
        drain_s, deadline_s = (parse_duration_ns(limits[key]) / SECOND_NS for key in ("drain", "request_deadline"))
        assert deadline_s <= drain_s <= services()[name].grace_s - 30


def test_every_service_is_read_only_and_may_nothing() -> None:
    for service in services().values():
        assert service.told["read_only"] is True, service.name
        assert service.told["cap_drop"] == ["ALL"]
        assert service.told["security_opt"] == ["no-new-privileges:true"]


@dataclass
class Up:
    """compose.yaml with all its services running."""

    containers: Containers
    session: aiohttp.ClientSession
    addresses: dict[str, str]
    tls: ssl.SSLContext
    key: str

    def start(self, service: Service) -> None:
        self.containers.podman(
            "run", "--detach", *service.arguments(self.addresses[service.name], self.addresses), timeout_s=120
        )

    async def upgrade(self, name: str) -> None:
        """Replace a container as compose recreates one: SIGTERM, its grace period, removal, and a new container in its
        place.
        """
        service = services()[name]
        await asyncio.to_thread(self.containers.podman, "stop", "--time", str(service.grace_s), name, timeout_s=660)
        (state,) = json.loads(self.containers.podman("inspect", name).stdout)
        assert state["State"]["ExitCode"] == 0, self.log(name)
        self.containers.podman("rm", name)
        self.start(service)
        await self.until_ready(name)

    async def until_ready(self, name: str) -> None:
        """Wait until the image's health check succeeds at the address for readiness."""
        asked = ("exec", name, "python3", "/opt/nightside/healthcheck.py", "http://127.0.0.1:9900/ready")
        while (await asyncio.to_thread(self.containers.podman, *asked, check=False)).returncode != 0:  # noqa: ASYNC110 - a page to poll
            await asyncio.sleep(0.1)

    async def until_well(self, name: str) -> None:
        """Wait by the command that compose.yaml recommends to its reader."""
        asked = ("exec", name, "nightside", "gateway", "status", "--wait", "60")
        done = await asyncio.to_thread(self.containers.podman, *asked, check=False)
        assert done.returncode == 0, done.stdout + done.stderr + self.log(name)

    async def order(self, *words: str) -> None:
        """Run `nightside ctl` in the controller's container, as docs/how_to/operations.md does for an upgrade."""
        await asyncio.to_thread(self.containers.podman, "exec", "controller", "nightside", "ctl", *words)

    def log(self, name: str) -> str:
        done = self.containers.podman("logs", name, check=False)
        return (done.stdout + done.stderr)[-4000:]

    @asynccontextmanager
    async def asking(self, name: str, tokens: int) -> AsyncIterator[aiohttp.ClientResponse]:
        body = {
            "model": MODEL,
            "stream": True,
            "max_tokens": tokens,
            "min_tokens": tokens,
            "messages": [{"role": "user", "content": "Hello"}],
        }
        url = f"https://{self.addresses[name]}:8443/v1/chat/completions"
        headers = {"authorization": f"Bearer {self.key}"}
        timeout = aiohttp.ClientTimeout(total=300, sock_connect=2)
        async with self.session.post(
            url, json=body, headers=headers, ssl=self.tls, server_hostname="localhost", timeout=timeout
        ) as response:
            yield response


@pytest.fixture
async def up(containers: Containers, image: dict[str, Any]) -> AsyncIterator[Up]:
    containers.podman("network", "create", "--subnet", f"{_SUBNET}.0/24", "mesh")
    every = services()
    addresses = {name: f"{_SUBNET}.{number}" for number, name in enumerate(every, start=10)}
    first = every.pop("certificates")
    for _ in range(2):  # runs at every start: it renews certificates, and keeps keys
        made = first.arguments(addresses[first.name], addresses)
        containers.podman("run", "--rm", *made)
    (volume,) = json.loads(containers.podman("volume", "inspect", "tls").stdout)
    tls_folder = Path(volume["Mountpoint"])
    tls = ssl.create_default_context(cafile=tls_folder / "roots.pem")
    key = (tls_folder / "client-key").read_text().strip()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        made_up = Up(containers, session, addresses, tls, key)
        for service in sorted(every.values(), key=lambda each: not each.name.endswith("-engine")):
            made_up.start(service)
        for name in GATEWAYS:
            await made_up.until_well(name)
        yield made_up
    containers.podman("rm", "--all", "--force", "--time", "0")
    containers.podman("volume", "rm", "--all", "--force")
    containers.podman("network", "rm", "--force", "mesh")


@dataclass
class Client:
    """Client that sends request after request, to the nearest gateway first and to the next one if that refuses, as a
    DNS name with health checks or a load balancer does.

    It counts the outcomes of the streams that have begun.
    """

    up: Up
    nearest: str
    whole: int = 0
    turned_away: int = 0
    broken: list[str] = field(default_factory=list)

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            for name in (self.nearest, *(each for each in GATEWAYS if each != self.nearest)):
                if await self.ask(name):
                    break

    async def ask(self, name: str) -> bool:
        """Return whether the gateway served the request. A refused request goes to another gateway; a stream that has
        begun must end there.
        """
        try:
            async with self.up.asking(name, 20) as response:
                if response.status == 200:
                    await self.read(name, response)
                    return True
                told = await response.text()
                assert (response.status, "draining" in told) == (503, True), told
        except aiohttp.ClientConnectionError:
            pass
        self.turned_away += 1
        return False

    async def read(self, name: str, response: aiohttp.ClientResponse) -> None:
        try:
            body = await response.read()
        except aiohttp.ClientError as error:
            self.broken.append(f"{name}: {error!r}")
            return
        if is_whole(body):
            self.whole += 1
        else:
            self.broken.append(f"{name}: {body[-300:]!r}")


def is_whole(body: bytes) -> bool:
    return body.endswith(b"data: [DONE]\n\n") and b'"error"' not in body


@asynccontextmanager
async def under_load(up: Up) -> AsyncIterator[list[Client]]:
    stop = asyncio.Event()
    clients = [Client(up, name) for name in GATEWAYS for _ in range(2)]
    async with asyncio.TaskGroup() as tasks:
        for client in clients:
            tasks.create_task(client.run(stop))
        try:
            yield clients
        finally:
            stop.set()


async def long_stream(up: Up, name: str, begun: asyncio.Event) -> tuple[str, bytes]:
    """Region in which the stream ran, and its whole body."""
    async with up.asking(name, 400) as response:
        assert response.status == 200, await response.text()
        parts = [await response.content.readany()]
        begun.set()
        parts.append(await response.content.read())
        return response.headers["x-nightside-region"], b"".join(parts)


async def upgraded_during_streams(up: Up, name: str, through: str, count: int) -> set[str]:
    """Regions of streams that began before the upgrade and ran through it; asserts that each is whole."""
    async with asyncio.TaskGroup() as tasks:
        begun = [asyncio.Event() for _ in range(count)]
        streams = [tasks.create_task(long_stream(up, through, each)) for each in begun]
        for each in begun:
            await each.wait()
        assert not any(each.done() for each in streams), "they end only after the gateway was told to go"
        await up.upgrade(name)
    assert all(is_whole(each.result()[1]) for each in streams)
    return {each.result()[0] for each in streams}


async def test_three_regions_are_upgraded_one_by_one_and_no_stream_is_broken(up: Up) -> None:
    await up.order("freeze", "--reason", "an upgrade")
    async with under_load(up) as clients:
        for name, region in GATEWAYS.items():
            assert region in await upgraded_during_streams(up, name, through=name, count=4)
        # Requests of the US run in Ireland here: first the gateway at the far end is upgraded, then the near one.
        up.containers.podman("stop", "--time", "1", "us-east-1a-engine")
        for name in ("eu-west-1a", "us-east-1a"):
            assert await upgraded_during_streams(up, name, through="us-east-1a", count=4) == {"eu-west-1"}
    await up.order("unfreeze")
    assert [fault for client in clients for fault in client.broken] == []
    assert all(client.whole for client in clients)
    assert sum(client.turned_away for client in clients) > 0, "nobody met a gateway that was going"
