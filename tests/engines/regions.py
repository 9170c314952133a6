"""Gateways in front of real engines: each reads a region file that a test may change, and peers connect over mTLS."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.reading import read_region_file
from gateway.core.vocabulary import Place
from gateway.security.development_ca import DevelopmentCa
from tests.support.certificates import Files, mesh_leaf, new_ca, roots_of
from tests.support.core import MODEL
from tests.support.gateways import free_replicas, until, usable_peers, write_policy


@dataclass
class RealRegion:
    gateway_id: str
    place: Place
    path: Path
    document: dict[str, object]
    gateway: GatewayHandle = field(init=False)

    @property
    def url(self) -> str:
        return self.gateway.http_url

    def write(self, **sections: object) -> None:
        self.document |= sections
        self.path.write_text(yaml.safe_dump(self.document))

    async def change(self, **sections: object) -> None:
        """Change the config as an operator would: edit the file, then reload."""
        self.write(**sections)
        assert await self.gateway.reloader.reload() == []

    async def until_free(self, replicas: int) -> None:
        await until(lambda: free_replicas(self.gateway) == replicas)

    async def until_idle(self) -> None:
        await until(lambda: self.gateway.driver.open_requests == 0)


def replicas(urls: Mapping[str, str], dialect: str = "vllm") -> list[dict[str, object]]:
    return [{"id": name, "url": url, "models": [str(MODEL)], "dialect": dialect} for name, url in urls.items()]


class RealMesh:
    """Regions of one trust domain. All are described first, then started."""

    def __init__(self, folder: Path, ports: Callable[[], int]) -> None:
        self._folder = folder
        self._ca: DevelopmentCa = new_ca()
        self._ports = ports
        self._peers_ports: dict[str, int] = {}
        self._stack = AsyncExitStack()
        self.regions: list[RealRegion] = []

    def add(self, gateway_id: str, place: Place, engines: Mapping[str, str], **sections: object) -> RealRegion:
        files = Files(self._folder / gateway_id)
        files.put(mesh_leaf(self._ca, gateway_id, place), roots=roots_of(self._ca))
        self._peers_ports[gateway_id] = self._ports()
        tls = {"certificate": str(files.certificate), "key": str(files.key), "roots": str(files.roots)}
        document: dict[str, object] = {
            "gateway": gateway_id,
            "region": place.region,
            "jurisdiction": place.jurisdiction,
            "policy": str(write_policy(self._folder, place)),
            "listen": {
                "http": "127.0.0.1:0",
                "admin": "127.0.0.1:0",
                "peers": f"127.0.0.1:{self._peers_ports[gateway_id]}",
            },
            "replicas": replicas(engines),
            "peering": {"ping_interval": "50ms", "reconnect_min": "5ms", "reconnect_max": "50ms", "tls": tls},
            "logging": {"level": "error"},
            "seed": 1,
            **sections,
        }
        region = RealRegion(gateway_id, place, self._folder / f"{gateway_id}.yaml", document)
        self.regions.append(region)
        return region

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all gateways, each connected to all others."""
        async with AsyncExitStack() as stack:
            for region in self.regions:
                region.write(peers=[self._peer(other) for other in self.regions if other is not region])
                file = read_region_file(region.path)
                region.gateway = await stack.enter_async_context(serve_gateway(file.as_config(), region=file))
            for region in self.regions:
                await until(lambda region=region: usable_peers(region.gateway) == len(self.regions) - 1)  # type: ignore[misc]
                await until(lambda region=region: MODEL in _models_of(region.gateway))  # type: ignore[misc]
            yield

    def _peer(self, other: RealRegion) -> dict[str, object]:
        return {
            "gateway": other.gateway_id,
            "region": other.place.region,
            "jurisdiction": other.place.jurisdiction,
            "address": f"127.0.0.1:{self._peers_ports[other.gateway_id]}",
        }


def _models_of(gateway: GatewayHandle) -> list[str]:
    return [*gateway.core.replicas.groups.models, *gateway.core.peers.models()]
