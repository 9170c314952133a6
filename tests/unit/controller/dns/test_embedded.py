from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from controller.dns.embedded import EmbeddedDns
from controller.dns.provider import DnsProvider
from gateway.ground.clock import Clock
from gateway.ground.config import LoggingConfig
from gateway.ground.logs import make_logger
from gateway.ground.naming.service import NameService
from gateway.ground.values import Address
from tests.support.dns_conformance import DnsConformance


class TestEmbedded(DnsConformance):
    @pytest.fixture(autouse=True)
    async def _serve(self) -> AsyncIterator[None]:
        clock = Clock()
        self.service = NameService(clock, make_logger(LoggingConfig(), "controller", clock=clock))
        await self.service.start([Address("127.0.0.1", 0)])
        yield
        await self.service.stop()

    async def open(self) -> DnsProvider:
        return EmbeddedDns(self.service)

    @property
    def server(self) -> Address:
        return self.service.addresses[0]
