"""Dynamic updates against the name servers that teams run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.dns.provider import DnsProvider
from controller.dns.rfc2136 import Rfc2136Dns
from gateway.ground.values import Address
from tests.cloud.leases import Leading
from tests.cloud.name_servers import SECRET, ZONE, Bind, Knot, NameServer
from tests.support.dns_conformance import DnsConformance

KINDS: dict[str, type[NameServer]] = {"named": Bind, "knotd": Knot}


@pytest.fixture(params=[pytest.param(each, marks=pytest.mark.needs(each)) for each in KINDS])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NameServer]:
    running = KINDS[request.param](tmp_path)
    running.start()
    yield running
    running.kill()


class TestConformance(DnsConformance):
    @pytest.fixture(autouse=True)
    def _serve(self, server: NameServer) -> None:
        self.running = server

    async def open(self) -> DnsProvider:
        return Rfc2136Dns(self.running.config, SECRET, ZONE, "nightside", Leading())

    @property
    def server(self) -> Address:
        return self.running.address
